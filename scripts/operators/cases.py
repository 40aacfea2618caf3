"""The calls: operators of `op_db`, their sample inputs in one type, copies of them, and the same call in float64."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy
import torch
from torch.utils import _pytree

DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
SEED = 0


@dataclass(frozen=True)
class Call:
    """One call of `function`; `number` is that of the sample in the operator's list."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        shown = [_shown(value) for value in self.args]
        shown += [f"{name}={_shown(value)}" for name, value in self.kwargs.items()]
        return f"({', '.join(shown)})"

    def copied(self) -> Call:
        """The same call on memory of its own. Tensors that share memory, and overlap, do so in the copy too."""
        known: dict[int, torch.UntypedStorage] = {}
        args, kwargs = _pytree.tree_map(lambda leaf: _copy(leaf, known), (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def widened(self, off: float = 0.0) -> Call:
        """The same call in float64 and complex128, with floats multiplied by 1 + `off` units of their type or less."""
        generator = torch.Generator().manual_seed(SEED)

        def wide(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype):
                return _WIDE.get(leaf, leaf)
            if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _WIDE:
                return leaf
            tensor = leaf.detach().to(_WIDE[leaf.dtype])
            if off and leaf.layout is torch.strided:
                noise = torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.device) * 2 - 1
                tensor = tensor * (1 + off * torch.finfo(leaf.dtype).eps * noise)
            return tensor

        args, kwargs = _pytree.tree_map(wide, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def run(self) -> Any:
        """What the call gives, with torch's generators seeded."""
        torch.manual_seed(SEED)
        return self.function(*self.args, **self.kwargs)


_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def _copy(leaf: Any, known: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided:
        return leaf.detach().clone()
    storage = leaf.untyped_storage()
    if storage._cdata not in known:
        known[storage._cdata] = storage.clone()
    made = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
    made.set_(known[storage._cdata], leaf.storage_offset(), leaf.shape, leaf.stride())
    if leaf.is_conj():
        made = torch._conj(made)
    return torch._neg_view(made) if leaf.is_neg() else made


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = f", strides {list(value.stride())}" if value.layout is torch.strided else f", {value.layout}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


# ---- operators ------------------------------------------------------------------------------


@cache
def operators() -> dict[str, Any]:
    """Every `OpInfo` of torch's list by name: `add`, `linalg.norm.subgradients_at_zero`."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{entry.name}.{entry.variant_test_name}".rstrip("."): entry for entry in op_db}


def chosen(pattern: str, dtypes: Sequence[str], device: str) -> list[tuple[str, str]]:
    """(operator, dtype) for each operator whose name `pattern` matches whole, where torch lists it for the dtype."""
    wanted = re.compile(pattern)
    names = [name for name in operators() if wanted.fullmatch(name)]
    kind = torch.device(device).type
    return [
        (name, dtype)
        for dtype in dtypes
        for name in names
        if getattr(torch, dtype) in operators()[name].supported_dtypes(kind)
    ]


def calls_of(name: str, dtype: str, device: str, limit: int | None) -> list[Call]:
    """The sample inputs of an operator in a type; with `limit`, that many of them, spread over the list.

    One alone is that in the middle: the first ones often have the fewest arguments.
    """
    entry = operators()[name]
    torch.manual_seed(SEED)
    numpy.random.seed(SEED)
    random.seed(SEED)
    samples = list(entry.sample_inputs(device, getattr(torch, dtype), requires_grad=False))
    picked: Sequence[int] = range(len(samples))
    if limit is not None and limit < len(samples):
        last = len(samples) - 1
        picked = sorted({round(at * last / (limit - 1)) for at in range(limit)}) if limit > 1 else [last // 2]
    return [
        Call(number, entry.op, (samples[number].input, *samples[number].args), dict(samples[number].kwargs))
        for number in picked
    ]
