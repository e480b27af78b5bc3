"""Packing a model for native kernels: what it is held against, what is refused, and what is kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokenmill.engine.native_weights as native_weights
import tokenmill.engine.self_test as self_test
from support.tiny_models import KINDS, save_tiny, save_tokenizer
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags
from tokenmill.engine.load import LoadedModel, load_model
from tokenmill.kernels.cpu.pack import pack_named
from tokenmill.kernels.cpu.pack_cache import PackCache
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.step import Step
from tokenmill.models.source import open_model

FLAGS: dict[str, Any] = {"max_num_seqs": 4, "num_kv_blocks": 16, "max_model_len": 128, "block_size": 16}


def encode(text: str) -> Sequence[int]:
    return [3 + byte % 90 for byte in text.encode()]


def load(folder: Path, **flags: Any) -> LoadedModel:
    made = ModelFlags.model_validate({**FLAGS, **flags})
    return load_model(open_model(folder), made, lambda _phase, _bytes: None, encode)


def prompt(tokens: int) -> Step:
    rank = np.arange(tokens, dtype=np.int64)
    ends = np.array([0, tokens], dtype=np.int64)
    return Step(5 + rank, rank, rank, ends, ends[1:], np.arange(8, dtype=np.int64)[None], rank)


def divergence(reference: torch.Tensor, found: torch.Tensor) -> float:
    before, after = (torch.log_softmax(logits.double(), dim=-1) for logits in (reference, found))
    return float((before.exp() * (before - after)).sum(dim=-1).mean())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, and a home of its own."""
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    made = tmp_path / "model"
    made.mkdir()
    save_tiny("llama", made)
    save_tokenizer(made)
    return made


@pytest.mark.parametrize("quantization", ["auto", "int8", "none"])
@pytest.mark.parametrize("kv", ["int8", "bf16"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_model_answers_as_in_float(
    kind: str, quantization: str, kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    made = tmp_path / "model"
    made.mkdir()
    save_tiny(kind, made, initializer_range=0.05)
    reference = load(made, dtype="float32", kv_cache_dtype="float32").program.run(prompt(40)).logits
    loaded = load(made, quantization=quantization, kv_cache_dtype=kv)
    assert loaded.kernels != "torch"
    assert loaded.matrices == quantization
    assert divergence(reference, loaded.program.run(prompt(40)).logits) < 0.01


def test_a_second_start_takes_what_the_first_one_packed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(folder).program.run(prompt(20)).logits

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(native_weights, "pack_named", fail)
    assert torch.equal(load(folder).program.run(prompt(20)).logits, first)


def damaged(pack: Any) -> Any:
    """Packs, and makes one scale of one matrix eight times too large."""

    def pack_badly(weights: Any, names: Sequence[str], wanted: str, **more: Any) -> list[PackedMatrix]:
        found: list[PackedMatrix] = pack(weights, names, wanted, **more)
        shape = found[0].shape
        if names[0].endswith("layers.1.mlp.down_proj.weight") and shape.format.scaled:
            scales = found[0].data[:1, shape.code_bytes : shape.code_bytes + 2].view(torch.float16)
            scales *= 8
        return found

    return pack_badly


def test_a_damaged_scale_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_weights, "pack_named", damaged(pack_named))
    with pytest.raises(ConfigError, match=r"int8 is refused.*down_proj.*dB"):
        load(folder, quantization="int8")


def test_auto_falls_back_to_bfloat16_and_remembers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack_named
    monkeypatch.setattr(native_weights, "pack_named", damaged(whole))
    assert load(folder).matrices == "none"
    monkeypatch.setattr(native_weights, "pack_named", whole)
    assert load(folder).matrices == "none"


def test_a_model_that_answers_otherwise_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(self_test.GATES, "int8", 1e-12)
    with pytest.raises(ConfigError, match=r"int8 is refused.*KL 0\.\d+ nats"):
        load(folder, quantization="int8")


def test_what_is_damaged_on_disk_is_packed_again(folder: Path, tmp_path: Path) -> None:
    first = load(folder).program.run(prompt(20)).logits
    (kept,) = (tmp_path / "home" / "packed").glob("*.packed")
    content = bytearray(kept.read_bytes())
    content[-5000] ^= 1
    kept.write_bytes(content)
    assert torch.equal(load(folder).program.run(prompt(20)).logits, first)


def test_a_home_that_cannot_be_written_is_no_obstacle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackCache, "store", lambda *_: False)
    assert load(folder).kernels != "torch"


def test_native_flags_without_native_kernels_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "none")
    with pytest.raises(ConfigError, match="quantization=int8 needs native kernels"):
        load(folder, quantization="int8")
    with pytest.raises(ConfigError, match="kv_cache_dtype=int8 needs native kernels"):
        load(folder, kv_cache_dtype="int8")
    assert load(folder).kernels == "torch"


def test_no_compiler_is_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenmill.kernels.cpu.library import step_library

    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    step_library.cache_clear()
    try:
        assert load(folder).kernels == "torch"
    finally:
        step_library.cache_clear()
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "install one, with apt-get install g++" in warning.getMessage()


@pytest.mark.parametrize(("head_dim", "native"), [(512, True), (514, False)])
def test_heads_too_large_for_the_kernels_run_on_torch(
    head_dim: int, native: bool, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny("llama", folder, head_dim=head_dim, num_hidden_layers=1, initializer_range=0.02)
    loaded = load(folder)
    assert (loaded.kernels != "torch") is native
    assert loaded.program.run(prompt(20)).logits.isfinite().all()
    warned = [r.getMessage() for r in caplog.records if "native kernels are not used" in r.getMessage()]
    assert [f"heads of {head_dim} numbers" in text for text in warned] == ([] if native else [True])
