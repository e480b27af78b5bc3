"""Opening a model: what it offers, what it refuses, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from support.model_files import HIDDEN, VOCAB, gguf_tensors, hf_tensors, write_folder, write_gguf
from tokenmill.core.errors import ModelFileError
from tokenmill.models.formats import nbytes
from tokenmill.models.source import open_model
from tokenmill.models.spec import LayerSpec, RopeSpec


def test_a_gguf_file_and_a_folder_of_the_same_model_have_the_same_spec(tmp_path: Path) -> None:
    from_gguf = open_model(write_gguf(tmp_path / "small.Q4.gguf"))
    from_folder = open_model(write_folder(tmp_path / "small"))
    assert from_gguf.spec == from_folder.spec
    assert (from_gguf.name, from_folder.name) == ("small.Q4", "small")
    for source in (from_gguf, from_folder):
        wanted = {tensor.name: tensor.shape for tensor in source.spec.tensors()}
        assert {name: info.shape for name, info in source.weights.tensors.items()} == wanted
        source.weights.close()


def test_each_kind_says_where_its_tokenizer_is(tmp_path: Path) -> None:
    from_gguf = open_model(write_gguf(tmp_path / "small.gguf"))
    from_folder = open_model(write_folder(tmp_path / "small"))
    assert from_gguf.tokenizer_files.folder is None
    assert from_gguf.tokenizer_files.gguf is not None
    assert from_gguf.tokenizer_files.gguf["general.architecture"] == "llama"
    assert (from_folder.tokenizer_files.gguf, from_folder.tokenizer_files.folder) == (
        None,
        tmp_path / "small",
    )
    for source in (from_gguf, from_folder):
        source.weights.close()


def test_metadata_is_readable_after_the_file_is_closed(tmp_path: Path) -> None:
    source = open_model(write_gguf(tmp_path / "small.gguf", metadata={"words": (9, ["a", "b"])}))
    source.weights.close()
    assert source.tokenizer_files.gguf is not None
    assert source.tokenizer_files.gguf["words"] == ["a", "b"]


def test_a_folder_is_named_after_itself_also_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_folder(tmp_path / "small"))
    source = open_model(Path())
    assert source.name == "small"
    source.weights.close()


def test_tensors_the_model_has_no_use_for_are_left_out(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float64)}
    source = open_model(write_folder(tmp_path / "small", {**hf_tensors(), **extra}))
    assert not extra.keys() & source.weights.tensors.keys()
    source.weights.close()
    path = write_gguf(
        tmp_path / "small.gguf", {**gguf_tensors(), "blk.9.extra.weight": np.ones(8, np.float32)}
    )
    open_model(path).weights.close()


def test_a_head_next_to_tied_embeddings_is_left_out(tmp_path: Path) -> None:
    source = open_model(write_folder(tmp_path / "small", config={"tie_word_embeddings": True}))
    assert "lm_head.weight" not in source.weights.tensors
    source.weights.close()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(
        ModelFileError, match=r"^small.gguf: tensor model\.layers\.1\.mlp\.up_proj\.weight is missing$"
    ):
        open_model(write_gguf(tmp_path / "small.gguf", tensors))
    del tensors["blk.0.attn_q.weight"], tensors["output_norm.weight"]
    with pytest.raises(ModelFileError, match=r"tensor model\.layers\.0.self_attn.* and 2 more is missing$"):
        open_model(write_gguf(tmp_path / "small.gguf", tensors))
    del tensors["token_embd.weight"]
    with pytest.raises(ModelFileError, match=r"token_embd\.weight is missing"):
        open_model(write_gguf(tmp_path / "small.gguf", tensors))


@pytest.mark.parametrize(
    "shape", [(HIDDEN, VOCAB), (VOCAB, HIDDEN, 1), (VOCAB * HIDDEN,), (VOCAB + 1, HIDDEN)]
)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {**hf_tensors(), "lm_head.weight": np.zeros(shape, np.float32)}
    with pytest.raises(ModelFileError) as caught:
        open_model(write_folder(tmp_path / "small", tensors))
    assert str(caught.value) == (
        f"small: tensor lm_head.weight has shape {list(shape)}, "
        f"the configuration asks for [{VOCAB}, {HIDDEN}]"
    )


def test_a_needed_tensor_in_a_format_without_support_is_named(tmp_path: Path) -> None:
    tensors = {**hf_tensors(), "model.norm.weight": np.ones(HIDDEN, np.float64)}
    with pytest.raises(
        ModelFileError, match=r"model\.norm\.weight is in format F64; supported are F32, F16, BF16"
    ):
        open_model(write_folder(tmp_path / "small", tensors))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "gone.gguf", r"gone\.gguf: cannot be opened"),
        (lambda p: (p / "empty.gguf").touch() or p / "empty.gguf", "not a GGUF file"),
        (lambda p: (p / "m.safetensors").touch() or p / "m.safetensors", "give the folder that holds it"),
        (lambda p: (p / "none").mkdir() or p / "none", "none: no config.json; a model is a folder"),
    ],
    ids=["absent", "empty", "bare safetensors", "empty folder"],
)
def test_what_is_no_model_is_refused(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelFileError, match=message):
        open_model(make(tmp_path))


def open_files() -> list[Path]:
    """What this process's descriptors lead to. (The one that lists them is gone before it is read.)"""
    links = list(Path("/proc/self/fd").iterdir())
    return sorted(link.readlink() for link in links if link.is_symlink())


