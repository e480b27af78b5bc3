"""How each architecture is written as a program. A new one is a file here, if none computes like it, and an
entry in `BUILDERS`; how its files are read is an entry in `models.families`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tokenmill.core.errors import ModelFileError
from tokenmill.engine.models import gemma3, llama
from tokenmill.engine.models.parts import Parts, decoder
from tokenmill.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from tokenmill.kernels.program import Operator, Program
    from tokenmill.models.weights import WeightFile

# What writes one layer of an architecture.
BUILDERS: Mapping[str, Callable[[Parts, int], list[Operator]]] = {
    "llama": llama.layer,
    "qwen2": llama.layer,
    "qwen3": llama.layer,
    "gemma3": gemma3.layer,
    "phi3": llama.layer,
    "mixtral": llama.layer,
    "qwen3_moe": llama.layer,
}


def build_program(
    spec: ModelSpec, weights: WeightFile, dtype: torch.dtype, positions: int, *, outline: bool = False
) -> Program:
    """Loads the weights of a model into its program, one tensor at a time.

    Args:
        dtype: type matrices and biases are held and multiplied in; norms and routers are held in float32.
        positions: length of the rotary tables, the longest sequence in tokens.
        outline: matrices are left in the file: they have a shape and the names of their sources.

    Raises:
        ModelFileError: the architecture is not known.
    """
    layer = BUILDERS.get(spec.architecture)
    if layer is None:
        raise ModelFileError(
            f"architecture {spec.architecture} is not supported; supported: {', '.join(sorted(BUILDERS))}"
        )
    return decoder(Parts(spec, weights, dtype, outline=outline), positions, layer)
