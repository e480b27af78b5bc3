"""Tensors of a Hugging Face folder by canonical name: renamed, or cut out of fused and stacked ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import Family
from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.stored_weights import Stored, StoredTensor

# Where a model that also sees pictures keeps its language model.
_OUTER = (("language_model.", ""), ("model.language_model.", "model."))
# Names in a file that was saved without an output head.
_HEADLESS = re.compile(r"(layers\.\d|embed_tokens\.|norm\.)", re.ASCII)

# A tensor cut out of another: its canonical name without prefix, and how many rows it has.
_Part = tuple[str, int]


def plain_tensors(stored: Mapping[str, Stored], family: Family, label: str) -> dict[str, Stored]:
    """The tensors without what a family or a model around the language model adds to their names, and norm
    weights as the factors they are.

    Args:
        label: the folder's name, for messages.

    Raises:
        ModelFileError: two tensors come to have one name.
    """
    tensors: dict[str, Stored] = {}
    for given, tensor in stored.items():
        name = _plain_name(given, family)
        if name in tensors:
            raise ModelFileError(f"{label}: two tensors are called {name}, one of them as {given}")
        if family.norm_offset and name.endswith("norm.weight") and isinstance(tensor, StoredTensor):
            tensor = replace(tensor, plus=family.norm_offset)
        tensors[name] = tensor
    return tensors


def canonical_tensors(plain: Mapping[str, Stored], spec: ModelSpec, label: str) -> dict[str, Stored]:
    """The tensors, and those that are rows of fused or stacked ones.

    Raises:
        ModelFileError: a fused or stacked tensor has another number of rows than its parts.
    """
    tensors = dict(plain)
    for number, layer in enumerate(spec.layers):
        prefix = f"model.layers.{number}."
        for fused, parts in _fused(layer, spec.hidden):
            if prefix + fused in plain:
                tensors.update(_cut(plain[prefix + fused], prefix, parts, label))
    return tensors


def _plain_name(name: str, family: Family) -> str:
    for outer, inner in _OUTER:
        if name.startswith(outer):
            name = inner + name.removeprefix(outer)
            break
    if _HEADLESS.match(name):
        name = "model." + name
    for part, canonical in family.renamed:
        name = name.replace(part, canonical)
    return name


def _fused(layer: LayerSpec, hidden: int) -> Iterator[tuple[str, Sequence[_Part]]]:
    """Names of tensors that may stand for several, and the parts each is made of, in order."""
    q, kv, inner = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.intermediate
    for kind in ("weight", "bias"):
        qkv = zip(("q", "k", "v"), (q, kv, kv), strict=True)
        yield (
            f"self_attn.qkv_proj.{kind}",
            [(f"self_attn.{name}_proj.{kind}", rows) for name, rows in qkv],
        )
        yield (
            f"mlp.gate_up_proj.{kind}",
            [(f"mlp.{name}_proj.{kind}", inner) for name in ("gate", "up")],
        )
    if layer.experts is not None:
        at = [f"mlp.experts.{number}." for number in range(layer.experts.count)]
        yield (
            "mlp.experts.gate_up_proj",
            [(f"{expert}{name}_proj.weight", inner) for expert in at for name in ("gate", "up")],
        )
        yield "mlp.experts.down_proj", [(f"{expert}down_proj.weight", hidden) for expert in at]


def _cut(fused: Stored, prefix: str, parts: Sequence[_Part], label: str) -> Iterator[tuple[str, Stored]]:
    shape = fused.info.shape
    rows = math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)
    wanted = sum(count for _, count in parts)
    if rows != wanted:
        raise ModelFileError(
            f"{label}: tensor {fused.info.name} has shape {list(shape)}, "
            f"the configuration asks for {wanted} rows"
        )
    start = 0
    for name, count in parts:
        yield prefix + name, fused.rows(prefix + name, start, count)
        start += count
