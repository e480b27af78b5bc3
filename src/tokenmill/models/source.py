"""Opens a model: a GGUF file, or a folder in Hugging Face layout. Headers only; weights come later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.core.errors import ModelFileError
from tokenmill.models.gguf_config import read_family, spec_of
from tokenmill.models.gguf_parts import model_name, open_parts
from tokenmill.models.gguf_weights import stored_tensors
from tokenmill.models.hf_config import read_config, spec_from
from tokenmill.models.pooling_files import read_pooling
from tokenmill.models.quantized.config import read_quantization
from tokenmill.models.quantized.modules import open_modules
from tokenmill.models.safetensors_file import open_folder
from tokenmill.models.safetensors_names import canonical_tensors, plain_tensors
from tokenmill.models.spec import ModelSpec
from tokenmill.models.stored_weights import StoredWeights, select
from tokenmill.models.tokenizer_files import TokenizerFiles
from tokenmill.models.weights import WeightFile


@dataclass(frozen=True)
class ModelSource:
    """A model whose headers agree with each other. Whoever opens it closes `weights`.

    Attributes:
        name: the file's name without its ending (and the number of its part), or the folder's.
    """

    name: str
    path: Path
    spec: ModelSpec
    weights: WeightFile
    tokenizer_files: TokenizerFiles


def open_model(path: Path) -> ModelSource:
    """Reads every header of a model and checks them against its configuration.

    Raises:
        ModelFileError: nothing there, an unsupported architecture or format, a missing or wrongly shaped
            tensor, or a header that contradicts itself or its file's size.
    """
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> ModelSource:
    if path.suffix == ".safetensors":
        raise ModelFileError(f"{path.name}: give the folder that holds it and its config.json")
    header, files = open_parts(path)
    try:
        family = read_family(header, path.name)
        spec = spec_of(header, family, path.name)
        tensors = select(spec, stored_tensors(header, family, spec), path.name)
    except BaseException:
        for file in files:
            file.close()
        raise
    tokenizer = TokenizerFiles(gguf=header.metadata)
    return ModelSource(model_name(path), path, spec, StoredWeights(tensors, files), tokenizer)


def _open_folder(folder: Path) -> ModelSource:
    if not (folder / "config.json").exists():
        raise ModelFileError(
            f"{folder.name}: no config.json; a model is a folder with config.json and *.safetensors files, "
            "or a .gguf file"
        )
    listed, files = open_folder(folder)
    try:
        config = read_config(folder)
        opened = open_modules(listed, read_quantization(folder), folder.name)
        plain = plain_tensors(opened, config.family, folder.name)
        spec = spec_from(config, has_lm_head="lm_head.weight" in plain)
        spec = replace(spec, pooling=read_pooling(folder))
        tensors = select(spec, canonical_tensors(plain, spec, folder.name), folder.name)
    except BaseException:
        for file in files:
            file.close()
        raise
    tokenizer = TokenizerFiles(folder=folder)
    return ModelSource(folder.resolve().name, folder, spec, StoredWeights(tensors, files), tokenizer)
