"""The structures of native/abi.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum


class RowsAs(IntEnum):
    """What the rows of a product are."""

    INT8 = 0
    BF16 = 1


class Epilogue(IntEnum):
    """What becomes of a product."""

    STORE = 0
    ADD = 1
    QKV = 2
    GATED = 3


class Activation(IntEnum):
    SILU = 0
    GELU_TANH = 1


class KvFormat(IntEnum):
    INT8 = 0
    BF16 = 1


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    PRODUCT = 2
    ATTENTION = 3
    EXPERTS = 4
    LOGITS = 5


class TmMatrix(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("panel_bytes", c_int64),
        ("scales_at", c_int64),
        ("offsets_at", c_int64),
        ("format", c_int32),
        ("n", c_int32),
        ("k", c_int32),
        ("scale_every", c_int32),
        ("scale_bytes", c_int32),
        ("unused", c_int32),
    )


class TmExpert(ctypes.Structure):
    _fields_ = (("gate_up", TmMatrix), ("down", TmMatrix))


class TmOp(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("rows_as", c_int32),
        ("epilogue", c_int32),
        ("activation", c_int32),
        ("matrix", TmMatrix),
        ("weight", c_void_p),
        ("branch", c_void_p),
        ("eps", c_float),
        ("scale", c_float),
        ("add_branch", c_int32),
        ("keep", c_int32),
        ("layer", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("rotary", c_int32),
        ("experts", POINTER(TmExpert)),
        ("n_experts", c_int32),
        ("active", c_int32),
        ("renormalize", c_int32),
        ("first", c_int32),
    )


class TmRotary(ctypes.Structure):
    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("half", c_int64))


class TmKvLayer(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("block_bytes", c_int64), ("head_bytes", c_int64))


class TmProgram(ctypes.Structure):
    _fields_ = (
        ("ops", POINTER(TmOp)),
        ("rotary", POINTER(TmRotary)),
        ("layers", POINTER(TmKvLayer)),
        ("arena", c_void_p),
        ("n_ops", c_int64),
        ("hidden", c_int64),
        ("vocabulary", c_int64),
        ("wide", c_int64),
        ("deep", c_int64),
        ("max_rows", c_int64),
        ("max_logit_rows", c_int64),
        ("max_context", c_int64),
        ("block_size", c_int64),
        ("kv_format", c_int32),
        ("threads", c_int32),
        ("row_bytes", c_int32),
        ("unused", c_int32),
    )


class TmStep(ctypes.Structure):
    _fields_ = (
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logit_rows", c_void_p),
        ("hidden_rows", c_void_p),
        ("table_width", c_int64),
        ("tokens", c_int64),
        ("sequences", c_int64),
        ("n_logit_rows", c_int64),
        ("n_hidden_rows", c_int64),
        ("logits", c_void_p),
        ("hidden", c_void_p),
        ("best", c_void_p),
    )


class TmCounters(ctypes.Structure):
    _fields_ = (("nanoseconds", c_void_p), ("bytes", c_void_p), ("multiply_adds", c_void_p))


# In the order of tm_sizes.
STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    TmMatrix,
    TmExpert,
    TmOp,
    TmRotary,
    TmKvLayer,
    TmProgram,
    TmStep,
    TmCounters,
)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives the library's functions their types, and holds the structures' sizes against its own.

    Raises:
        RuntimeError: a structure differs, so calls would read what is not there.
    """
    library.tm_run.argtypes = (POINTER(TmProgram), POINTER(TmStep), POINTER(TmCounters))
    library.tm_run.restype = None
    library.tm_arena_bytes.argtypes = (POINTER(TmProgram),)
    library.tm_arena_bytes.restype = c_int64
    library.tm_sizes.argtypes = (POINTER(c_int64),)
    library.tm_sizes.restype = None
    sizes = (c_int64 * len(STRUCTURES))()
    library.tm_sizes(sizes)
    for structure, size in zip(STRUCTURES, sizes, strict=True):
        if ctypes.sizeof(structure) != size:
            mine = ctypes.sizeof(structure)
            raise RuntimeError(f"{structure.__name__} is {mine} bytes here and {size} in the native library")
    return library
