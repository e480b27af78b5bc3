"""One set of settings out of four sources: flag, environment, YAML, default, in falling precedence."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tokenmill.core.errors import ConfigError
from tokenmill.core.flag_rules import Table, build, nearest
from tokenmill.core.flags import ALIASES, ModelFlags, ServerFlags, SloTargets

PREFIX = "TOKENMILL_"

# Variables that are not flags. Every TOKENMILL_ name the program reads is here or in the flag table.
OTHER_VARIABLES: Mapping[str, str] = {
    "TOKENMILL_CONFIG": "YAML file to read, as with --config.",
    "TOKENMILL_MODEL": "Model to run, where none is named on the command line.",
    "TOKENMILL_HOME": "Folder for models and native code; default: tokenmill in $XDG_CACHE_HOME or ~/.cache.",
    "TOKENMILL_CPU_ISA": "Instruction set of native code: avx512-bf16, avx512-vnni, avx2-vnni, avx2, "
    "portable, or none for no native code; default: the best this CPU has.",
    "TOKENMILL_NATIVE_SANITIZE": "1 compiles native code with checks of addresses and undefined behaviour.",
    "TOKENMILL_DEBUG": "1 shows the traceback of an error.",
    "TOKENMILL_TEST_MODEL": "Model file the test suite uses.",
}

MODEL_KEYS = frozenset(ModelFlags.model_fields)
SERVER_KEYS = frozenset(ServerFlags.model_fields)


@dataclass(frozen=True)
class Settings:
    """What a command was told. `model` is empty where no source names one."""

    model: str
    engine: ModelFlags
    server: ServerFlags
    slo: SloTargets


@dataclass(frozen=True)
class Value:
    """A value and where it came from, as the user would write it."""

    value: object
    source: str


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], *, path: Path | None = None
) -> Settings:
    """Merges all sources.

    Args:
        flags: given on the command line, by field name; `model` may be among them.
        environ: the environment.
        path: `--config`; else TOKENMILL_CONFIG is read.

    Raises:
        ConfigError: an unknown name, a value outside its rule, or a file that cannot be read.
    """
    variables = from_environment(environ)
    if path is None and "TOKENMILL_CONFIG" in environ:
        path = Path(environ["TOKENMILL_CONFIG"])
    merged = from_yaml(path) if path is not None else {}
    merged |= variables
    merged |= {name: Value(value, flag_name(name)) for name, value in flags.items()}
    model = merged.pop("model", None)
    return Settings(
        "" if model is None else _text(model),
        _table(ModelFlags, merged),
        _table(ServerFlags, merged),
        _table(SloTargets, merged),
    )


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """The flags among TOKENMILL_ variables.

    Raises:
        ConfigError: a TOKENMILL_ variable nobody reads.
    """
    flags = {PREFIX + name.upper(): name for name in MODEL_KEYS | SERVER_KEYS}
    flags |= {PREFIX + alias.upper(): name for alias, name in ALIASES.items()}
    found: dict[str, Value] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        if variable in flags:
            found[flags[variable]] = Value(environ[variable], variable)
        elif variable not in OTHER_VARIABLES:
            close = nearest(variable, [*flags, *OTHER_VARIABLES])
            raise ConfigError(f"unknown environment variable {variable}; did you mean {close}?")
    if "TOKENMILL_MODEL" in environ:
        found["model"] = Value(environ["TOKENMILL_MODEL"], "TOKENMILL_MODEL")
    return found


def from_yaml(path: Path) -> dict[str, Value]:
    """The values of a configuration file: server keys, one entry under `models`, and `slo`.

    Raises:
        ConfigError: the file cannot be read, is not such a file, or holds an unknown key.
    """
    document = _mapping(_read(path), str(path))
    found = _known(document, {*SERVER_KEYS, "models", "slo"}, str(path))
    models = document.get("models")
    if models is not None:
        if not isinstance(models, list) or not models:
            raise ConfigError(f"{path}: models must be a list with one entry")
        if len(models) > 1:
            raise ConfigError(
                f"{path}: models has {len(models)} entries; several models are not supported yet"
            )
        where = f"{path}: models[0]"
        entry = _mapping(models[0], where)
        found |= _known(entry, {*MODEL_KEYS, "model", *ALIASES}, where)
    if document.get("slo") is not None:
        where = f"{path}: slo"
        found |= _known(_mapping(document["slo"], where), set(SloTargets.model_fields), where)
    return {ALIASES.get(name, name): value for name, value in found.items() if name not in ("models", "slo")}


def _known(mapping: Mapping[object, object], known: Iterable[str], where: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key, value in mapping.items():
        if not isinstance(key, str) or key not in known:
            raise ConfigError(f"{where}: unknown key {key}; {_advice(str(key), known, where)}")
        found[key] = Value(value, f"{where}: {key}")
    return found


def _advice(key: str, known: Iterable[str], where: str) -> str:
    if key in MODEL_KEYS and "models[" not in where:
        return "it belongs to the entry under models"
    if key in SERVER_KEYS:
        return "it belongs at the top level"
    return f"did you mean {nearest(key, known)}?"


def _read(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise ConfigError(f"{path}: it nests values too deep") from None
    except ValueError:  # a date that does not exist, a number too long
        raise ConfigError(f"{path}: it holds a value that cannot be read") from None
    except yaml.YAMLError as error:
        # The error's own text quotes the file, which may hold a key.
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: {getattr(error, 'problem', None) or 'not YAML'}") from None


class _Loader(yaml.SafeLoader):
    """Refuses a key written twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key} is written twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _mapping(value: object, where: str) -> Mapping[object, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of keys to values")
    return value


def _text(model: Value) -> str:
    if not isinstance(model.value, str) or not model.value:
        raise ConfigError(f"{model.source}: must be a catalogue name, a path or a hub id")
    return model.value


def _table(table: type[Table], merged: Mapping[str, Value]) -> Table:
    mine = {name: merged[name] for name in table.model_fields if name in merged}
    return build(
        table,
        {name: found.value for name, found in mine.items()},
        {name: found.source for name, found in mine.items()},
    )
