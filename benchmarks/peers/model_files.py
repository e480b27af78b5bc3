"""One model in the forms the engines take. Each is written once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.environments import say
from benchmarks.peers.folder import write_folder
from benchmarks.peers.shape import write_qwen3_shape
from tokenmill.core.home import default_home
from tokenmill.models.catalogue import DEFAULT_MODEL
from tokenmill.models.pull import resolve


def _published() -> Path:
    return resolve(DEFAULT_MODEL, home=default_home(), progress=lambda _: None)


def _catalogue(folder: Path) -> Path:
    return _published()


def _qwen3_shape(folder: Path) -> Path:
    path = folder / "q4_1.gguf"
    if not path.exists():
        say(f"writing {path}")
        write_qwen3_shape(path, tokenizer_of=_published())
    return path


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "smollm2-135m": _catalogue,
    "qwen3-0.6b-shape": _qwen3_shape,
}


class ModelFiles:
    """The files of a model of `MODELS`. `folder` holds what is made of the published one."""

    def __init__(self, home: Path, model: str) -> None:
        self.folder = home / "models" / model
        self._find = MODELS[model]

    def published(self) -> Path:
        """The GGUF file users have: Q4_1."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._find(self.folder)

    def bfloat16_folder(self) -> Path:
        """The same numbers as a folder in Hugging Face layout, in BF16."""
        folder = self.folder / "bf16"
        if not folder.exists():
            say(f"writing {folder}")
            write_folder(self.published(), folder)
        return folder
