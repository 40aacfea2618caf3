"""libdevice, on float32 and float64, conversions, and products of half types, for a device; see `libm`."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

acos = libdevice.acos
acosh = libdevice.acosh
asin = libdevice.asin
asinh = libdevice.asinh
atan = libdevice.atan
atan2 = libdevice.atan2
atanh = libdevice.atanh
copysign = libdevice.copysign
cos = libdevice.cos
cosh = libdevice.cosh
erf = libdevice.erf
erfc = libdevice.erfc
exp = libdevice.exp
exp2 = libdevice.exp2
expm1 = libdevice.expm1
fmod = libdevice.fmod
hypot = libdevice.hypot
log = libdevice.log
log10 = libdevice.log10
log1p = libdevice.log1p
log2 = libdevice.log2
nextafter = libdevice.nextafter
pow = libdevice.pow
rint = libdevice.rint
rsqrt = libdevice.rsqrt
sin = libdevice.sin
sinh = libdevice.sinh
sqrt = libdevice.sqrt
tan = libdevice.tan
tanh = libdevice.tanh
trunc = libdevice.trunc


@triton.jit
def to_bfloat16(a: tl.tensor) -> tl.tensor:
    """float32 to the nearest bfloat16, ties to even."""
    return a.to(tl.bfloat16)


@triton.jit
def to_float32(a: tl.tensor) -> tl.tensor:
    """A half type to float32, exactly."""
    return a.to(tl.float32)


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + a @ b of half types, with sums in float32."""
    return tl.dot(a, b, total)
