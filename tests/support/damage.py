"""Damages small models in seeded ways and opens them to the end: `python -m support.damage KIND SEED ROUNDS`.

It runs in a process of its own, whose address space is bounded. A damaged model is read, or refused with a
ModelFileError; whatever else comes out is printed as a fault. The one line of output is a JSON object.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from support.model_files import (
    ARRAY,
    F32,
    HIDDEN,
    LLAMA_CONFIG,
    STRING,
    U32,
    Array,
    gguf_tensors,
    hf_tensors,
    write_folder,
    write_gguf,
)
from support.packers import awq, random_codes
from support.small_tokenizers import byte_level, byte_level_metadata
from tokenmill.core.errors import GenerationFailed, InvalidRequest, ModelFileError
from tokenmill.models.chat import load_chat_template
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import load_tokenizer

# Beyond what the process takes before the first model.
MEMORY_BYTES = 1 << 30
VOCAB = 700
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}{{ tools | tojson }}"
MESSAGES = [{"role": "user", "content": "hello"}]


def read(model: Path) -> None:
    """Everything that serving reads of a model, and one prompt."""
    source = open_model(model)
    try:
        for name in source.weights.tensors:
            source.weights.load(name, torch.float32)
            source.weights.grouped(name)
    finally:
        source.weights.close()
    tokenizer = load_tokenizer(source.tokenizer_files, source.spec.vocab_size)
    template = load_chat_template(source.tokenizer_files, tokenizer.bos_token, tokenizer.eos_token)
    try:
        text = "hello" if template is None else template.render(MESSAGES)
        tokenizer.decode(tokenizer.encode(text, add_special=True))
    except (InvalidRequest, GenerationFailed):
        return  # such a request fails, and nothing else


def write_gguf_model(folder: Path) -> Path:
    stored = byte_level_metadata(byte_level())
    kinds = {str: STRING, int: U32, float: F32}
    metadata: dict[str, tuple[int, Any]] = {
        key: (ARRAY, value) if isinstance(value, list) else (kinds[type(value)], value)
        for key, value in stored.items()
    }
    metadata["tokenizer.chat_template"] = (STRING, TEMPLATE)
    metadata["llama.vocab_size"] = (U32, VOCAB)
    return write_gguf(
        folder / "model.gguf", _grown(gguf_tensors(), "token_embd.weight", "output.weight"), metadata
    )


def write_folder_model(folder: Path) -> Path:
    tensors = _grown(hf_tensors(), "model.embed_tokens.weight", "lm_head.weight")
    write_folder(folder, tensors, {"vocab_size": VOCAB})
    _write_tokenizer(folder)
    return folder


def write_shards(folder: Path) -> Path:
    """Two files and their index."""
    write_folder_model(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    index: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def write_awq_model(folder: Path) -> Path:
    write_folder_model(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "proj" in name]:
        rows, columns = tensors.pop(name).shape
        tensors |= awq(name.removesuffix(".weight"), random_codes(rows, columns, 32))
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    config = {**LLAMA_CONFIG, "vocab_size": VOCAB, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _grown(tensors: dict[str, Array], *names: str) -> dict[str, Array]:
    numbers = np.random.default_rng(1)
    return tensors | {name: numbers.standard_normal((VOCAB, HIDDEN)).astype(np.float32) for name in names}


def _write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": TEMPLATE})
    )


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "gguf": write_gguf_model,
    "folder": write_folder_model,
    "shards": write_shards,
    "awq": write_awq_model,
}

WORDS: tuple[bytes, ...] = (
    b"\xff" * 8,
    b"\xff" * 7 + b"\x7f",
    b"\x00" * 7 + b"\x80",
    b"\x00" * 8,
    (1 << 32).to_bytes(8, "little"),
    (10**9).to_bytes(8, "little"),
    b"\x01" + b"\x00" * 7,
)
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63, 10**400, 1e308, 0.5, "", "x", [], {}, [[]], {"a": {}}),
    *("../../../etc/passwd", "/dev/zero", "a\0b", "\ud800", "x" * 100_000, ["a"] * 50_000, [1] * 50_000),
    *({"type": "Sequence", "pretokenizers": []}, {"type": "Nonsense"}, "(a+)+$", "(" * 2_000, "[^", "\\p{X}"),
    *({"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b" * 100}, "{{ 1 }}", "{% for %}"),
    *("{% for a in range(10**9) %}{% endfor %}", "{{ ''.__class__.__mro__ }}", "{{ 'x' * 10**9 }}"),
)


def damage_bytes(data: bytes, chance: random.Random) -> bytes:
    """Most often near the beginning, where headers are."""
    end = min(len(data), 1 << chance.randint(3, 18))
    at = chance.randrange(end)
    match chance.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 2:
            return data[:at] + chance.choice(WORDS) + data[at + 8 :]
        case 3:
            return data[:at] + chance.randbytes(chance.randint(1, 9)) + data[at:]
        case 4:
            return data[:at] + data[at + chance.randint(1, 64) :]
        case _:
            piece = data[at : at + chance.randint(1, 512)]
            other = chance.randrange(end)
            return data[:other] + piece + data[other + len(piece) :]


def damage_json(text: str, chance: random.Random) -> str:
    """A value of it replaced, removed, repeated or buried; now and then the text itself damaged."""
    if chance.randrange(5) == 0:
        return damage_bytes(text.encode(), chance).decode("utf-8", "surrogateescape")
    value = json.loads(text)
    holders: list[Any] = [value]
    for holder in holders:
        inner = holder.values() if isinstance(holder, dict) else holder
        holders += [item for item in list(inner)[:200] if isinstance(item, (dict, list)) and item]
    holder = chance.choice(holders)
    key: Any = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1:
            deep: Any = holder[key]
            for _ in range(chance.choice((10, 200, 900))):
                deep = [deep] if chance.randrange(2) else {"type": deep}
            holder[key] = deep
        case 2 if isinstance(holder, dict):
            holder[chance.choice(("../x", "a\0b", "", "x" * 10_000, "added_tokens", "model"))] = holder[key]
        case _:
            holder[key] = chance.choice(ODD)
    return json.dumps(value)


def damage(model: Path, chance: random.Random) -> None:
    """Damages one file of the model; of a folder, JSON as JSON."""
    files = [model] if model.is_file() else sorted(model.iterdir())
    file = chance.choice(files)
    if file.suffix == ".json":
        text = damage_json(file.read_text(), chance)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    elif chance.randrange(3) == 0 and file.suffix == ".safetensors":
        file.write_bytes(damage_header(file.read_bytes(), chance))
    else:
        file.write_bytes(damage_bytes(file.read_bytes(), chance))


def damage_header(data: bytes, chance: random.Random) -> bytes:
    """A safetensors file whose header is damaged as JSON and whose length of it fits."""
    size = int.from_bytes(data[:8], "little")
    header = damage_json(data[8 : 8 + size].decode(), chance).encode("utf-8", "surrogateescape")
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def main(kind: str, seed: int, rounds: int) -> dict[str, Any]:
    """Counts of what became of so many damaged models, the slowest of them in seconds, and all faults."""
    counts = {"read": 0, "refused": 0}
    faults: list[str] = []
    slowest, torn = 0.0, ""
    with tempfile.TemporaryDirectory() as place:
        whole = KINDS[kind](Path(place))
        read(whole)
        _bound_memory()
        for number in range(rounds):
            chance = random.Random(f"{kind} {seed} {number}")
            with tempfile.TemporaryDirectory() as other:
                copy = Path(other) / whole.name
                (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, copy)
                damage(copy, chance)
                began = time.process_time()
                try:
                    read(copy)
                    counts["read"] += 1
                except ModelFileError as refusal:
                    counts["refused"] += 1
                    if (
                        len(refusal.message) > 1000
                        or place in refusal.message
                        or not refusal.message.isprintable()
                    ):
                        faults.append(f"round {number}: it is refused with {refusal.message[:2000]!r}")
                except BaseException:  # a panic of a library in Rust is no Exception
                    faults.append(f"round {number}: {traceback.format_exc()[-1500:]}")
                if (took := time.process_time() - began) > slowest:
                    slowest, torn = took, f"round {number}"
    return {**counts, "faults": faults, "slowest_s": slowest, "slowest": torn}


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) + "\n")
