"""Four sources, one precedence, and errors that name the key, the value, the rule and the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.cli.config import OTHER_VARIABLES, Settings, load_settings
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags, ServerFlags, SloTargets


def load(
    tmp_path: Path, *, yaml: str | None = None, env: dict[str, str] | None = None, **flags: object
) -> Settings:
    path = None
    if yaml is not None:
        path = tmp_path / "mill.yaml"
        path.write_text(yaml, encoding="utf-8")
    return load_settings(flags, env or {}, path=path)


def refusal(
    tmp_path: Path, *, yaml: str | None = None, env: dict[str, str] | None = None, **flags: object
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, yaml=yaml, env=env, **flags)
    return caught.value.message.replace(f"{tmp_path}/", "")


YAML = "port: 1111\nmodels:\n  - model: from-yaml\n    max_num_seqs: 11\n"
ENV = {"TOKENMILL_PORT": "2222", "TOKENMILL_MAX_NUM_SEQS": "22", "TOKENMILL_MODEL": "from-env"}


def test_nothing_said_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path) == Settings("", ModelFlags(), ServerFlags(), SloTargets())


def test_yaml_goes_before_defaults(tmp_path: Path) -> None:
    found = load(tmp_path, yaml=YAML)
    assert (found.model, found.server.port, found.engine.max_num_seqs) == ("from-yaml", 1111, 11)
    assert found.engine.block_size == 32


def test_environment_goes_before_yaml(tmp_path: Path) -> None:
    found = load(tmp_path, yaml=YAML, env=ENV)
    assert (found.model, found.server.port, found.engine.max_num_seqs) == ("from-env", 2222, 22)


def test_a_flag_goes_before_everything(tmp_path: Path) -> None:
    found = load(tmp_path, yaml=YAML, env=ENV, port="3333", max_num_seqs="33", model="from-flag")
    assert (found.model, found.server.port, found.engine.max_num_seqs) == ("from-flag", 3333, 33)


def test_config_may_be_named_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "mill.yaml"
    path.write_text(YAML, encoding="utf-8")
    assert load_settings({}, {"TOKENMILL_CONFIG": str(path)}).server.port == 1111


def test_the_flag_names_the_file_where_the_environment_names_another(tmp_path: Path) -> None:
    found = load(tmp_path, yaml=YAML, env={"TOKENMILL_CONFIG": "/nowhere.yaml"})
    assert found.server.port == 1111


@pytest.mark.parametrize("name", ["num_kv_blocks", "num_gpu_blocks_override"])
def test_a_foreign_name_works_in_every_source(tmp_path: Path, name: str) -> None:
    found = load(tmp_path, yaml=f"models: [{{model: m, {name}: 40}}]")
    assert found.engine.num_kv_blocks == 40
    found = load(tmp_path, env={f"TOKENMILL_{name.upper()}": "41"})
    assert found.engine.num_kv_blocks == 41


def test_slo_targets_are_kept(tmp_path: Path) -> None:
    found = load(tmp_path, yaml="slo: {ttft_p99_ms: 500, availability: 0.999}")
    assert found.slo == SloTargets(ttft_p99_ms=500.0, availability=0.999)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "models:\nslo:\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, yaml=text) == load(tmp_path)


@pytest.mark.parametrize("variable", sorted(OTHER_VARIABLES))
def test_variables_that_are_not_flags_are_known(tmp_path: Path, variable: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("", encoding="utf-8")
    load_settings({}, {variable: str(path)})


def test_other_programs_variables_are_their_business(tmp_path: Path) -> None:
    assert load(tmp_path, env={"TOKENMILLS": "x", "PATH": "y", "tokenmill_port": "z"}) == load(tmp_path)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("prot: 1", "mill.yaml: unknown key prot; did you mean port?"),
        ("max_model_len: 9", "mill.yaml: unknown key max_model_len; it belongs to the entry under models"),
        ("max-waiting: 9", "mill.yaml: unknown key max-waiting; did you mean max_waiting?"),
        (
            "models: [{model: m, blok_size: 16}]",
            "mill.yaml: models[0]: unknown key blok_size; did you mean block_size?",
        ),
        (
            "models: [{model: m, port: 1}]",
            "mill.yaml: models[0]: unknown key port; it belongs at the top level",
        ),
        ("slo: {ttft: 1}", "mill.yaml: slo: unknown key ttft; did you mean ttft_p99_ms?"),
    ],
)
def test_an_unknown_yaml_key_names_the_nearest(tmp_path: Path, yaml: str, message: str) -> None:
    assert refusal(tmp_path, yaml=yaml) == message


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("log_level: 2020-99-99", "mill.yaml: it holds a value that cannot be read"),
        ("port: " + "9" * 5000, "mill.yaml: it holds a value that cannot be read"),
        ("port: " + "[" * 5000, "mill.yaml: it nests values too deep"),
    ],
)
def test_yaml_its_reader_breaks_on_is_refused(tmp_path: Path, yaml: str, message: str) -> None:
    assert refusal(tmp_path, yaml=yaml) == message


def test_a_yaml_key_need_not_be_text(tmp_path: Path) -> None:
    assert refusal(tmp_path, yaml="17: x").startswith("mill.yaml: unknown key 17; did you mean ")


def test_an_unknown_variable_names_the_nearest(tmp_path: Path) -> None:
    assert refusal(tmp_path, env={"TOKENMILL_PROT": "1"}) == (
        "unknown environment variable TOKENMILL_PROT; did you mean TOKENMILL_PORT?"
    )
    assert "did you mean TOKENMILL_HOME?" in refusal(tmp_path, env={"TOKENMILL_HOMES": "1"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", "abc", "--port='abc': must be an integer from 0 to 65535"),
        ("port", "65536", "--port='65536': must be an integer from 0 to 65535"),
        ("dtype", "f16", "--dtype='f16': must be auto, float32 or bfloat16"),
        ("device", "cuda", "--device='cuda': must be cpu"),
        ("block_size", "17", "--block-size='17': must be 16, 32, 64 or 128"),
        (
            "tensor_parallel_size",
            "2",
            "--tensor-parallel-size='2': is not supported yet; only 1 works",
        ),
        ("max_model_len", "0", "--max-model-len='0': must be an integer of at least 1"),
        (
            "gpu_memory_utilization",
            "nan",
            "--gpu-memory-utilization='nan': must be a number above 0 and at most 0.95",
        ),
        (
            "kv_cache_memory_bytes",
            "lots",
            "--kv-cache-memory-bytes='lots': write a size as bytes or like 2GiB, 500MiB or 4G",
        ),
        ("drain_timeout", "-1", "--drain-timeout='-1': must be a number from 0 to 3600"),
    ],
)
def test_a_wrong_value_names_key_value_and_rule(name: str, value: str, message: str) -> None:
    given: dict[str, object] = {name: value}
    with pytest.raises(ConfigError) as caught:
        load_settings(given, {})
    assert caught.value.message == message


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    assert refusal(tmp_path, env={"TOKENMILL_PORT": ""}).startswith("TOKENMILL_PORT='': must be")
    assert refusal(tmp_path, yaml="port: [1]").startswith("mill.yaml: port=[1]: must be")
    assert refusal(tmp_path, yaml="models: [{dtype: f16}]").startswith(
        "mill.yaml: models[0]: dtype='f16': must"
    )
    assert refusal(tmp_path, yaml="slo: {availability: 2}") == (
        "mill.yaml: slo: availability=2: must be a number above 0 and at most 1"
    )


def test_true_is_not_the_number_one(tmp_path: Path) -> None:
    assert refusal(tmp_path, yaml="port: true") == (
        "mill.yaml: port=True: must be an integer from 0 to 65535"
    )
    assert refusal(tmp_path, yaml="models: [{enable_prefix_caching: 7}]").endswith(
        "=7: must be true or false"
    )


@pytest.mark.parametrize("text", ["false", "0", "off", "no"])
def test_a_switch_can_be_turned_off_in_the_environment(tmp_path: Path, text: str) -> None:
    found = load(tmp_path, env={"TOKENMILL_ENABLE_PREFIX_CACHING": text})
    assert found.engine.enable_prefix_caching is False


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("- a\n", "mill.yaml must be a mapping of keys to values"),
        ("models: m", "mill.yaml: models must be a list with one entry"),
        ("models: []", "mill.yaml: models must be a list with one entry"),
        ("models: [m]", "mill.yaml: models[0] must be a mapping of keys to values"),
        (
            "models: [{model: a}, {model: b}]",
            "mill.yaml: models has 2 entries; several models are not supported yet",
        ),
        ("models: [{model: 7}]", "mill.yaml: models[0]: model: must be a catalogue name, a path or a hub id"),
        ("port: 1\nport: 2\n", "mill.yaml, line 2: key port is written twice"),
        ("port: 1\n  host: x\n", "mill.yaml, line 2: mapping values are not allowed here"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, yaml: str, message: str) -> None:
    assert refusal(tmp_path, yaml=yaml) == message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone.yaml: No such file"):
        load_settings({}, {}, path=tmp_path / "gone.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_settings({}, {}, path=binary)


@pytest.mark.parametrize(
    "yaml",
    [
        "api_key: hush",
        "api_key: [hush-hush-hush]",
        "api_kye: hush-hush-hush",
        "api_key: hush-hush-hush\n  port: 1",
        "api_key: 'hush-hush-hush",
        "slo: {api_key: hush-hush-hush}",
        "models: [{api_key: hush-hush-hush}]",
    ],
)
def test_a_key_never_appears_in_an_error(tmp_path: Path, yaml: str) -> None:
    assert "hush" not in refusal(tmp_path, yaml=yaml)


def test_a_short_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    assert refusal(tmp_path, api_key="hush") == "--api-key: must be text of at least 8 characters"
    assert refusal(tmp_path, env={"TOKENMILL_API_KEY": "hush"}).startswith("TOKENMILL_API_KEY: must be")
