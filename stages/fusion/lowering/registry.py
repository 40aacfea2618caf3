"""The table of lowerings: ATen overload -> what it computes.

A lowering is called as `lowering(context, *args, **kwargs)` with the arguments of the graph's call, tensors as
`Value`s, and returns a `Value`, or a tuple of them for an operator with several results. It raises `NotFusable` before
it returns if these arguments are out of its reach; `Value.at` never fails on the arguments, only on where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload


class Kind(Enum):
    """What a node is to the planner of fusions."""

    POINTWISE = "pointwise"  # each element from elements of the inputs, at any position (copies and gathers too)
    REDUCTION = "reduction"  # needs a row of inner positions
    VIEW = "view"  # shares its input's storage: no work
    CREATION = "creation"  # reads no tensor
    EXTERN = "extern"  # no kernel of ours; `why_not` says why


Lowering = Callable[..., Any]

LOWERINGS: dict[OpOverload, Lowering] = {}
CREATIONS: set[OpOverload] = set()
TEMPLATES: set[OpOverload] = set()

_Function = TypeVar("_Function", bound=Lowering)


def overloads(names: str) -> list[OpOverload]:
    """The ATen overloads of `names`, separated by spaces: "add.Tensor" or, for the default overload, "relu".

    Names that this release of torch does not have are left out: releases differ in a few.
    """
    found = []
    for name in names.split():
        packet, _, overload = name.partition(".")
        entry = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if entry is not None:
            found.append(entry)
    return found


def lowers(names: str, creates: bool = False, template: bool = False) -> Callable[[_Function], _Function]:
    """Enter the decorated function for each overload of `names`.

    creates    it reads no tensor
    template   it is left to the library unless a kernel with what surrounds it measures faster (`fusion.templates`)
    """

    def enter(function: _Function) -> _Function:
        for overload in overloads(names):
            register(overload, function)
            if creates:
                CREATIONS.add(overload)
            if template:
                TEMPLATES.add(overload)
        return function

    return enter


def register(overload: OpOverload, function: Lowering) -> None:
    """Enter `function` for `overload`. Raises `ValueError` if it has one already."""
    if overload in LOWERINGS:
        raise ValueError(f"{overload} has two lowerings")
    LOWERINGS[overload] = function
