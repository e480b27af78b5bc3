"""What a program holds in the type of its products, and what in float32 whatever that is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tiny_models import load_tiny, save_tiny
from tokenmill.kernels.program import (
    Attention,
    BranchNorm,
    Embed,
    Experts,
    HeadNorms,
    Logits,
    Mlp,
    Norm,
    Operator,
)

NARROW = torch.bfloat16


def operators(kind: str, folder: Path, dtype: torch.dtype) -> tuple[Operator, ...]:
    save_tiny(kind, folder)
    return load_tiny(folder, dtype=dtype)._program.operators


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_moe"])
def test_matrices_are_narrow_and_norms_and_routers_float(kind: str, tmp_path: Path) -> None:
    narrow: list[torch.Tensor] = []
    wide: list[torch.Tensor] = []
    for operator in operators(kind, tmp_path, NARROW):
        match operator:
            case Embed(table):
                narrow.append(table)
            case Norm(weight) | BranchNorm(weight):
                wide.append(weight)
            case Attention(qkv=qkv, out=out, norms=norms):
                narrow += [qkv.weight, out.weight]
                wide += [norms.query, norms.key] if isinstance(norms, HeadNorms) else []
            case Mlp(gate_up, down):
                narrow += [gate_up.weight, down.weight]
            case Experts(router, experts):
                wide.append(router.weight)
                narrow += [part.weight for mlp in experts for part in (mlp.gate_up, mlp.down)]
            case Logits(head):
                narrow.append(head.weight)
    assert {tensor.dtype for tensor in narrow} == {NARROW}
    assert {tensor.dtype for tensor in wide} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, NARROW])
def test_the_scale_of_embeddings_is_rounded_to_the_type_of_the_weights(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    embed = operators("gemma3", tmp_path, dtype)[0]
    assert isinstance(embed, Embed)
    hidden = embed.table.shape[1]
    assert embed.scale == torch.tensor(hidden**0.5, dtype=dtype).item()
    # The two differ for this width: a scale that is not rounded would be seen.
    assert torch.tensor(hidden**0.5, dtype=NARROW) != torch.tensor(hidden**0.5)
