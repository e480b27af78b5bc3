"""Which instruction set native code is compiled for."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.hardware.isa import ISAS, VARIABLE, choose_isa, this_isa

# As /proc/cpuinfo of such processors names them.
HASWELL = frozenset({"fma", "f16c", "avx", "avx2"})
ALDER_LAKE = HASWELL | {"avx_vnni"}
ICE_LAKE = HASWELL | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
ZEN_4 = ICE_LAKE | {"avx512_bf16"}
SKYLAKE_SERVER = ICE_LAKE - {"avx512_vnni"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (ZEN_4, "avx512-bf16"),
        (ICE_LAKE, "avx512-vnni"),
        (SKYLAKE_SERVER, "avx2"),
        (ALDER_LAKE, "avx2-vnni"),
        (HASWELL, "avx2"),
        (frozenset({"asimd", "fp"}), "portable"),
        (frozenset(), "portable"),
    ],
)
def test_a_cpu_gets_the_best_level_it_has_all_flags_of(flags: frozenset[str], name: str) -> None:
    found = choose_isa(flags)
    assert found is not None
    assert found.name == name


def test_a_lower_level_can_be_asked_for() -> None:
    for isa in ISAS:
        assert choose_isa(ZEN_4 | ALDER_LAKE, isa.name) == isa


def test_none_switches_native_code_off() -> None:
    assert choose_isa(ZEN_4, "none") is None


def test_a_level_the_cpu_lacks_is_refused_with_the_flags() -> None:
    with pytest.raises(ConfigError, match=r"TOKENMILL_CPU_ISA=avx512-bf16: this CPU lacks avx512_bf16$"):
        choose_isa(ICE_LAKE, "avx512-bf16")


def test_an_unknown_level_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'avx9'.*avx512-bf16, .*, portable, none"):
        choose_isa(ZEN_4, "avx9")


def test_the_variable_decides_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "portable")
    assert this_isa() == ISAS[-1]
    monkeypatch.setenv(VARIABLE, "")
    assert this_isa() is not None


def test_code_of_a_level_uses_no_extension_the_level_does_not_need() -> None:
    """The compiler names some extensions without the underscore: avx512vnni."""
    for isa in ISAS:
        extensions = {flag[2:] for flag in isa.compiler_flags if flag.startswith("-m") and "=" not in flag}
        assert extensions == {
            "avxvnni" if f == "avx_vnni" else f.replace("avx512_", "avx512") for f in isa.needs
        }
