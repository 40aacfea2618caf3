"""`libm` under Triton's interpreter, which cannot call libdevice: torch's functions, in float64, rounded once.

Comes in and goes out: the interpreter's tensors, whose `handle.data` is a NumPy array. Also the two conversions of
bfloat16, which Triton's interpreter does not round (it cuts the low bits off) nor multiply (it takes the bits for whole
numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

Function = Callable[..., torch.Tensor]


def _wrap(data: np.ndarray, dtype: Any, block: bool) -> Any:
    """NumPy data as a tensor of the interpreter; a scalar is an array of one element there."""
    return tl.core.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)) if block else dtype)


def _lift(function: Function, precise: bool = True) -> Callable[..., Any]:
    """`function` of torch on the interpreter's tensors; `precise`: evaluated in float64, whatever the operands are."""

    def apply(*operands: Any) -> Any:
        arrays = [torch.from_numpy(np.array(operand.handle.data)) for operand in operands]
        result = function(*(array.double() for array in arrays) if precise else arrays).to(arrays[0].dtype)
        block = any(operand.type.is_block() for operand in operands)
        return _wrap(result.numpy(), operands[0].dtype, block)

    return apply


acos = _lift(torch.acos)
acosh = _lift(torch.acosh)
asin = _lift(torch.asin)
asinh = _lift(torch.asinh)
atan = _lift(torch.atan)
atan2 = _lift(torch.atan2)
atanh = _lift(torch.atanh)
copysign = _lift(torch.copysign)
cos = _lift(torch.cos)
cosh = _lift(torch.cosh)
erf = _lift(torch.erf)
erfc = _lift(torch.erfc)
exp = _lift(torch.exp)
exp2 = _lift(torch.exp2)
expm1 = _lift(torch.expm1)
fmod = _lift(lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())))  # torch's is inexact on denormals
hypot = _lift(torch.hypot)
log = _lift(torch.log)
log10 = _lift(torch.log10)
log1p = _lift(torch.log1p)
log2 = _lift(torch.log2)
nextafter = _lift(torch.nextafter, precise=False)
pow = _lift(torch.pow)
rint = _lift(torch.round)
rsqrt = _lift(torch.rsqrt)
sin = _lift(torch.sin)
sinh = _lift(torch.sinh)
sqrt = _lift(torch.sqrt)
tan = _lift(torch.tan)
tanh = _lift(torch.tanh)
trunc = _lift(torch.trunc)


def to_bfloat16(a: Any) -> Any:
    """float32 to the nearest bfloat16, ties to even."""
    halves = torch.from_numpy(np.array(a.handle.data)).to(torch.bfloat16)
    return _wrap(halves.view(torch.int16).numpy().view(np.uint16), tl.bfloat16, a.type.is_block())


def to_float32(a: Any) -> Any:
    """A half type to float32, exactly."""
    data = np.array(a.handle.data)
    if a.dtype == tl.bfloat16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return _wrap(data.astype(np.float32), tl.float32, a.type.is_block())


def dot(a: Any, b: Any, total: Any) -> Any:
    """total + a @ b of half types, with sums in float32."""
    product = np.matmul(to_float32(a).handle.data, to_float32(b).handle.data)
    return _wrap(total.handle.data + product, tl.float32, True)
