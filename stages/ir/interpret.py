"""A slow, plain reference interpreter of kernels, for tests that must not depend on a printer.

Comes in: a `Kernel` and a flat tensor for each of its buffers. Goes out: nothing; the output tensors are written.
Every node becomes one tensor over the whole iteration space: a dimension for each parallel axis, then one for each
inner axis, of extent 1 where the node does not depend on it. Each operator runs in its IR type, through torch's own
operator of that meaning; `in_double` runs all floating point in float64 instead and rounds only at the stores.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from stages.ir.dtype import DType
from stages.ir.expr import Cast, Const, Expr, Load, Op, Reduce, Select, Var
from stages.ir.kernel import Kernel, Store
from stages.ir.ops import OPS, Rule


def interpret(kernel: Kernel, buffers: Mapping[str, Tensor], in_double: bool = False) -> None:
    """Run `kernel` on `buffers`, one flat tensor a formal buffer name.

    A tensor may be longer than its buffer; with `in_double` it may also be float64 where the buffer is a smaller float.
    Raises `IndexError` where a `bounded` index or an unmasked access is out of range, and where two positions of a
    "set" store write one element.
    """
    _Run(kernel, {name: tensor.detach() for name, tensor in buffers.items()}, in_double).stores()


def interpret_flat(kernel: Kernel, tensors: list[Tensor], in_double: bool = False) -> None:
    """`interpret` with the tensors in the order of `kernel.buffers`."""
    names = [buffer.name for buffer in kernel.buffers]
    interpret(kernel, dict(zip(names, tensors, strict=True)), in_double)


class _Run:
    """One evaluation: the values of the nodes so far, by identity."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Tensor], in_double: bool) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.in_double = in_double
        self.axes = (*kernel.parallel, *kernel.inner)
        self.values: dict[int, Tensor] = {}

    def stores(self) -> None:
        for node in self.kernel.nodes:
            self.values[id(node)] = self.evaluate(node)
        for store in self.kernel.stores:
            self.write(store)

    def dtype(self, dtype: DType) -> torch.dtype:
        """What values of `dtype` are held in during this evaluation."""
        return torch.float64 if self.in_double and dtype.is_float else dtype.torch

    def __getitem__(self, node: Expr) -> Tensor:
        return self.values[id(node)]

    def evaluate(self, node: Expr) -> Tensor:
        ones = (1,) * len(self.axes)
        if isinstance(node, Const):
            return torch.full(ones, node.value, dtype=self.dtype(node.dtype), device="cpu")
        if isinstance(node, Var):
            at = self.axes.index(node.axis)
            shape = (*ones[:at], node.axis.extent, *ones[at + 1 :])
            return torch.arange(node.axis.extent, device="cpu").reshape(shape)
        if isinstance(node, Cast):
            return self[node.value].to(self.dtype(node.dtype))
        if isinstance(node, Select):
            return torch.where(self[node.condition], self[node.yes], self[node.no])
        if isinstance(node, Load):
            return self.read(node)
        if isinstance(node, Reduce):
            return self.reduce(node)
        assert isinstance(node, Op)
        result = OPERATORS[node.name](*(self[arg] for arg in node.args))
        if result.dtype is not self.dtype(node.dtype):
            raise TypeError(f"'{node.name}' gave {result.dtype}, not {node.dtype}")
        return result

    def read(self, node: Load) -> Tensor:
        index, memory = self[node.index], self.buffers[node.buffer.name]
        if node.mask is not None and node.other is not None:
            mask, index = torch.broadcast_tensors(self[node.mask], index)
            inside = self.read_at(node, torch.where(mask, index, 0), memory)
            return torch.where(mask, inside, self.evaluate(node.other))
        return self.read_at(node, index, memory)

    def read_at(self, node: Load, index: Tensor, memory: Tensor) -> Tensor:
        _check_range(node.buffer.name, index, node.buffer.size)
        return memory[index].to(self.dtype(node.dtype))

    def reduce(self, node: Reduce) -> Tensor:
        """`node.body` reduced over the positions of its axes in row-major order; those extents become 1."""
        body = self[node.body]
        places = [self.axes.index(axis) for axis in node.axes]
        shape = [axis.extent if at in places else body.shape[at] for at, axis in enumerate(self.axes)]
        moved = body.expand(shape).movedim(places, tuple(range(-len(places), 0)))
        reduced = COMBINES[node.combine](moved.flatten(-len(places)))
        kept = [1 if at in places else extent for at, extent in enumerate(shape)]
        return reduced.reshape(kept)

    def write(self, store: Store) -> None:
        scope = self.axes if store.inner else self.kernel.parallel
        shape = [axis.extent if axis in scope else 1 for axis in self.axes]
        index = self[store.index].expand(shape).flatten()
        memory = self.buffers[store.buffer.name]
        _check_range(store.buffer.name, index, store.buffer.size)
        value = self[store.value].expand(shape).flatten().to(memory.dtype)
        if store.mode == "add":
            memory.index_put_((index,), value, accumulate=True)
            return
        if index.unique().numel() != index.numel():
            raise IndexError(f"kernel '{self.kernel.name}' writes an element of {store.buffer.name} twice")
        memory[index] = value


def _check_range(name: str, index: Tensor, size: int) -> None:
    if index.numel() and not (0 <= int(index.min()) and int(index.max()) < size):
        raise IndexError(f"{name}[{int(index.min())}..{int(index.max())}] is out of range, it holds {size} elements")


def _bounded(index: Tensor, size: Tensor) -> Tensor:
    outside = (index < -size) | (index >= size)
    if outside.any():
        raise IndexError(f"index {int(index[outside][0])} is out of range for a dimension of {int(size.flatten()[0])}")
    return torch.where(index < 0, index + size, index)


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "fmod": torch.fmod,
    "bitnot": torch.bitwise_not,
    "div": torch.div,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    **{
        name: getattr(torch, name)
        for name, info in OPS.items()
        if info.rule in (Rule.FLOAT, Rule.CLASSIFY) and info.arity == 1
    },
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "not": torch.logical_not,
    "bounded": _bounded,
}


def _in_type(reduction: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """A reduction of the last dimension whose result keeps the type: whole numbers wrap."""
    return lambda body: reduction(body, -1).to(body.dtype)


def _position(pick: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """The first position of an extreme value, with NaN more extreme than any number."""

    def find(body: Tensor) -> Tensor:
        # torch.argmax promises no order among equals, so the least of the positions that hold the extreme is taken.
        extreme = pick(body, -1, keepdim=True)
        hit = (body == extreme) | torch.isnan(body)
        positions = torch.arange(body.shape[-1], device=body.device).expand(body.shape)
        return torch.where(hit, positions, body.shape[-1]).amin(-1)

    return find


COMBINES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": _in_type(torch.sum),
    "prod": _in_type(torch.prod),
    "max": lambda body: body.amax(-1),
    "min": lambda body: body.amin(-1),
    "any": lambda body: body.any(-1),
    "all": lambda body: body.all(-1),
    "argmax": _position(torch.amax),
    "argmin": _position(torch.amin),
}
