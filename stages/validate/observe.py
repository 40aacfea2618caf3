"""One call seen from outside: outputs, their memory, and what the call did to its inputs and to the model's state.

Comes in: a callable and one input set. Goes out: an `Observation`, whose tensors are copies on the CPU, so that later
calls cannot change them and two models are never held to compare two outputs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from stages.ir.memory import write

InputSet = tuple[tuple[Any, ...], dict[str, Any]]
"""The (args, kwargs) of one call."""

_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device)


def children_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, each with how to reach it; None for a leaf.

    Mappings (also Hugging Face's `ModelOutput`), sequences, named tuples, dataclasses, and objects with attributes
    (key-value caches) are containers.
    """
    if isinstance(value, (torch.Tensor, *_PLAIN)) or callable(value):
        return None
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", item) for name, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (tuple, list)):
        return [(f"[{position}]", item) for position, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__"):
        return [(f".{name}", item) for name, item in vars(value).items()]
    return None


def leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf of `value` with its path, such as `output.logits` or `output[0]['x']`, in order."""
    seen: set[int] = set()

    def visit(item: Any, at: str) -> Iterator[tuple[str, Any]]:
        inside = children_of(item)
        if inside is None:
            yield at, item
        elif id(item) not in seen:
            seen.add(id(item))
            for step, child in inside:
                yield from visit(child, at + step)

    yield from visit(value, path)


def structure_of(value: Any, path: str) -> dict[str, str]:
    """The full type name of every container and leaf of `value`, by path."""
    seen: set[int] = set()
    found: dict[str, str] = {}

    def visit(item: Any, at: str) -> None:
        found[at] = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
        inside = children_of(item)
        if inside is not None and id(item) not in seen:
            seen.add(id(item))
            for step, child in inside:
                visit(child, at + step)

    visit(value, path)
    return found


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One output as it came back. `value` is a dense tensor on the CPU for a tensor, else the value itself."""

    value: Any
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one call gave and did.

    leaves      outputs by path, then each input and state tensor that the call changed, as "... after the call"
    structure   type names of containers and leaves of the output, by path
    aliases     pairs of paths whose tensors share memory; at least one of the two is an output
    mutated     paths of the input and state tensors that the call changed
    """

    leaves: dict[str, Leaf]
    structure: dict[str, str]
    aliases: frozenset[tuple[str, str]]
    mutated: frozenset[str]


def observe(call: Callable[..., Any], inputs: InputSet, state: Mapping[str, torch.Tensor], seed: int) -> Observation:
    """Call `call` on a copy of `inputs`, with torch's generators seeded, and put `state` back as it was.

    state   tensors of the model that a call may change (its buffers), by name
    """
    args, kwargs = copy.deepcopy(inputs)
    given = {path: leaf for path, leaf in _inputs(args, kwargs) if isinstance(leaf, torch.Tensor)}
    given |= {f"state {name}": tensor for name, tensor in state.items()}
    before = {path: tensor.detach().clone() for path, tensor in given.items()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        result = call(*args, **kwargs)
    outputs = dict(leaves_of(result, "output"))
    mutated = frozenset(path for path, tensor in given.items() if _changed(before[path], tensor))
    leaves = {path: _leaf(value) for path, value in outputs.items()}
    leaves |= {f"{path} after the call": _leaf(tensor) for path, tensor in given.items() if path in mutated}
    seen = Observation(leaves, structure_of(result, "output"), _aliases(outputs, given), mutated)
    for path in mutated:
        if path.startswith("state "):
            with torch.no_grad():
                write(given[path], before[path])
    return seen


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for position, value in enumerate(args):
        yield from leaves_of(value, f"input {position}")
    for name, value in kwargs.items():
        yield from leaves_of(value, f"input {name}")


def _leaf(value: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(value, type(value).__name__, (), ())
    dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    strides = tuple(value.stride()) if value.layout is torch.strided else ()
    kept = dense.resolve_conj().resolve_neg().to("cpu", copy=True)
    return Leaf(kept, str(value.dtype).removeprefix("torch."), tuple(value.shape), strides)


def _changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether layout or contents differ; a NaN equals itself."""
    if before.shape != after.shape or before.dtype != after.dtype:
        return True
    return not bool(((before == after) | ((before != before) & (after != after))).all())


def _aliases(outputs: Mapping[str, Any], given: Mapping[str, torch.Tensor]) -> frozenset[tuple[str, str]]:
    """Pairs of tensors of which a write to one can be seen in the other, by the span of bytes they reach."""
    spans = {path: _span(tensor) for path, tensor in {**outputs, **given}.items()}
    pairs = set()
    for path in outputs:
        for other in spans:
            one, two = spans[path], spans[other]
            if one is None or two is None or path == other or (other in outputs and other < path):
                continue
            if one[0] == two[0] and one[1] < two[2] and two[1] < one[2]:
                pairs.add((path, other))
    return frozenset(pairs)


def _span(value: Any) -> tuple[int, int, int] | None:
    """(storage, first byte, end byte) that a dense tensor reaches; None for anything without memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.numel() == 0:
        return None
    first = value.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.untyped_storage().data_ptr(), int(first) * value.itemsize, int(last + 1) * value.itemsize
