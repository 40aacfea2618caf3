"""Tracing with FakeTensors whose strides are eager's in dimensions of one element too.

Comes in: nothing; a context to trace in. torch computes views and pointwise results of FakeTensors in Python, and not
as its kernels do where a dimension has one element. Such a stride reaches nothing, but torch tells by it whether an
image is channels last, and so lays out every result after it (`stages.ir.views` has an example).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.ir.strides import pointwise_strides
from stages.ir.views import is_static, restrided

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default)
# Operators of two operands of which one may be a number.
_WITH_SCALARS = frozenset(
    (
        *("add", "sub", "mul", "div", "rsub", "fmod", "remainder", "floor_divide", "true_divide", "maximum", "minimum"),
        *("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "xlogy", "atan2", "where"),
    )
)
# Tagged pointwise, and laid out by rules of their own.
_OTHERWISE = frozenset({aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten._to_copy.default, aten.clone.default})


@contextlib.contextmanager
def true_strides() -> Iterator[None]:
    """While tracing. What FakeTensors do is the process's, so hold Dynamo's compile lock."""
    implementations = fake_impls.op_implementations_dict
    views = {view: implementations[view] for view in _VIEWS}
    kernels = {operator: operator.py_kernels[DispatchKey.Meta] for operator in _pointwise()}
    implementations.update({view: _as_eager(inner) for view, inner in views.items()})
    for operator, kernel in kernels.items():
        operator.py_kernels[DispatchKey.Meta] = _laid_out(operator, kernel)
        operator._dispatch_cache.clear()
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        implementations.update(views)
        for operator, kernel in kernels.items():
            operator.py_kernels[DispatchKey.Meta] = kernel
            operator._dispatch_cache.clear()
        FakeTensorMode.cache_clear()


def _as_eager(inner: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`inner`, torch's function for a view of a FakeTensor, with eager's strides and eager's error."""

    def view(mode: Any, function: Any, source: torch.Tensor, *shape: Any, **kwargs: Any) -> torch.Tensor:
        result = inner(mode, function, source, *shape, **kwargs)
        with mode:
            return restrided(result, source)

    return view


def _laid_out(operator: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, torch's function for the shape of a pointwise result, with eager's strides."""
    joins_scalar = operator.overloadpacket.__name__ in _WITH_SCALARS

    def shaped(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        operands = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if not is_static(result, *operands) or 1 not in result.shape or 0 in result.shape or not operands:
            return result
        numbers = joins_scalar and any(isinstance(each, (bool, int, float, complex)) for each in args[:2])
        strides = pointwise_strides(result.shape, operands, numbers)
        return result if strides == result.stride() else result.new_empty_strided(result.shape, strides)

    return shaped


@functools.cache
def _pointwise() -> tuple[Any, ...]:
    """The pointwise operators that give a new tensor and whose shapes torch computes in Python."""
    return tuple(
        operator
        for operator in decomposition_table
        if isinstance(operator, torch._ops.OpOverload)
        and torch.Tag.pointwise in operator.tags
        and DispatchKey.Meta in operator.py_kernels
        and not operator._schema.is_mutable
        and operator not in _OTHERWISE
    )
