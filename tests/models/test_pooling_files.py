"""What folders say about embeddings, in the older and the newer words of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.model_files import write_folder
from tokenmill.core.errors import ModelFileError
from tokenmill.core.request import Pooling
from tokenmill.models.pooling_files import read_pooling
from tokenmill.models.source import open_model

OLDER = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": False,
    "include_prompt": True,
}
PLAIN = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]


def write(folder: Path, config: object, modules: list[str] | None = None) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    if modules is not None:
        listed = [{"idx": at, "name": str(at), "path": "", "type": kind} for at, kind in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({**OLDER, "pooling_mode_mean_tokens": True}, "mean"),
        ({**OLDER, "pooling_mode_lasttoken": True}, "last"),
        ({**OLDER, "pooling_mode_cls_token": True}, None),
        ({**OLDER, "pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, None),
        (OLDER, None),
        ({"embedding_dimension": 32, "pooling_mode": "mean"}, "mean"),
        ({"embedding_dimension": 32, "pooling_mode": "lasttoken"}, "last"),
        ({"embedding_dimension": 32, "pooling_mode": "max"}, None),
    ],
)
def test_modes(tmp_path: Path, config: dict[str, object], pooling: Pooling | None) -> None:
    assert read_pooling(write(tmp_path, config)) == pooling


@pytest.mark.parametrize(
    ("modules", "pooling"),
    [
        (PLAIN, "mean"),
        ([*PLAIN, "sentence_transformers.models.Normalize"], "mean"),
        (["sentence_transformers.base.models.Transformer", "a.b.Pooling"], "mean"),
        ([*PLAIN, "sentence_transformers.models.Dense", "sentence_transformers.models.Normalize"], None),
    ],
)
def test_layers_behind_the_pooling_are_not_left_out_in_silence(
    tmp_path: Path, modules: list[str], pooling: Pooling | None
) -> None:
    assert read_pooling(write(tmp_path, {"pooling_mode": "mean"}, modules)) == pooling


def test_other_folders_say_nothing(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize("modules", ["{", "5", '["a"]', '[{"idx": 0}]', "[" * 100_000])
def test_a_broken_list_of_modules_is_refused(tmp_path: Path, modules: str) -> None:
    write(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ModelFileError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_mode_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="pooling_mode"):
        read_pooling(write(tmp_path, {"pooling_mode": 3}))


def test_an_opened_folder_knows_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    write(folder, {"pooling_mode": "lasttoken"}, PLAIN)
    source = open_model(folder)
    source.weights.close()
    assert source.spec.pooling == "last"
