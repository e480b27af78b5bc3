"""Small tokenizers trained on the spot, and what a GGUF file would hold of them."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support.texts import texts

CORPUS = texts(1, 600) + ["the cat sat on the mat because it was tired"] * 50
END = "<|endoftext|>"


def byte_level() -> Tokenizer:
    """A byte-level tokenizer with GPT-2's rule; 700 tokens, the first of them `END`."""
    return Tokenizer.from_str(_byte_level())


@functools.cache
def _byte_level() -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend.to_str()


def byte_level_metadata(trained: Tokenizer) -> dict[str, Any]:
    tokens, merges = _vocabulary(trained)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.token_type": [3 if token == END else 1 for token in tokens],
        "tokenizer.ggml.pre": "gpt-2",
    }


def sentencepiece() -> Tokenizer:
    """As Llama 2's tokenizer.json is built: marked spaces, no splitting, bytes for unknown characters."""
    return Tokenizer.from_str(_sentencepiece())


@functools.cache
def _sentencepiece() -> str:
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, show_progress=False, limit_alphabet=150
    )
    backend.train_from_iterator(CORPUS, trainer)
    # The trainer marks the byte tokens special as well; the real ones are ordinary tokens.
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return json.dumps(state)


def sentencepiece_metadata(trained: Tokenizer) -> dict[str, Any]:
    """Scores as SentencePiece writes them: the negative rank of the merge that makes the token."""
    tokens, merges = _vocabulary(trained)
    made = {left + right: -float(rank) for rank, (left, right) in reversed(list(enumerate(merges)))}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [made.get(token, -1e6) for token in tokens],
        "tokenizer.ggml.token_type": [6 if 3 <= i < 259 else kinds.get(t, 1) for i, t in enumerate(tokens)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def gemma_metadata() -> dict[str, Any]:
    """As Gemma's files: no space before the text, tokens of newlines and of spaces, tokens of its turns."""
    metadata = sentencepiece_metadata(sentencepiece()) | {"tokenizer.ggml.add_space_prefix": False}
    whole = ["\n" * count for count in range(1, 8)] + [" " * count for count in range(2, 8)] + ["<table>"]
    add_tokens(metadata, dict.fromkeys(whole, 4) | {"<start_of_turn>": 3, "<end_of_turn>": 3})
    return metadata


def add_tokens(metadata: dict[str, Any], tokens: Mapping[str, int]) -> None:
    """Appends tokens (text: type); one that is there already only changes its type."""
    known, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    for token, kind in tokens.items():
        if token in known:
            kinds[known.index(token)] = kind
            continue
        known.append(token)
        kinds.append(kind)
        if "tokenizer.ggml.scores" in metadata:
            metadata["tokenizer.ggml.scores"].append(-1000.0)


def _vocabulary(trained: Tokenizer) -> tuple[list[str], list[list[str]]]:
    model = json.loads(trained.to_str())["model"]
    return [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])], model["merges"]


def write_gguf(path: Path, metadata: Mapping[str, Any], architecture: str = "llama") -> None:
    """A file of this metadata and no tensors, by the gguf package's writer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sentencepiece_ids(metadata: Mapping[str, Any], text: str) -> list[int]:
    """What SentencePiece does, written down plainly: of all neighbours, join those whose result scores
    highest, the leftmost first; what is left and no token becomes bytes. Control tokens must not occur."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    numbers = {token: number for number, token in enumerate(tokens)}
    normal = {token: scores[n] for token, n in numbers.items() if kinds[n] == 1}
    whole = sorted((t for t, kind in zip(tokens, kinds, strict=True) if kind == 4), key=len, reverse=True)
    ids: list[int] = []
    for piece, found in _cut(text, whole):
        if found:
            ids.append(numbers[piece])
            continue
        prefix = "▁" if metadata.get("tokenizer.ggml.add_space_prefix", True) else ""
        symbols = list(prefix + piece.replace(" ", "▁"))
        while True:
            joined = enumerate(map("".join, itertools.pairwise(symbols)))
            pairs = [(-normal[both], at) for at, both in joined if both in normal]
            if not pairs:
                break
            _, at = min(pairs)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            if symbol in normal:
                ids.append(numbers[symbol])
            else:
                ids += [numbers[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return ids


def _cut(text: str, whole: list[str]) -> list[tuple[str, bool]]:
    """The text as (piece, whether it is one of `whole`); the longest is taken at every place."""
    pieces: list[tuple[str, bool]] = []
    start = at = 0
    while at < len(text):
        token = next((token for token in whole if text.startswith(token, at)), None)
        if token is None:
            at += 1
            continue
        if start < at:
            pieces.append((text[start:at], False))
        pieces.append((token, True))
        start = at = at + len(token)
    if start < at:
        pieces.append((text[start:], False))
    return pieces


def declared(content: str, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens_decoder`."""
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **plain, **flags}


def added(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, **flags})
