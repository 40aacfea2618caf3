"""The weights of a graph as they are at each call of it.

Comes in: a model and the tensors of it that a graph takes. Goes out: the tensors that hang in their places now, at the
cost of a few dozen nanoseconds a module, with the changes noticed that would make the graph wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stages.capture.model import modules_of, namespaces_of, roots_of
from stages.capture.signature import SignatureMismatch


@dataclass(frozen=True)
class Place:
    """Where a value hangs: `table[key]`; `path` is what users call it."""

    table: Any
    key: str
    path: str

    def value(self) -> Any:
        try:
            return self.table[self.key]
        except KeyError:
            raise SignatureMismatch(f"the model no longer has '{self.path}'") from None


class Weights:
    """Looks up `tensors` (each hangs in a namespace of `model`) at each call.

    The tables of all modules are compared with copies of them, which takes one call into the interpreter's own code:
    equal entries are the same object, or a tensor of one element with the same value. The latter are compared one by
    one. Any difference leads to a look at everything.
    """

    def __init__(self, model: Callable[..., Any], tensors: Sequence[torch.Tensor], gradients: bool) -> None:
        places = _places(model)
        modules = modules_of(model)
        self._gradients = gradients
        self._weights = [places[id(tensor)][0] for tensor in tensors]
        self._tied = [
            (place, other) for place, tensor in zip(self._weights, tensors) for other in places[id(tensor)][1:]
        ]
        self._modules = _module_places(model, modules)
        self._facts = [_facts(tensor, gradients) for tensor in tensors]
        self._children = [place.value() for place in self._modules]
        tables = [table for module in modules.values() for table in (module._parameters, module._buffers)]
        self._tables = [table for table in (*tables, *(module._modules for module in modules.values())) if table]
        compared = {id(table) for table in self._tables}
        single = [
            number
            for number, tensor in enumerate(tensors)
            if tensor.numel() == 1 or id(self._weights[number].table) not in compared
        ]
        singles = [self._weights[number] for number in single]
        singles += [place for place in self._modules if id(place.table) not in compared]
        singles += [other for _, other in self._tied if id(other.table) not in compared]
        self._single_tables = [place.table for place in singles]
        self._single_keys = [place.key for place in singles]
        self._remember()

    def current(self) -> list[torch.Tensor]:
        """The weights as they are now, in the order given; not to be changed by the caller.

        Raises `SignatureMismatch` if one is gone, has another shape, dtype, layout or device, if weights that were one
        tensor no longer are, or if a module was replaced.
        """
        if not self._unchanged():
            self._examine()
            self._remember()
        return self._now

    def _unchanged(self) -> bool:
        try:
            if self._tables != self._copies:
                return False
            found = map(operator.getitem, self._single_tables, self._single_keys)
            return all(map(operator.is_, found, self._singles))
        except (RuntimeError, TypeError, ValueError, KeyError):
            # Two different tensors have no single truth value, and may not even be comparable.
            return False

    def _remember(self) -> None:
        self._copies = [dict(table) for table in self._tables]
        self._singles = list(map(operator.getitem, self._single_tables, self._single_keys))
        self._now = [place.value() for place in self._weights]

    def _examine(self) -> None:
        for place, child in zip(self._modules, self._children):
            if place.value() is not child:
                raise SignatureMismatch(f"module '{place.path}' was replaced after the model was captured")
        for place, facts in zip(self._weights, self._facts):
            value = place.value()
            now = _facts(value, self._gradients) if isinstance(value, torch.Tensor) else f"a {type(value).__qualname__}"
            if now != facts:
                raise SignatureMismatch(f"weight '{place.path}' is {now}; it was {facts} when captured")
        for place, other in self._tied:
            if place.value() is not other.value():
                raise SignatureMismatch(f"weights '{place.path}' and '{other.path}' were one tensor when captured")


def _facts(tensor: torch.Tensor, gradients: bool) -> str:
    gradient = ", requires_grad" if gradients and tensor.requires_grad else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}{gradient}"


def _places(model: Callable[..., Any]) -> dict[int, list[Place]]:
    """The places of each tensor, by its id; tied weights have several."""
    places: dict[int, dict[tuple[int, str], Place]] = {}
    for space in namespaces_of(model):
        for key, value in space.items():
            if isinstance(value, torch.Tensor):
                place = Place(space.table, key, space.name(key))
                places.setdefault(id(value), {}).setdefault((id(space.table), key), place)
    return {tensor: list(found.values()) for tensor, found in places.items()}


def _module_places(model: Callable[..., Any], modules: dict[str, nn.Module]) -> list[Place]:
    """Where each module hangs in its parent, or in what the function reaches."""
    roots = [] if isinstance(model, nn.Module) else roots_of(model)
    places = [Place(space.table, key, key) for space, key, _ in roots]
    for path, module in modules.items():
        places.extend(Place(module._modules, key, f"{path}.{key}" if path else key) for key in module._modules)
    return places
