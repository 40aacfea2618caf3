"""What a model is made of: its modules, and the namespaces in which it can keep state.

Comes in: a module or a function. Goes out: the modules by path, and every table of names that a call may read or
rebind: attributes, parameters, buffers, closure cells, and the globals that its code names.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


class Cells:
    """The variables a function closes over, looked up as in a dictionary."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # the variable is not assigned
            raise KeyError(name) from None


@dataclass(frozen=True)
class Namespace:
    """A table in which the model may keep state: `names` of it; `path` is what users call it, "" for the model."""

    path: str
    table: Any
    names: tuple[str, ...]

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and values as they are now."""
        for name in self.names:
            with contextlib.suppress(KeyError):
                yield name, self.table[name]


def roots_of(model: Callable[..., Any]) -> list[tuple[Namespace, str, nn.Module]]:
    """The modules that a function reaches directly, and where: by closure, global, partial or as a method's owner."""
    return [
        (space, name, value)
        for space in _function_namespaces(model)
        for name, value in space.items()
        if isinstance(value, nn.Module)
    ]


def modules_of(model: Callable[..., Any]) -> dict[str, nn.Module]:
    """Every module reachable from `model`, once, by its path: submodules, or modules that a function reaches."""
    if isinstance(model, nn.Module):
        roots: list[tuple[str, nn.Module]] = [("", model)]
    else:
        roots = [(name, module) for _, name, module in roots_of(model)]
    found: dict[str, nn.Module] = {}
    seen: set[nn.Module] = set()
    for prefix, root in roots:
        found.update(root.named_modules(seen, prefix))
    return found


def namespaces_of(model: Callable[..., Any]) -> list[Namespace]:
    """Where state can change under a call of `model`: modules, and what functions close over or name as globals."""
    modules = modules_of(model)
    spaces = [] if isinstance(model, nn.Module) else list(_function_namespaces(model))
    for path, module in modules.items():
        for table in (module.__dict__, module._parameters, module._buffers, module._modules):
            spaces.append(_space(path, table))
    for kind in {type(module) for module in modules.values()}:
        if not kind.__module__.startswith("torch."):
            spaces.extend(_globals_named(kind.forward))
    return spaces


def _space(path: str, table: dict[str, Any]) -> Namespace:
    return Namespace(path, table, tuple(table))


def _function_namespaces(function: Any) -> Iterator[Namespace]:
    """Closure cells, globals named in the code, and what partials, methods and decorators wrap."""
    if isinstance(function, functools.partial):
        yield _space("", {str(number): value for number, value in enumerate(function.args)})
        yield _space("", function.keywords)
        yield from _function_namespaces(function.func)
    elif isinstance(function, types.MethodType):
        yield _space("", {"self": function.__self__})
        if not isinstance(function.__self__, nn.Module) and hasattr(function.__self__, "__dict__"):
            yield _space("", function.__self__.__dict__)
        yield from _function_namespaces(function.__func__)
    elif isinstance(function, types.FunctionType):
        cells = Namespace("", Cells(function), function.__code__.co_freevars)
        yield cells
        yield from _globals_named(function)
        for name, value in cells.items():
            # What a decorator wraps; a function that refers to itself ends here.
            if isinstance(value, types.FunctionType) and value is not function and name != function.__name__:
                yield from _function_namespaces(value)


def _globals_named(function: Any) -> Iterator[Namespace]:
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is not None:
        yield Namespace("", scope, tuple(name for name in code.co_names if name in scope))
