"""Is what a compiled call gave what eager gives? One result against another, leaf by leaf.

Comes in: the candidate's result, eager's, and that of the same call in float64. Goes out: the differences in words;
none where the two agree. Layout (type, shape, strides, dtype) has to be equal. So have values, with one exception: a
floating value may be off the float64 result by twice eager's own error, and a floor in units in the last place.

Whole numbers, bools and special values (NaN, infinities, the sign of a zero) may also be those of the float64 result,
where eager's own rounding has led it elsewhere (a half type that overflows on the way, a comparison after rounding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

# Units in the last place that any result may be off: elementary functions of the libraries promise one to four.
FLOOR_ULPS = {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}
FACTOR = 2.0


def differences(
    got: Any,
    eager: Any,
    reference: Callable[[], Any],
    values: bool = True,
    spread: Callable[[], list[Any]] = list,
    unwritten: Sequence[int] = (),
) -> list[str]:
    """How `got` differs from `eager`, in words, one for each leaf that does.

    reference   gives the result in float64 (complex128), or raises; asked only where the two are not equal
    values      whether values count, not only layout: those of random numbers and of memory nobody wrote do not
    spread      float64 results of inputs that differ in the last place: a result that they differ by is no fault.
                Asked only where a floating value is out of bounds
    unwritten   the leaves whose values do not count
    """
    leaves, structure = _pytree.tree_flatten(got)
    expected, wanted = _pytree.tree_flatten(eager)
    if structure != wanted:
        return [f"it gives {structure}, eager {wanted}"]
    found: list[str] = []
    truths: list[Any] | None = None
    for number, (mine, own) in enumerate(zip(leaves, expected, strict=True)):
        where = f"output {number}: " if len(expected) > 1 else ""
        reason = layout_differs(mine, own)
        if not reason and values and number not in unwritten and not same(mine, own):
            if truths is None:
                truths = _leaves_like(reference, expected)
            reason = value_differs(mine, own, truths[number], lambda at=number: _nth(spread, expected, at))
        if reason:
            found.append(where + reason)
    return found


def _leaves_like(reference: Callable[[], Any], expected: list[Any]) -> list[Any]:
    """The leaves of the float64 result; eager's own where there is none of that structure."""
    try:
        truths = _pytree.tree_leaves(reference())
    except Exception:
        return expected
    return truths if len(truths) == len(expected) else expected


def _nth(spread: Callable[[], list[Any]], expected: list[Any], number: int) -> list[Any]:
    return [leaves[number] for leaves in map(_pytree.tree_leaves, spread()) if len(leaves) == len(expected)]


def layout_differs(got: Any, eager: Any) -> str:
    """Where type, dtype, shape, device, layout or strides differ, in words; empty where they do not.

    Strides of dimensions with one element, and those of tensors with none, cannot be told apart.
    """
    if type(got) is not type(eager):
        return f"it is a {type(got).__name__}, eager gives a {type(eager).__name__}"
    if not isinstance(eager, Tensor):
        return ""
    for name in ("dtype", "shape", "device", "layout"):
        mine, own = getattr(got, name), getattr(eager, name)
        if mine != own:
            return f"its {name} is {_plain(mine)}, eager's is {_plain(own)}"
    if eager.layout is torch.strided and _strides(got) != _strides(eager):
        return f"its strides are {got.stride()}, eager's are {eager.stride()}, of shape {tuple(eager.shape)}"
    return ""


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value


def _strides(tensor: Tensor) -> tuple[int, ...]:
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def same(got: Any, eager: Any) -> bool:
    """Whether two leaves of one layout are equal to the bit, but for the bits of a NaN."""
    if not isinstance(eager, Tensor):
        return bool(got == eager) or (got != got and eager != eager)
    mine, own = _dense(got), _dense(eager)
    equal = mine == own
    if own.is_floating_point() or own.is_complex():
        parts, others = _real(mine), _real(own)
        signs = torch.signbit(parts) == torch.signbit(others)
        both_nan = parts.isnan() & others.isnan()
        return bool((((parts == others) & signs) | both_nan).all())
    return bool(equal.all())


