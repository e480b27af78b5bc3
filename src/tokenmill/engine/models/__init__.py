"""How each architecture is written as a program. A new one is one file and one entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenmill.core.errors import ModelFileError
from tokenmill.engine.models import llama
from tokenmill.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from tokenmill.kernels.program import Program
    from tokenmill.models.weights import WeightFile

BUILDERS = {"llama": llama.build}


def build_program(spec: ModelSpec, weights: WeightFile, dtype: torch.dtype, positions: int) -> Program:
    """Loads the weights of a model into its program.

    Args:
        dtype: type matrices and biases are held and multiplied in; norms are held in float32.
        positions: length of the rotary table, the longest sequence in tokens.

    Raises:
        ModelFileError: the architecture is not known.
    """
    builder = BUILDERS.get(spec.architecture)
    if builder is None:
        raise ModelFileError(
            f"architecture {spec.architecture} is not supported; supported: {', '.join(sorted(BUILDERS))}"
        )
    return builder(spec, weights, dtype, positions)