def test_a_refused_model_leaves_no_file_open(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    del tensors["output_norm.weight"]
    path = write_gguf(tmp_path / "small.gguf", tensors)
    folder = write_folder(tmp_path / "small", config={"hidden_act": "gelu"})
    before = open_files()
    for bad in (path, folder):
        with pytest.raises(ModelFileError):
            open_model(bad)
    assert open_files() == before


def test_closing_releases_descriptors_and_mappings(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    source = open_model(path)
    source.weights.load("model.norm.weight", torch.bfloat16)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert path in open_files()
    source.weights.close()
    source.weights.close()
    assert path not in open_files()
    with pytest.raises(ModelFileError, match=r"small\.gguf: closed"):
        source.weights.load("model.norm.weight", torch.bfloat16)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    source = open_model(write_gguf(tmp_path / "small.gguf"))
    with pytest.raises(ModelFileError, match=r"the model has no tensor output\.weight"):
        source.weights.load("output.weight", torch.float32)
    source.weights.close()


def test_loading_keeps_the_number_of_torch_threads(tmp_path: Path) -> None:
    source = open_model(write_gguf(tmp_path / "small.gguf"))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        source.weights.load("model.norm.weight", torch.float32)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
        source.weights.close()


def test_sharded_weights_load_from_their_shards(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(values) for name, values in hf_tensors().items()}
    folder = write_folder(tmp_path / "small")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    for part, chosen in (("1", names[:9]), ("2", names[9:])):
        safetensors.torch.save_file({n: tensors[n] for n in chosen}, folder / f"part{part}.safetensors")
    source = open_model(folder)
    for name in names:
        torch.testing.assert_close(source.weights.load(name, torch.float32), tensors[name], rtol=0, atol=0)
    assert source.weights.nbytes == sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    source.weights.close()


def test_opening_imports_no_heavy_library(tmp_path: Path) -> None:
    """Checked in a process of its own: this one has imported torch long ago."""
    paths = [write_gguf(tmp_path / "small.gguf"), write_folder(tmp_path / "small")]
    code = (
        "import sys; from pathlib import Path; from tokenmill.models.source import open_model\n"
        "for path in sys.argv[1:]: open_model(Path(path)).weights.close()\n"
        "heavy = {'torch', 'numpy', 'gguf', 'safetensors', 'transformers'} & set(sys.modules)\n"
        "sys.exit(','.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class TestRealModel:
    """The numbers of SmolLM2-135M's published config.json."""

    def test_its_spec(self, small_model_path: Path) -> None:
        source = open_model(small_model_path)
        spec = source.spec
        rope = RopeSpec(theta=100000.0, dim=64)
        layer = LayerSpec(heads=9, kv_heads=3, head_dim=64, intermediate=1536, scale=0.125, rope=rope)
        assert spec.layers == (layer,) * 30
        assert (spec.vocab_size, spec.hidden, spec.max_position) == (49152, 576, 8192)
        assert spec.norm_eps == 1e-5
        assert spec.tied_embeddings
        # <|im_end|> ends a turn, <|endoftext|> a text; <|im_start|> begins.
        assert (spec.bos_id, spec.eos_ids) == (1, (2, 0))
        assert sum(np.prod(tensor.shape) for tensor in spec.tensors()) == 134_515_008
        source.weights.close()

    def test_its_tensors_fill_the_file(self, small_model_path: Path) -> None:
        source = open_model(small_model_path)
        infos = source.weights.tensors.values()
        assert all(info.nbytes == nbytes(info.format, info.shape) for info in infos)
        assert {info.format for info in infos} == {"F32", "Q4_1", "Q8_0"}
        # The rest is the header: 1.8 MB of vocabulary and merges.
        assert source.weights.nbytes - sum(info.nbytes for info in infos) == pytest.approx(1.8e6, rel=0.05)
        source.weights.close()

    def test_its_headers_are_read_within_300_ms_of_cpu(self, small_model_path: Path) -> None:
        start = time.process_time()
        source = open_model(small_model_path)
        assert time.process_time() - start < 0.3
        source.weights.close()
        assert source.tokenizer_files.gguf is not None
        tokens = source.tokenizer_files.gguf["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert (len(tokens), tokens[:3]) == (49152, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])

    def test_all_its_weights_load_within_a_second_of_cpu(self, small_model_path: Path) -> None:
        source = open_model(small_model_path)
        start = time.process_time()
        for name in source.weights.tensors:
            values = source.weights.load(name, torch.bfloat16)
        assert time.process_time() - start < 1.0
        assert values.isfinite().all()
        source.weights.close()
