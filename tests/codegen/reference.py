"""What a kernel has to compute, by torch's own operators over the whole grid of loops: what tests expect.

It shares nothing with the printers: each node becomes a tensor with a dimension for each axis of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.ir.expr import Axis, Cast, Const, Expr, Load, Op, Reduce, Select, Var
from stages.ir.kernel import Kernel

# Operators that torch has under the same name.
SAME_NAME = (
    *("add", "sub", "mul", "minimum", "maximum", "neg", "abs", "sign", "fmod"),
    *("div", "pow", "atan2", "copysign", "hypot", "nextafter", "sqrt", "rsqrt", "exp"),
    *("exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "floor", "ceil", "round", "trunc", "eq", "ne", "lt"),
    *("le", "gt", "ge", "isnan", "isinf"),
)

EAGER: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in SAME_NAME},
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
    "bitnot": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "not": torch.logical_not,
    "bounded": lambda i, n: torch.where(i < 0, i + n, i),
}

REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(-1, dtype=rows.dtype),
    "prod": lambda rows: rows.prod(-1, dtype=rows.dtype),
    "max": lambda rows: rows.amax(-1),
    "min": lambda rows: rows.amin(-1),
    "any": lambda rows: rows.any(-1),
    "all": lambda rows: rows.all(-1),
    "argmax": lambda rows: rows.argmax(-1),
    "argmin": lambda rows: rows.argmin(-1),
}


def expected(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """What `kernel` makes of flat `inputs`; `outputs` are what its output buffers hold before. Nothing is changed."""
    axes = (*kernel.parallel, *kernel.inner)
    memory = dict(zip(kernel.inputs, inputs, strict=True))
    done: dict[Expr, Tensor] = {}

    def grid(node: Expr) -> Tensor:
        if node not in done:
            done[node] = evaluate(node)
        return done[node]

    def evaluate(node: Expr) -> Tensor:
        if isinstance(node, Const):
            return torch.full([1] * len(axes), node.value, dtype=node.dtype.torch)
        if isinstance(node, Var):
            shape = [axis.extent if axis == node.axis else 1 for axis in axes]
            return torch.arange(node.axis.extent).reshape(shape)
        if isinstance(node, Op):
            return EAGER[node.name](*(grid(arg) for arg in node.args))
        if isinstance(node, Cast):
            return grid(node.value).to(node.dtype.torch)
        if isinstance(node, Select):
            return torch.where(*(grid(child) for child in node.children))
        if isinstance(node, Load):
            index = grid(node.index)
            if node.mask is None:
                return memory[node.buffer][index]
            index, mask = torch.broadcast_tensors(index, grid(node.mask))
            found = memory[node.buffer][torch.where(mask, index, 0)]
            return torch.where(mask, found, torch.tensor(node.other.value, dtype=found.dtype))
        assert isinstance(node, Reduce)
        return rows(grid(node.body), node.axes, REDUCE[node.combine])

    def rows(body: Tensor, reduced: tuple[Axis, ...], combine: Callable[[Tensor], Tensor]) -> Tensor:
        shape = [axis.extent if axis in reduced else n for axis, n in zip(axes, body.shape, strict=True)]
        kept = [n for axis, n in zip(axes, shape, strict=True) if axis not in reduced]
        result = combine(body.expand(shape).reshape([*kept, -1]))
        return result.reshape([1 if axis in reduced else n for axis, n in zip(axes, shape, strict=True)])

    memory_out = dict(zip(kernel.outputs, (tensor.clone() for tensor in outputs), strict=True))
    for store in kernel.stores:
        scope = [axis.extent if store.inner or axis in kernel.parallel else 1 for axis in axes]
        index = grid(store.index).expand(scope).reshape(-1)
        value = grid(store.value).expand(scope).reshape(-1)
        memory_out[store.buffer].index_put_((index,), value, accumulate=store.mode == "add")
    return [memory_out[buffer] for buffer in kernel.outputs]