def value_differs(got: Any, eager: Any, truth: Any, spread: Callable[[], list[Any]] = list) -> str:
    """How the values of two leaves of one layout differ beyond what is allowed, in words; empty where they do not."""
    if not isinstance(eager, Tensor):
        close = isinstance(eager, (float, complex)) and abs(got - eager) <= 1e-6 * max(1.0, abs(eager))
        return "" if close else f"it is {got!r}, eager gives {eager!r}"
    mine, own = _dense(got), _dense(eager)
    ref = _dense(truth) if isinstance(truth, Tensor) and truth.shape == eager.shape else own
    if not (own.is_floating_point() or own.is_complex()):
        wrong = (mine != own) & (mine != ref.to(own.dtype))
        return _told(wrong, mine, own, ref)
    if reason := _specials_differ(mine, own, ref):
        return reason
    limit = FACTOR * _worst(_ulps(own, ref, own.dtype)) + FLOOR_ULPS.get(_part_type(own.dtype), 4.0)
    errors = _ulps(mine, ref, own.dtype)
    if not bool((errors > limit).any()):
        return ""
    for other in spread():
        # What inputs off by half a unit give: no algorithm can be asked to be nearer than that.
        if isinstance(other, Tensor) and other.shape == ref.shape:
            errors = errors - FACTOR * _ulps(_dense(other), ref, own.dtype)
    if not bool((errors > limit).any()):
        return ""
    return f"off by {_worst(errors):.3g} ulp of the {limit:.3g} allowed; " + _told(errors > limit, mine, own, ref)


def _specials_differ(got: Tensor, eager: Tensor, truth: Tensor) -> str:
    """Where NaN, infinities and zeros with a sign are neither eager's nor the float64 result's."""
    mine, own, ref = _kinds(got), _kinds(eager), _kinds(truth.to(eager.dtype))
    wrong = (mine != own) & (mine != ref)
    if not bool(wrong.any()):
        return ""
    flat = wrong.any(-1) if eager.is_complex() else wrong
    return "special values: " + _told(flat, got, eager, truth)


# Kinds of numbers. A zero and a number of any size are of one kind where rounding may make one of the other.
_NUMBER, _NAN, _POSITIVE_INFINITY, _NEGATIVE_INFINITY, _POSITIVE_ZERO, _NEGATIVE_ZERO = range(6)


def _kinds(tensor: Tensor) -> Tensor:
    parts = _real(tensor)
    kinds = torch.full(parts.shape, _NUMBER, dtype=torch.int8, device=parts.device)
    kinds[parts.isnan()] = _NAN
    kinds[parts == math.inf] = _POSITIVE_INFINITY
    kinds[parts == -math.inf] = _NEGATIVE_INFINITY
    if not tensor.is_complex():
        kinds[(parts == 0) & ~torch.signbit(parts)] = _POSITIVE_ZERO
        kinds[(parts == 0) & torch.signbit(parts)] = _NEGATIVE_ZERO
        tiny = (kinds == _NUMBER) & (parts.abs() < 1e-3)
        # Cancellation leaves either a zero or a small number: told apart by the size of the error alone.
        kinds[tiny & (parts > 0)] = _POSITIVE_ZERO
        kinds[tiny & (parts < 0)] = _NEGATIVE_ZERO
    return kinds


def _ulps(values: Tensor, truth: Tensor, dtype: torch.dtype) -> Tensor:
    """|values - truth| in units in the last place of `dtype` at `truth`, 0 where either is not finite.

    In float64 the truth is itself rounded on the way, by units of the largest number: those are the units then.
    """
    wide = torch.complex128 if dtype.is_complex else torch.float64
    found, wanted = values.to(wide), truth.to(wide)
    finite = torch.isfinite(found) & torch.isfinite(wanted)
    limits = torch.finfo(_part_type(dtype))
    size = wanted.abs().clamp(min=limits.tiny)
    if _part_type(dtype) is torch.float64 and bool(finite.any()):
        size = size.clamp(min=size[finite].max())
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 1) * limits.eps
    return torch.where(finite, (found - wanted).abs() / unit, torch.zeros_like(size))


def _worst(errors: Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0


def _part_type(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _dense(tensor: Tensor) -> Tensor:
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return dense.resolve_conj().resolve_neg().cpu()


def _told(wrong: Tensor, got: Tensor, eager: Tensor, truth: Tensor) -> str:
    """The first of the wrong elements; empty if there is none."""
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(int(index) for index in wrong.nonzero()[0])
    mine, own, ref = (tensor[at].item() for tensor in (got, eager, truth))
    return f"{count} of {wrong.numel()} elements, first {list(at)}: {mine!r}, eager {own!r}, in float64 {ref!r}"
