"""What a model is made of, and its weights as they are at each call.

Comes in: a module or a function. Goes out: its modules and the namespaces in which it can keep state (attributes,
closure cells, globals it names), and for the weights of a graph, where each hangs, so that a weight that was swapped
for another tensor is noticed at the next call.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stages.capture.signature import SignatureMismatch


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


class Weights:
    """The tensors of a model that a graph takes, looked up at each call.

    `current()` costs a dictionary look-up a weight and module. Modules are watched too: with another one in its place,
    the weights looked up would be those of the old one. Every tensor has to hang on a namespace of the model.
    """

    def __init__(self, model: Callable[..., Any], tensors: Sequence[torch.Tensor], gradients: bool) -> None:
        places = _places(model)
        self._gradients = gradients
        self._count = len(tensors)
        self._tables: list[Any] = []
        self._keys: list[str] = []
        self._paths: list[str] = []
        self._tied: list[tuple[int, int]] = []
        for tensor in tensors:
            self._watch(*places[id(tensor)][0])
        for number, tensor in enumerate(tensors):
            for place in places[id(tensor)][1:]:
                self._tied.append((number, len(self._keys)))
                self._watch(*place)
        self._first_module = len(self._keys)
        for space, key, _ in [] if isinstance(model, nn.Module) else roots_of(model):
            self._watch(space.table, key, key)
        for path, module in modules_of(model).items():
            for key in module._modules:
                self._watch(module._modules, key, f"{path}.{key}" if path else key)
        self._seen = list(map(operator.getitem, self._tables, self._keys))
        self._facts = [_facts(tensor, gradients) for tensor in tensors]

    def _watch(self, table: Any, key: str, path: str) -> None:
        self._tables.append(table)
        self._keys.append(key)
        self._paths.append(path)

    def current(self) -> list[torch.Tensor]:
        """The weights as they are now, in the order given.

        Raises `SignatureMismatch` if one is gone, has another shape, dtype, layout or device, if weights that were one
        tensor no longer are, or if a module was replaced.
        """
        try:
            found = list(map(operator.getitem, self._tables, self._keys))
        except KeyError as error:
            raise SignatureMismatch(f"the model no longer has its weight or module {error}") from None
        if not all(map(operator.is_, found, self._seen)):
            self._examine(found)
        return found[: self._count]

    def _examine(self, found: list[Any]) -> None:
        for number in range(self._first_module, len(found)):
            if found[number] is not self._seen[number]:
                raise SignatureMismatch(f"module '{self._paths[number]}' was replaced after the model was captured")
        for number, facts in enumerate(self._facts):
            now = _facts(found[number], self._gradients) if isinstance(found[number], torch.Tensor) else None
            if now != facts:
                raise SignatureMismatch(f"weight '{self._paths[number]}' is {now}; it was {facts} when captured")
        for number, other in self._tied:
            if found[number] is not found[other]:
                first, second = self._paths[number], self._paths[other]
                raise SignatureMismatch(f"weights '{first}' and '{second}' were one tensor when captured")
        self._seen = found


def _facts(tensor: torch.Tensor, gradients: bool) -> tuple[Any, ...]:
    gradient = ("requires_grad",) if gradients and tensor.requires_grad else ()
    return (tuple(tensor.shape), tensor.dtype, tensor.stride(), str(tensor.device), *gradient)


def _places(model: Callable[..., Any]) -> dict[int, list[tuple[Any, str, str]]]:
    """Where each tensor hangs, by its id: (table, key, path); tied weights have several places."""
    places: dict[int, list[tuple[Any, str, str]]] = {}
    for space in namespaces_of(model):
        for key, value in space.items():
            if isinstance(value, torch.Tensor):
                places.setdefault(id(value), []).append((space.table, key, space.name(key)))
    return places
