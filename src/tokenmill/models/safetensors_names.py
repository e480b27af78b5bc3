"""Tensors of a Hugging Face folder by canonical name: renamed, or cut out of fused and stacked ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import Family
from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.stored_weights import Stored, StoredTensor

# Where a model that also sees pictures keeps its language model.
_OUTER = (("language_model.", ""), ("model.language_model.", "model."))
# Names in a file that was saved without an output head.
_HEADLESS = re.compile(r"(layers\.\d|embed_tokens\.|norm\.)", re.ASCII)


@dataclass(frozen=True)
class _Fused:
    """A tensor that may stand for several.

    Attributes:
        name: without the layer's prefix, like those of the parts.
        parts: what it is made of, in order: canonical name and rows of each.
    """

    name: str
    shape: tuple[int, ...]
    parts: Sequence[tuple[str, int]]


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
        ModelFileError: a fused or stacked tensor has not the shape of its parts together.
    """
    tensors = dict(plain)
    for number, layer in enumerate(spec.layers):
        prefix = f"model.layers.{number}."
        for fused in _fused(layer, spec.hidden):
            if prefix + fused.name in plain:
                tensors.update(_cut(plain[prefix + fused.name], fused, prefix, label))
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


def _fused(layer: LayerSpec, hidden: int) -> Iterator[_Fused]:
    q, kv, inner = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.intermediate
    for kind, columns in (("weight", (hidden,)), ("bias", ())):
        qkv = zip(("q", "k", "v"), (q, kv, kv), strict=True)
        yield _Fused(
            f"self_attn.qkv_proj.{kind}",
            (q + 2 * kv, *columns),
            [(f"self_attn.{name}_proj.{kind}", rows) for name, rows in qkv],
        )
        yield _Fused(
            f"mlp.gate_up_proj.{kind}",
            (2 * inner, *columns),
            [(f"mlp.{name}_proj.{kind}", inner) for name in ("gate", "up")],
        )
    if layer.experts is not None:
        count = layer.experts.count
        at = [f"mlp.experts.{number}." for number in range(count)]
        yield _Fused(
            "mlp.experts.gate_up_proj",
            (count, 2 * inner, hidden),
            [(f"{expert}{name}_proj.weight", inner) for expert in at for name in ("gate", "up")],
        )
        yield _Fused(
            "mlp.experts.down_proj",
            (count, hidden, inner),
            [(f"{expert}down_proj.weight", hidden) for expert in at],
        )


def _cut(stored: Stored, fused: _Fused, prefix: str, label: str) -> Iterator[tuple[str, Stored]]:
    if stored.info.shape != fused.shape:
        raise ModelFileError(
            f"{label}: tensor {stored.info.name} has shape {list(stored.info.shape)}, "
            f"the configuration asks for {list(fused.shape)}"
        )
    start = 0
    for name, count in fused.parts:
        yield prefix + name, stored.rows(prefix + name, start, count)
        start += count
