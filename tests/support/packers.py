"""AWQ and GPTQ tensors written from their layouts, one nibble at a time, and the numbers they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from tokenmill.models.quantized.config import read_quantization
from tokenmill.models.quantized.modules import open_modules
from tokenmill.models.safetensors_file import open_folder
from tokenmill.models.stored_weights import StoredWeights

Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]

# Row of the code at each nibble of an AWQ word, lowest first.
AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Codes:
    """A quantized matrix: number = (code - zero) * scale.

    Attributes:
        codes: [rows, columns].
        zeros, scales: [rows, groups].
        groups: [columns], the group of each column.
    """

    codes: Array
    zeros: Array
    scales: Array
    groups: Array

    def numbers(self) -> torch.Tensor:
        """In float32, one by one: scales are half precision, so that each product is exact."""
        rows, columns = self.codes.shape
        out = np.zeros((rows, columns), np.float32)
        for column in range(columns):
            group = self.groups[column]
            steps = self.codes[:, column].astype(np.float32) - self.zeros[:, group].astype(np.float32)
            out[:, column] = steps * self.scales[:, group].astype(np.float32)
        return torch.from_numpy(out)


def random_codes(
    rows: int, columns: int, group: int, bits: int = 4, *, shuffled: bool = False, seed: int = 0
) -> Codes:
    """Any codes and zero points; `group` -1 is the whole row."""
    random = np.random.default_rng(seed)
    size = columns if group == -1 else group
    groups = np.arange(columns) // size
    if shuffled:
        random.shuffle(groups)
    shape = (rows, columns // size)
    return Codes(
        random.integers(0, 1 << bits, (rows, columns)),
        random.integers(0, 1 << bits, shape),
        random.uniform(0.001, 0.1, shape).astype(np.float16),
        groups,
    )


def rounded(weight: Array, group: int, bits: int = 4) -> Codes:
    """A matrix rounded to the nearest code. The zero point of a group is the code nearest to where 0 lies between
    its least and its greatest number, and its scale just lets both in."""
    rows, columns = weight.shape
    parts = weight.reshape(rows, -1, group)
    low, high = np.minimum(parts.min(-1), -1e-6), np.maximum(parts.max(-1), 1e-6)
    top = (1 << bits) - 1
    zeros = np.clip(np.rint(-low / (high - low) * top), 1, top - 1).astype(np.int64)
    scales = np.maximum(-low / zeros, high / (top - zeros)).astype(np.float16)
    steps = scales.astype(np.float32)
    codes = np.clip(np.rint(parts / steps[..., None]) + zeros[..., None], 0, top).astype(np.int64)
    return Codes(codes.reshape(rows, columns), zeros, scales, np.arange(columns) // group)


def words(values: Array) -> torch.Tensor:
    """Unsigned words as the int32 that files hold."""
    return torch.from_numpy(values.astype(np.uint32).view(np.int32).copy())


def awq(name: str, matrix: Codes) -> Tensors:
    return {
        f"{name}.qweight": words(_awq_words(matrix.codes)),
        f"{name}.qzeros": words(_awq_words(matrix.zeros)),
        f"{name}.scales": torch.from_numpy(matrix.scales.T.copy()),
    }


def _awq_words(codes: Array) -> Array:
    """[rows, n] codes to [n, rows / 8] words."""
    packed = np.zeros((codes.shape[1], codes.shape[0] // 8), np.uint64)
    for word in range(packed.shape[1]):
        for nibble, row in enumerate(AWQ_ROWS):
            packed[:, word] |= codes[word * 8 + row].astype(np.uint64) << np.uint64(4 * nibble)
    return packed


def gptq(name: str, matrix: Codes, bits: int = 4, version: int = 1) -> Tensors:
    in_word = 32 // bits
    rows, columns = matrix.codes.shape
    weight = np.zeros((columns // in_word, rows), np.uint64)
    for column in range(columns):
        weight[column // in_word] |= matrix.codes[:, column].astype(np.uint64) << np.uint64(
            bits * (column % in_word)
        )
    zeros = np.zeros((matrix.zeros.shape[1], rows // in_word), np.uint64)
    for row in range(rows):
        zeros[:, row // in_word] |= matrix.zeros[row].astype(np.uint64) << np.uint64(bits * (row % in_word))
    if version == 1:  # one less in every code, borrows and all
        zeros = (zeros - np.uint64(sum(1 << bits * code for code in range(in_word)))) % (1 << 32)
    return {
        f"{name}.qweight": words(weight),
        f"{name}.qzeros": words(zeros),
        f"{name}.scales": torch.from_numpy(matrix.scales.T.copy()),
        f"{name}.g_idx": torch.from_numpy(matrix.groups.astype(np.int32)),
    }


def open_quantized(
    folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None
) -> StoredWeights:
    """The tensors and the configuration written to a folder, and opened; no model is asked for."""
    folder.mkdir(exist_ok=True)
    outer = {} if config is None else {"quantization_config": dict(config)}
    (folder / "config.json").write_text(json.dumps(outer))
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    stored, files = open_folder(folder)
    try:
        return StoredWeights(open_modules(stored, read_quantization(folder), folder.name), files)
    except BaseException:
        for file in files:
            file.close()
        raise
