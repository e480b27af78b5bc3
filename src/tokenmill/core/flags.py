"""The one table of flags: command line, environment, YAML and Python API all read these models.

Names are vLLM's where the meaning is the same. A flag that is known but not supported yet is refused
by name, so that nobody believes in a setting that does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(value: object) -> object:
    """`2GiB`, `500M` or plain bytes to a number of bytes; anything else is left for the type check."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", value.lower())
    if match is None:
        raise ValueError("write a size as bytes or like 2GiB, 500MiB or 4G")
    return int(float(match[1]) * _UNITS[match[2] or ""])


Bytes = Annotated[int, BeforeValidator(parse_bytes)]

# Other projects' names for our flags.
ALIASES: Mapping[str, str] = {"num_gpu_blocks_override": "num_kv_blocks"}


class ModelFlags(BaseModel):
    """What one engine is started with."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    served_model_name: str | None = Field(
        None, description="Name clients use, or several with commas between; default: the model's own."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Arithmetic; auto is bfloat16 where the CPU multiplies it natively."
    )
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="Weights on native kernels: auto keeps stored 4-bit codes and makes the rest int8; "
        "none is bfloat16.",
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "bf16", "int8"] = Field(
        "auto", description="Type of the KV cache; auto is int8 on native kernels, else it follows --dtype."
    )
    kv_cache_memory_bytes: Bytes | None = Field(None, ge=1, description="Size of the KV cache, like 2GiB.")
    gpu_memory_utilization: float = Field(
        0.5, gt=0, le=0.95, description="Share of the free memory that weights and KV cache may take."
    )
    max_model_len: int | None = Field(None, ge=1, description="Longest prompt plus output, in tokens.")
    max_num_seqs: int = Field(64, ge=1, le=1024, description="Sequences that run together at most.")
    max_num_batched_tokens: int = Field(512, ge=1, le=65536, description="Tokens one step computes at most.")
    block_size: int = Field(32, description="Tokens a KV block holds: 16, 32, 64 or 128.")
    num_kv_blocks: int | None = Field(None, ge=1, description="KV blocks, instead of a size.")
    tensor_parallel_size: int = Field(1, description="Only 1 is supported yet.")
    pipeline_parallel_size: int = Field(1, description="Only 1 is supported yet.")
    enable_prefix_caching: bool = Field(True, description="Reuse the KV of equal prompt beginnings.")
    batching: Literal["continuous", "static"] = Field(
        "continuous", description="continuous: join at any step; static: wait for the whole batch."
    )
    pooling: Literal["mean", "last"] | None = Field(
        None, description="How token states become an embedding; default: what the model says, if it does."
    )
    device: Literal["cpu"] = Field("cpu", description="Where the model runs; only cpu is supported yet.")

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names clients may use, the one answers carry first; empty for the model's own."""
        given = (self.served_model_name or "").split(",")
        return tuple(dict.fromkeys(name.strip() for name in given if name.strip()))

    @field_validator("served_model_name")
    @classmethod
    def _names(cls, value: str | None) -> str | None:
        if value is not None and not all(name.strip() for name in value.split(",")):
            raise ValueError("must be names with commas between, none of them empty")
        return value

    @field_validator("block_size")
    @classmethod
    def _block_size(cls, value: int) -> int:
        if value not in (16, 32, 64, 128):
            raise ValueError("must be 16, 32, 64 or 128")
        return value

    @field_validator("tensor_parallel_size", "pipeline_parallel_size")
    @classmethod
    def _one(cls, value: int) -> int:
        if value != 1:
            raise ValueError("is not supported yet; only 1 works")
        return value


class ServerFlags(BaseModel):
    """What the HTTP server is started with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on; other than loopback needs --api-key.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    api_key: str | None = Field(None, min_length=8, description="Key every client must send.")
    drain_timeout: float = Field(30.0, ge=0, le=3600, description="Seconds running streams get at stop.")
    stall_timeout: float = Field(
        30.0, gt=0, le=3600, description="Seconds without a finished step after which it is not ready."
    )
    max_waiting: int = Field(1024, ge=1, description="Requests waiting at most before 503.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much to log.")

    @field_validator("api_key")
    @classmethod
    def _can_be_sent(cls, value: str | None) -> str | None:
        if value is not None and (value != value.strip() or not value.isprintable()):
            raise ValueError("must be printable text without spaces at either end: no header could match it")
        return value


class SloTargets(BaseModel):
    """What the operator promises: the `slo` block of the YAML file, not settable elsewhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttft_p99_ms: float | None = Field(None, gt=0, description="99th percentile of time to first token, ms.")
    tpot_p99_ms: float | None = Field(None, gt=0, description="99th percentile of time per token, ms.")
    e2e_p99_ms: float | None = Field(None, gt=0, description="99th percentile of a whole answer, ms.")
    availability: float | None = Field(
        None, gt=0, le=1, description="Share of requests answered, like 0.999."
    )
