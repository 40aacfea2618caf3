"""How far a tensor is from the reference, in float64. Used by the gate and by the search for the first wrong step."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Errors:
    """Errors of one tensor over the elements that are finite everywhere.

    relative_error   ‖out − ref‖ / ‖ref‖, Euclidean norms; no unit
    peak_error       max|out − ref| / max|ref|; no unit
    absolute_error   max|out − ref|, in the unit of the output
    ulp_error        the largest error in units in the last place of the output's type. The unit is that of the
                     reference's value or of its root mean square, whichever is larger: near zero, where values cancel,
                     an element's own unit says nothing. Told, and not gated: it is the peak error in another unit.

    Where the reference is zero throughout, relative and peak error are absolute ones.
    """

    relative_error: float = 0.0
    peak_error: float = 0.0
    absolute_error: float = 0.0
    ulp_error: float = 0.0


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` flat in float64; a complex one as its real and imaginary parts."""
    flat = torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor
    return flat.to(torch.float64).reshape(-1)


def errors_of(out: torch.Tensor, ref: torch.Tensor, among: torch.Tensor | None = None) -> Errors:
    """Errors of `out` against `ref`, two tensors of one shape.

    among   flat bool mask over `wide(out)` of the elements that count; default: those finite in both
    """
    got, want = wide(out), wide(ref)
    if among is None:
        among = torch.isfinite(got) & torch.isfinite(want)
    got, want = got[among], want[among]
    if got.numel() == 0:
        return Errors()
    difference = (got - want).abs()
    norm, peak = float(want.norm()), float(want.abs().max())
    worst = float(difference.max())
    return Errors(
        relative_error=float(difference.norm()) / (norm or 1.0),
        peak_error=worst / (peak or 1.0),
        absolute_error=worst,
        ulp_error=_ulps(difference, want, out.dtype),
    )


def _ulps(difference: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest `difference` in units in the last place of `dtype`: eps * 2^floor(log2(magnitude))."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return float(difference.max())
    limits = torch.finfo(dtype)
    scale = float(want.norm()) / want.numel() ** 0.5
    magnitude = want.abs().clamp(min=max(scale, limits.tiny))
    unit = torch.ldexp(torch.ones_like(magnitude), torch.frexp(magnitude).exponent - 1) * limits.eps
    return float((difference / unit).max())


def pattern_differs(one: torch.Tensor, two: torch.Tensor) -> str:
    """Where NaN and infinities of two tensors of one shape differ, in words; empty where they do not."""
    a, b = wide(one), wide(two)
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        differing = test(a) != test(b)
        if bool(differing.any()):
            return (
                f"{name} at {int(test(a).sum())} elements, eager has {int(test(b).sum())}; {_count(differing)} differ"
            )
    return ""


def _count(mask: torch.Tensor) -> str:
    return f"{int(mask.sum())} of {mask.numel()}"
