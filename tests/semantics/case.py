"""What a case is: a function, fresh inputs for each call, and how nearly the result has to be eager's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Function = Callable[..., Any]
Inputs = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """make() gives the function or module to call, anew for each engine: it may have state.

    inputs     gives the arguments, anew for each engine and call
    more       the arguments of later calls, in order, after the first with `inputs`
    exact      False where rounding may differ: then NaN, infinities and the sign of zero still have to be eager's
    signed_zeros   False where eager's own sign of zero depends on where in memory an element lies, or on rounding
    optimize   False where `pipeline.optimize` promises something else than eager (it evaluates, without gradients)
    overrides  of the config
    raises     False where eager must take the inputs, or nothing would be compared
    """

    make: Callable[[], Function]
    inputs: Inputs
    more: tuple[Inputs, ...] = ()
    exact: bool = True
    signed_zeros: bool = True
    optimize: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    raises: bool = True


def case(function: Function, inputs: Inputs, *more: Inputs, **options: Any) -> Case:
    """The case of a function without state."""
    return Case(lambda: function, inputs, more, **options)


def group(inputs: Inputs, functions: Mapping[str, Function], **options: Any) -> Case:
    """Functions of the same inputs as one case, which is compiled once; the result is a dict by their names."""

    def all_of_them(*args: Any) -> dict[str, Any]:
        return {name: function(*args) for name, function in functions.items()}

    return case(all_of_them, inputs, raises=False, **options)


def each(inputs: Inputs, functions: Mapping[str, Function], **options: Any) -> dict[str, Case]:
    """Functions of the same inputs as a case each: for those that fail, change their inputs or return them."""
    return {name: case(function, inputs, **options) for name, function in functions.items()}


def allowed(inputs: Inputs, functions: Mapping[str, Function]) -> dict[str, Function]:
    """Those of `functions` that eager takes these inputs for."""
    taken = {}
    for name, function in functions.items():
        try:
            function(*inputs())
        except RuntimeError:
            continue
        taken[name] = function
    return taken
