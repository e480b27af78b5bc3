"""A program's operators as the native library takes them: fused, matrices packed one after another.

An addition becomes part of the product before it, or of the norm after it where a norm lies between.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tokenmill.core.errors import NativeUnavailable
from tokenmill.kernels.cpu.abi import Activation, Epilogue, OpKind, RowsAs, TmExpert, TmMatrix, TmOp
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.program import (
    Add,
    Attention,
    BranchNorm,
    Embed,
    Experts,
    Linear,
    Logits,
    Mlp,
    Norm,
    Operator,
)

# Packs the rows of a product: one matrix, or several one after another where formats differ. With `gated`,
# gate and up alternate in one matrix.
Pack = Callable[[Linear, bool], Sequence[PackedMatrix]]

# Numbers of a head that native/heads.h has room for.
MAX_HEAD_DIM = 512

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_tanh": Activation.GELU_TANH}


@dataclass
class Lowering:
    """Takes operators in order and gives what the library runs.

    Attributes:
        rows_as: what products are given; BF16 where matrices are that.
        ops: so far.
        wide: widest row of floats between operators.
        deep: longest row that is multiplied.
    """

    pack: Pack
    rows_as: RowsAs
    ops: list[TmOp] = field(default_factory=list)
    wide: int = 0
    deep: int = 0
    _held: list[object] = field(default_factory=list)
    _embedding: tuple[torch.Tensor, TmMatrix] | None = None
    _added: dict[str, object] = field(default_factory=dict)

    def extend(self, operators: Sequence[Operator]) -> None:
        """Adds operators; a branch and what adds it to the stream must come together.

        Raises:
            NativeUnavailable: an order of operators the library does not know.
        """
        for place, operator in enumerate(operators):
            after = operators[place + 1] if place + 1 < len(operators) else None
            match operator:
                case Embed():
                    self._embed(operator)
                case Norm():
                    self._norm(operator, keep=isinstance(after, Experts | Logits))
                case Attention():
                    self._attention(operator, after)
                case Mlp():
                    self._mlp(operator, after)
                case Experts():
                    self._experts(operator)
                    if isinstance(after, Add):
                        self._added = {"add_branch": 1}
                case BranchNorm(weight, _):
                    if not isinstance(after, Add):
                        raise NativeUnavailable("a norm of a branch that is not added next")
                    self._added = {"branch": self._floats(weight)}
                case Add():
                    pass  # in the product before, or in the norm to come
                case Logits(head):
                    self._logits(head)

    def _embed(self, operator: Embed) -> None:
        linear = Linear(operator.table, sources=(operator.source,) if operator.source else ())
        matrix = self._matrices(linear)[0]
        self._embedding = (operator.table, matrix)
        self.ops.append(TmOp(kind=OpKind.EMBED, matrix=matrix, scale=operator.scale))

    def _norm(self, operator: Norm, *, keep: bool) -> None:
        width = len(operator.weight)
        self.wide, self.deep = max(self.wide, width), max(self.deep, width)
        self.ops.append(
            TmOp(
                kind=OpKind.NORM,
                rows_as=self.rows_as,
                weight=self._floats(operator.weight),
                eps=operator.eps,
                keep=keep,
                **self._added,
            )
        )
        self._added = {}

    def _attention(self, operator: Attention, after: Operator | None) -> None:
        require_head_dim(operator.head_dim)
        first = 0
        for matrix in self._matrices(operator.qkv):
            self.ops.append(TmOp(kind=OpKind.PRODUCT, epilogue=Epilogue.QKV, matrix=matrix, first=first))
            first += matrix.n
        self.wide, self.deep = max(self.wide, first), max(self.deep, operator.heads * operator.head_dim)
        norms = operator.norms
        self.ops.append(
            TmOp(
                kind=OpKind.ATTENTION,
                rows_as=self.rows_as,
                weight=self._floats(norms.query) if norms else None,
                branch=self._floats(norms.key) if norms else None,
                eps=norms.eps if norms else 0.0,
                scale=operator.scale,
                layer=operator.layer,
                heads=operator.heads,
                kv_heads=operator.kv_heads,
                head_dim=operator.head_dim,
                window=operator.window or 0,
                rotary=operator.rotary,
            )
        )
        self._out(operator.out, after)

    def _mlp(self, operator: Mlp, after: Operator | None) -> None:
        (matrix,) = self._matrices(operator.gate_up, gated=True)
        inner = operator.down.weight.shape[1]
        self.wide, self.deep = max(self.wide, -(-inner // 32) * 32), max(self.deep, inner)
        self.ops.append(
            TmOp(
                kind=OpKind.PRODUCT,
                epilogue=Epilogue.GATED,
                activation=_ACTIVATIONS[operator.activation],
                rows_as=self.rows_as,
                matrix=matrix,
            )
        )
        self._out(operator.down, after)

    def _out(self, linear: Linear, after: Operator | None) -> None:
        """The product that ends a branch."""
        matrices = self._matrices(linear)
        if len(matrices) != 1 or not isinstance(after, Add | BranchNorm):
            raise NativeUnavailable("a branch that is neither added nor normed next")
        epilogue = Epilogue.ADD if isinstance(after, Add) else Epilogue.STORE
        self.ops.append(TmOp(kind=OpKind.PRODUCT, epilogue=epilogue, matrix=matrices[0]))

    def _experts(self, operator: Experts) -> None:
        experts = (TmExpert * len(operator.experts))()
        for place, expert in enumerate(operator.experts):
            (experts[place].gate_up,) = self._matrices(expert.gate_up, gated=True)
            (experts[place].down,) = self._matrices(expert.down)
        inner = operator.experts[0].down.weight.shape[1]
        self.wide, self.deep = max(self.wide, -(-inner // 32) * 32), max(self.deep, inner)
        self._held.append(experts)
        (router,) = self._matrices(operator.router)
        self.ops.append(
            TmOp(
                kind=OpKind.EXPERTS,
                rows_as=self.rows_as,
                activation=_ACTIVATIONS[operator.experts[0].activation],
                matrix=router,
                experts=experts,
                n_experts=len(experts),
                active=operator.active,
                renormalize=operator.renormalize,
            )
        )

    def _logits(self, head: Linear) -> None:
        if self._embedding is not None and head.weight is self._embedding[0]:
            matrix = self._embedding[1]
        else:
            (matrix,) = self._matrices(head)
        self.ops.append(TmOp(kind=OpKind.LOGITS, matrix=matrix))

    def _matrices(self, linear: Linear, *, gated: bool = False) -> list[TmMatrix]:
        found, first = [], 0
        for packed in self.pack(linear, gated):
            bias = None
            if linear.bias is not None:
                bias = _bias(linear.bias[first:], packed, linear.weight.shape[0])
            found.append(self._matrix(packed, bias))
            first += packed.shape.rows
        return found

    def _matrix(self, packed: PackedMatrix, bias: torch.Tensor | None) -> TmMatrix:
        self._held.append(packed.data)
        shape = packed.shape
        return TmMatrix(
            data=packed.data.data_ptr(),
            bias=None if bias is None else self._floats(bias),
            panel_bytes=shape.panel_bytes,
            scales_at=shape.code_bytes,
            offsets_at=shape.code_bytes + shape.scales_bytes,
            format=shape.format,
            n=shape.rows,
            k=shape.columns,
            scale_every=shape.scale_every,
            scale_bytes=shape.scale_bytes,
        )

    def _floats(self, values: torch.Tensor) -> int:
        """The address of a tensor in float32, which is kept."""
        values = values.float().contiguous()
        self._held.append(values)
        return values.data_ptr()

    def array(self) -> ctypes.Array[TmOp]:
        """All operators."""
        return (TmOp * len(self.ops))(*self.ops)


def require_head_dim(head_dim: int) -> None:
    """
    Raises:
        NativeUnavailable: heads are larger than the library has room for.
    """
    if head_dim > MAX_HEAD_DIM:
        raise NativeUnavailable(
            f"heads of {head_dim} numbers are too large; at most {MAX_HEAD_DIM} are allowed"
        )


def _bias(bias: torch.Tensor, packed: PackedMatrix, rows: int) -> torch.Tensor:
    """Of the rows of a packed matrix, in its order."""
    if not packed.gated:
        return bias[: packed.shape.rows]
    half = packed.shape.rows // 2  # padded to a multiple of 16
    gate, up = bias[:rows].float().chunk(2)
    sides = [torch.nn.functional.pad(side, (0, half - len(side))).view(-1, 16) for side in (gate, up)]
    return torch.stack(sides, dim=1).flatten()
