"""What the engine sees of a weight file, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tokenmill.models.tensor_info import TensorInfo

if TYPE_CHECKING:
    import torch

    from tokenmill.models.grouped import Grouped


class WeightFile(Protocol):
    """An open model: headers are read and checked, weights are not.

    Attributes:
        tensors: exactly what `ModelSpec.tensors()` asks for, by name, with the shapes it asks for.
        nbytes: size of the file, or of all files together.
    """

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def nbytes(self) -> int: ...

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor as numbers, contiguous, in memory of its own, rows in Hugging Face order.

        Raises:
            ModelFileError: no such tensor, or the file changed since it was opened.
        """
        ...

    def grouped(self, name: str) -> Grouped | None:
        """The tensor as codes and scales, as they are stored; None where it is not quantized in groups.

        Raises:
            ModelFileError: as `load`.
        """
        ...

    def close(self) -> None:
        """Releases the file. Loaded tensors stay valid; closing twice is fine."""
        ...
