"""Which files of a folder are read, of all that may lie in it."""

from __future__ import annotations

import pytest

from tokenmill.models.folder_layout import files_read

DESCRIBED = ["chat_template.jinja", "config.json", "tokenizer.json"]
LEFT = ["README.md", "modeling.py", "pytorch_model.bin", "original/model.safetensors", "2_Dense/config.json"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([*DESCRIBED, "model.safetensors", *LEFT], [*DESCRIBED, "model.safetensors"]),
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["weights.safetensors", "more.safetensors"], ["weights.safetensors", "more.safetensors"]),
        (["tokenizer.model", "m.safetensors"], ["tokenizer.model", "m.safetensors"]),
        (["tokenizer.model", "tokenizer.json", "m.safetensors"], ["tokenizer.json", "m.safetensors"]),
        (["1_Pooling/config.json", "m.safetensors"], ["1_Pooling/config.json", "m.safetensors"]),
        ([*DESCRIBED, *LEFT], []),
    ],
)
def test_the_files_that_are_read(names: list[str], expected: list[str]) -> None:
    assert files_read(names) == expected
