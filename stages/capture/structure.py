"""How the result of a flat call is put together: once compiled from a recorded result, then run at each call.

Comes in: what the model returned in the recorded call, and where each of its tensors came from. Goes out: a function
from `(outputs, leaves, weights)` (of the graph, of the arguments, of the model) to a fresh result of the same types:
tuples, lists, dicts, named tuples, dataclasses, `ModelOutput`s, and plain objects that hold tensors in attributes,
such as a key-value cache. What the model returned without making it (an argument, a parameter) is that very object.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stages.capture.signature import ATOMS, SELVES, NotFlat

Tensors = Sequence[Any]
Builder = Callable[[Tensors, Tensors, Tensors], Any]


class Sources:
    """Where a tensor of the result comes from, by identity: an argument, the model, or the graph.

    weights   the model's tensors that a flat call looks up: those the graph takes (`held`), then those of
              `model_tensors` (ids) that the result contains, in the order in which `builder` met them
    """

    def __init__(self, outputs: Tensors, leaves: Tensors, held: Tensors, model_tensors: set[int]) -> None:
        self.weights = list(held)
        self._outputs = outputs
        self._model_tensors = model_tensors
        self._output = {id(value): number for number, value in reversed(list(enumerate(outputs)))}
        self._leaf = {id(value): number for number, value in reversed(list(enumerate(leaves)))}
        self._used: set[int] = set()

    def builder(self, value: torch.Tensor, path: str) -> Builder:
        self._used.add(id(value))
        # An output that is an argument or a weight is returned as that object, so these take precedence.
        if id(value) in self._leaf:
            number = self._leaf[id(value)]
            return lambda outputs, leaves, weights: leaves[number]
        if id(value) in self._model_tensors:
            number = next((at for at, weight in enumerate(self.weights) if weight is value), len(self.weights))
            if number == len(self.weights):
                self.weights.append(value)
            return lambda outputs, leaves, weights: weights[number]
        if id(value) in self._output:
            number = self._output[id(value)]
            return lambda outputs, leaves, weights: outputs[number]
        raise NotFlat(f"{path} is a tensor that neither the graph nor the arguments nor the model gave")

    def outputs_unused(self) -> list[Any]:
        """The graph's outputs that no builder asked for."""
        return [value for value in self._outputs if id(value) not in self._used]


def make_builder(result: Any, sources: Sources, existing: Iterable[Any]) -> Builder:
    """The function that builds a result like `result`; see the head of this file.

    `existing` are containers and objects that were there before the call. Raises `NotFlat` for a result that cannot be
    built without running the model's own code.
    """
    return _Template(sources, {id(value) for value in existing}).part(result, "the result")[0]


class _Template:
    """Compiles a result into builders; each comes with whether a tensor is inside."""

    def __init__(self, sources: Sources, existing: set[int]) -> None:
        self._sources = sources
        self._existing = existing
        self._open: set[int] = set()

    def part(self, value: Any, path: str) -> tuple[Builder, bool]:
        if isinstance(value, torch.Tensor):
            return self._sources.builder(value, path), True
        if isinstance(value, (*ATOMS, *SELVES)) or callable(value):
            return _constant(value), False
        if id(value) in self._open:
            raise NotFlat(f"{path} contains itself")
        self._open.add(id(value))
        builder, has_tensor = self._container(value, path)
        self._open.discard(id(value))
        if id(value) in self._existing:
            if has_tensor:
                raise NotFlat(f"{path} is a container from before the call, with tensors in it")
            return _constant(value), False
        return builder, has_tensor

    def _container(self, value: Any, path: str) -> tuple[Builder, bool]:
        kind = type(value)
        if isinstance(value, (tuple, list)):
            parts, has_tensor = self._parts({f"[{number}]": part for number, part in enumerate(value)}, path)
            return _sequence(value, list(parts.values()), path), has_tensor
        if isinstance(value, dict):
            items, has_tensor = self._parts(value, path)
            attributes, more = self._parts(vars(value), path) if hasattr(value, "__dict__") else ({}, False)
            return _mapping(value, items, attributes, path), has_tensor or more
        if kind in (set, frozenset) and all(isinstance(part, ATOMS) for part in value):
            return (lambda outputs, leaves, weights: kind(value)), False
        if _is_plain_object(value):
            attributes, has_tensor = self._parts(vars(value), path)
            # Without tensors inside, the object is the model's own business: a config, a tokenizer.
            return (_object(kind, attributes) if has_tensor else _constant(value)), has_tensor
        raise NotFlat(f"{path} is a {kind.__qualname__}, which cannot be built from tensors")

    def _parts(self, parts: dict[Any, Any], path: str) -> tuple[dict[Any, Builder], bool]:
        built = {key: self.part(part, f"{path}, {key}") for key, part in parts.items()}
        return {key: builder for key, (builder, _) in built.items()}, any(has for _, has in built.values())


