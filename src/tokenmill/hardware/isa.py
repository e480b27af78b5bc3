"""Which instruction set native code is compiled for.

The flags name each extension, where `-march=native` would not: machines of several kinds may share a cache.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from tokenmill.core.bounds import show
from tokenmill.core.errors import ConfigError
from tokenmill.hardware.cpu import cpu_flags

VARIABLE = "TOKENMILL_CPU_ISA"
NO_NATIVE_CODE = "none"


@dataclass(frozen=True)
class Isa:
    """One level.

    Attributes:
        name: what the user may ask for.
        needs: flags of /proc/cpuinfo it takes.
        compiler_flags: extensions, and the macros sources choose their code by: TM_ISA_AVX2, TM_ISA_AVX512,
            TM_ISA_VNNI (int8 dot products of the widest vectors there are) and TM_ISA_BF16, each 1 or not
            defined.
    """

    name: str
    needs: frozenset[str]
    compiler_flags: tuple[str, ...]


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-DTM_ISA_AVX2=1")
_AVX512_FLAGS = (
    *_AVX2_FLAGS,
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mprefer-vector-width=512"),
    *("-DTM_ISA_AVX512=1", "-DTM_ISA_VNNI=1"),
)

# Best first.
ISAS: tuple[Isa, ...] = (
    Isa("avx512-bf16", _AVX512 | {"avx512_bf16"}, (*_AVX512_FLAGS, "-mavx512bf16", "-DTM_ISA_BF16=1")),
    Isa("avx512-vnni", _AVX512, _AVX512_FLAGS),
    Isa("avx2-vnni", _AVX2 | {"avx_vnni"}, (*_AVX2_FLAGS, "-mavxvnni", "-DTM_ISA_VNNI=1")),
    Isa("avx2", _AVX2, _AVX2_FLAGS),
    Isa("portable", frozenset(), ()),
)


def choose_isa(flags: Collection[str], wanted: str | None = None) -> Isa | None:
    """The level `wanted` names, else the best one; None when `wanted` is `none`.

    Args:
        flags: what the CPU has, as `cpu_flags` gives them.

    Raises:
        ConfigError: there is no such level, or the CPU lacks what it takes.
    """
    if not wanted:
        return next(isa for isa in ISAS if isa.needs.issubset(flags))
    if wanted == NO_NATIVE_CODE:
        return None
    for isa in ISAS:
        if isa.name == wanted:
            lacking = sorted(isa.needs.difference(flags))
            if lacking:
                raise ConfigError(f"{VARIABLE}={wanted}: this CPU lacks {', '.join(lacking)}")
            return isa
    allowed = ", ".join([*(isa.name for isa in ISAS), NO_NATIVE_CODE])
    raise ConfigError(f"{VARIABLE}={show(wanted)} is not known; it can be {allowed}")


def this_isa() -> Isa | None:
    """The level of this machine and environment; None where native code is switched off.

    Raises:
        ConfigError: as `choose_isa`.
    """
    return choose_isa(cpu_flags(), os.environ.get(VARIABLE))
