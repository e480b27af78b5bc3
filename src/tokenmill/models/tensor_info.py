"""What is known of a stored tensor without reading it: enough to plan what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Grouping:
    """What `Grouped` will hold of a matrix.

    Attributes:
        bits: of a code.
        group: columns that share a scale.
        offsets: there are zero points or offsets.
        half: float16 holds every scale, and every offset (a zero point's is -zero * scale).
        reordered: groups are not neighbouring columns.
    """

    bits: int
    group: int
    offsets: bool = False
    half: bool = True
    reordered: bool = False


# Of ggml's block formats. Scales of the K formats are a small integer times a half-precision number, that of
# MXFP4 is any power of two: float16 holds neither.
GGML_GROUPINGS: Mapping[str, Grouping] = MappingProxyType(
    {
        "Q4_0": Grouping(4, 32),
        "Q4_1": Grouping(4, 32, offsets=True),
        "Q5_0": Grouping(5, 32),
        "Q5_1": Grouping(5, 32, offsets=True),
        "Q8_0": Grouping(8, 32),
        "Q2_K": Grouping(2, 16, offsets=True, half=False),
        "Q3_K": Grouping(3, 16, half=False),
        "Q4_K": Grouping(4, 32, offsets=True, half=False),
        "Q5_K": Grouping(5, 32, offsets=True, half=False),
        "Q6_K": Grouping(6, 16, half=False),
        "IQ4_NL": Grouping(8, 32),
        "IQ4_XS": Grouping(8, 32, half=False),
        "MXFP4": Grouping(5, 32, half=False),
    }
)


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor.

    Attributes:
        name: canonical (Hugging Face) name.
        shape: [out, in] for matrices.
        format: one that `models.formats` knows.
        nbytes: bytes it takes in the file.
        quantized: how a matrix of a quantized checkpoint is grouped; in GGUF the format says it.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    quantized: Grouping | None = None

    @property
    def grouping(self) -> Grouping | None:
        """How it is quantized; None where it is not."""
        return self.quantized or GGML_GROUPINGS.get(self.format)
