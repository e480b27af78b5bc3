"""The one memory formula: weights, KV cache and working set of a model under given flags.

The engine sizes its KV pool with it, and prints what it planned against what it measures.
All figures are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.errors import ConfigError, InsufficientMemory
from tokenmill.core.flags import ModelFlags
from tokenmill.models.spec import ModelSpec
from tokenmill.planner.activations import table_bytes
from tokenmill.planner.costs import Costs

# A default pool serves the running sequences at this length, or one at the model's longest.
TYPICAL_SEQUENCE_TOKENS = 2048
# Resident after importing the engine's libraries (241 MiB) and first using them, without any weight.
IMPORT_BYTES = 248 << 20
_MIB = 1 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """What will be resident, by part, and the KV pool that follows.

    Attributes:
        tables: of rotary embeddings, made with the weights.
        activations: working memory: a step's own, compiled products, the block that padding writes to.
        kv_tokens: tokens the pool holds, over all sequences.
        max_model_len: longest prompt plus output: the model's limit or the flag's.
    """

    weights: int
    tables: int
    kv_bytes_per_token: int
    block_size: int
    num_kv_blocks: int
    activations: int
    imports: int
    max_model_len: int

    @property
    def kv_tokens(self) -> int:
        return self.num_kv_blocks * self.block_size

    @property
    def kv_pool(self) -> int:
        return self.kv_tokens * self.kv_bytes_per_token

    @property
    def total(self) -> int:
        return self.weights + self.tables + self.kv_pool + self.activations + self.imports


def plan_memory(spec: ModelSpec, flags: ModelFlags, *, costs: Costs, available: int) -> MemoryPlan:
    """Sizes the KV pool.

    Args:
        costs: of the backend that will run it.
        available: bytes the machine leaves to this process now.

    Raises:
        ConfigError: a context longer than the model's.
        InsufficientMemory: weights and one block do not fit, or an explicit pool does not.
    """
    longest = flags.max_model_len or spec.max_position
    if longest > spec.max_position:
        raise ConfigError(f"max_model_len must be at most {spec.max_position} for this model, not {longest}")
    weights = costs.weights(spec)
    tables = table_bytes(spec, longest)
    per_token = costs.kv_bytes_per_token(spec)
    per_block = per_token * flags.block_size
    activations = costs.activations(spec, flags, longest)
    explicit = _explicit_blocks(flags, per_block)
    # A pool asked for by size is only held against what is there; the default leaves the rest alone.
    budget = available if explicit is not None else int(available * flags.gpu_memory_utilization)
    room = (budget - weights - tables - activations) // per_block
    if room < 1 or (explicit or 1) > room:
        raise _too_big(weights + tables, activations, (explicit or 1) * per_block, budget, available)
    if explicit is None:
        tokens = max(longest, flags.max_num_seqs * min(longest, TYPICAL_SEQUENCE_TOKENS))
        explicit = min(room, -(-tokens // flags.block_size))
    return MemoryPlan(
        weights=weights,
        tables=tables,
        kv_bytes_per_token=per_token,
        block_size=flags.block_size,
        num_kv_blocks=explicit,
        activations=activations,
        imports=IMPORT_BYTES,
        max_model_len=longest,
    )


def _explicit_blocks(flags: ModelFlags, per_block: int) -> int | None:
    if flags.num_kv_blocks is not None:
        return flags.num_kv_blocks
    if flags.kv_cache_memory_bytes is not None:
        return max(1, flags.kv_cache_memory_bytes // per_block)
    return None


def _too_big(weights: int, activations: int, pool: int, budget: int, available: int) -> InsufficientMemory:
    return InsufficientMemory(
        f"the model needs {weights // _MIB} MiB of weights, {activations // _MIB} MiB of working memory and "
        f"{-(-pool // _MIB)} MiB of KV cache, but may take {budget // _MIB} MiB of the "
        f"{available // _MIB} MiB free: use a smaller --max-model-len, --max-num-batched-tokens or "
        "--kv-cache-memory-bytes, a larger --gpu-memory-utilization, or a smaller model"
    )