def _constant(value: Any) -> Builder:
    return lambda outputs, leaves, weights: value


def _sequence(recorded: Any, parts: list[Builder], path: str) -> Builder:
    kind = type(recorded)
    if kind is list:
        return lambda outputs, leaves, weights: [part(outputs, leaves, weights) for part in parts]
    if kind is tuple:
        return lambda outputs, leaves, weights: tuple([part(outputs, leaves, weights) for part in parts])
    if hasattr(kind, "_make"):
        return lambda outputs, leaves, weights: kind._make([part(outputs, leaves, weights) for part in parts])
    if kind.__module__ == "torch.return_types":
        return lambda outputs, leaves, weights: kind([part(outputs, leaves, weights) for part in parts])
    raise NotFlat(f"{path} is a {kind.__qualname__}, a sequence of its own kind")


def _mapping(recorded: Any, items: dict[Any, Builder], attributes: dict[str, Builder], path: str) -> Builder:
    kind, pairs = type(recorded), list(items.items())

    def values(outputs: Tensors, leaves: Tensors, weights: Tensors) -> dict[Any, Any]:
        return {key: part(outputs, leaves, weights) for key, part in pairs}

    if kind is dict:
        return values
    if kind is OrderedDict:
        return lambda outputs, leaves, weights: OrderedDict(values(outputs, leaves, weights))
    if kind is defaultdict:
        factory = recorded.default_factory
        return lambda outputs, leaves, weights: defaultdict(factory, values(outputs, leaves, weights))
    if dataclasses.is_dataclass(kind) and issubclass(kind, OrderedDict):
        return _ordered_dataclass(kind, pairs, attributes)
    raise NotFlat(f"{path} is a {kind.__qualname__}, a mapping of its own kind")


def _ordered_dataclass(kind: Any, pairs: list[tuple[Any, Builder]], attributes: dict[str, Builder]) -> Builder:
    """A dataclass that is a dict of its fields: Hugging Face's `ModelOutput`.

    Items and attributes are set as `OrderedDict` sets them: the class's own constructor looks through the values of
    its fields at each call, which takes longer than all else the flat call does.
    """
    fields = list(attributes.items())

    def build(outputs: Tensors, leaves: Tensors, weights: Tensors) -> Any:
        made = OrderedDict.__new__(kind)
        made.__dict__.update({name: part(outputs, leaves, weights) for name, part in fields})
        for key, part in pairs:
            OrderedDict.__setitem__(made, key, part(outputs, leaves, weights))
        return made

    return build


def _object(kind: type, attributes: dict[str, Builder]) -> Builder:
    pairs = list(attributes.items())

    def build(outputs: Tensors, leaves: Tensors, weights: Tensors) -> Any:
        made: Any = object.__new__(kind)
        made.__dict__.update({name: part(outputs, leaves, weights) for name, part in pairs})
        return made

    return build


def _is_plain_object(value: Any) -> bool:
    """Whether the attributes in `__dict__` are all there is to the object."""
    kind: Any = type(value)
    return (
        hasattr(value, "__dict__")
        and kind.__new__ is object.__new__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
        and not isinstance(value, torch.nn.Module)
    )
