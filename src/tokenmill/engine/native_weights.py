"""A model's matrices packed for native kernels: from the cache on disk, or made and tested by layers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import torch

from tokenmill.engine.self_test import (
    GATES,
    TEXT,
    TOKENS,
    FormatRefused,
    Verdict,
    compare,
    require,
)
from tokenmill.kernels.cpu.abi import RowsAs
from tokenmill.kernels.cpu.lower import Lowering
from tokenmill.kernels.cpu.pack import pack_named
from tokenmill.kernels.cpu.pack_cache import PackCache, PackedModel, cache_key
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.cpu.self_test import check, passes
from tokenmill.kernels.program import Add, Linear, Operator, Program
from tokenmill.kernels.unquantized import UnquantizedPass, loader
from tokenmill.models.source import ModelSource
from tokenmill.planner.packing import Quantization

log = logging.getLogger(__name__)

Encode = Callable[[str], Sequence[int]]
# The packed model's logits of every position of a text, [tokens] to [tokens, vocabulary].
Answer = Callable[[Lowering, npt.NDArray[np.int64]], torch.Tensor]
_REFUSED = "refused"
# Of the text, those whose products are held against the matrix itself.
CHECKED_TOKENS = 32


def packed_operators(
    source: ModelSource,
    outline: Program,
    wanted: Quantization,
    settings: Sequence[str],
    encode: Encode,
    answer: Answer,
    cache: PackCache | None = None,
) -> tuple[Lowering, Verdict | None]:
    """The outline's operators with packed matrices, and what their self-test found; none for bfloat16.

    Args:
        settings: whatever else the test's outcome depends on.
        encode: gives the tokens of the test's text.

    Raises:
        FormatRefused: the packed model is too far from the unquantized one.
        ModelFileError: the weights cannot be read.
    """
    cache = cache or PackCache()
    key = cache_key(source.path, wanted, TEXT, str(GATES[wanted]), *settings)
    stored = cache.load(key)
    if stored is not None and _REFUSED in stored.verdict:
        raise FormatRefused(str(stored.verdict[_REFUSED]))
    matrices: dict[tuple[str, ...], Sequence[PackedMatrix]] = dict(stored.matrices) if stored else {}

    def pack(linear: Linear, gated: bool) -> Sequence[PackedMatrix]:
        if linear.sources not in matrices:
            matrices[linear.sources] = pack_named(source.weights, linear.sources, wanted, gated=gated)
        return matrices[linear.sources]

    lowering = Lowering(pack, RowsAs.BF16 if wanted == "none" else RowsAs.INT8)
    if stored is not None or GATES[wanted] is None:
        lowering.extend(outline.operators)
        verdict = Verdict(**stored.verdict) if stored is not None and stored.verdict else None  # type: ignore[arg-type]
    else:
        try:
            verdict = _tested(source, outline, lowering, _sample(source, outline, encode), answer)
            log.info("packed weights (%s): %s", wanted, verdict)
            require(verdict, GATES[wanted])
        except FormatRefused as refused:
            cache.store(key, PackedModel({}, {_REFUSED: str(refused)}))
            raise
    if stored is None:
        cache.store(key, PackedModel(matrices, asdict(verdict) if verdict else {}))
    return lowering, verdict


def _tested(
    source: ModelSource,
    outline: Program,
    lowering: Lowering,
    text: npt.NDArray[np.int64],
    answer: Answer,
) -> Verdict:
    """Packs half a layer at a time, and computes it in float as well: no more is in memory twice.

    Raises:
        FormatRefused: a matrix does not multiply as its own.
    """

    def observe(linear: Linear, x: torch.Tensor) -> None:
        first = 0
        for matrix in lowering.pack(linear, False):
            rows = len(linear.weight) if matrix.gated else matrix.shape.rows
            found = check(matrix, linear.weight[first : first + rows], x[:CHECKED_TOKENS])
            if not passes(matrix, found):
                raise FormatRefused(f"products with {', '.join(linear.sources)}: {found}")
            first += rows

    reference = UnquantizedPass(torch.from_numpy(text), outline.rotary, loader(source.weights), observe)
    logits = None
    for part in _parts(outline.operators):
        lowering.extend(part)
        logits = reference.extend(part)
    if logits is None:
        raise RuntimeError("a program must end with Logits")
    return compare(logits, answer(lowering, text))


def _sample(source: ModelSource, outline: Program, encode: Encode) -> npt.NDArray[np.int64]:
    """Tokens of the test's text, as many as the context takes."""
    longest = min((len(table.cos) for table in outline.rotary), default=TOKENS)
    ids = [token for token in encode(TEXT) if 0 <= token < source.spec.vocab_size]
    return np.array((ids or [0])[: min(TOKENS, longest)], dtype=np.int64)


def _parts(operators: Sequence[Operator]) -> Iterator[Sequence[Operator]]:
    """Operators up to each addition: half a layer."""
    part: list[Operator] = []
    for operator in operators:
        part.append(operator)
        if isinstance(operator, Add):
            yield part
            part = []
    if part:
        yield part
