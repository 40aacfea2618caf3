"""What the recorded call changes, put back, so that the first real call behaves as eager's first call.

Comes in: the model and the tensors of the arguments, before the call. Goes out: `changed()`, the Python state that the
call changed (which a flat call could not repeat), and `put_back()` for tensors, random generators and argument
containers. Python numbers and attributes of the model stay as the call left them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.capture.model import modules_of, namespaces_of
from stages.ir.memory import write


class Snapshot:
    """The state before a call.

    Buffers, tensors in attributes, and argument tensors are copied now. Parameters are not: they are most of a
    model's memory and a forward pass writes to them rarely; `keep(tensors)` copies what a graph is about to write to.
    """

    def __init__(self, model: Callable[..., Any], leaves: Sequence[torch.Tensor], containers: Sequence[Any]) -> None:
        self._model = model
        self._tables = [
            (table, dict(table)) for module in modules_of(model).values() for table in _tensor_tables(module)
        ]
        self._containers = [(container, _copy_of(container)) for container in containers]
        self._python = _python_state(model)
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}
        held = [value for _, before in self._tables for value in before.values() if isinstance(value, torch.Tensor)]
        self.keep([tensor for tensor in held if not isinstance(tensor, torch.nn.Parameter)])
        self.keep(leaves)
        self._generators = _generator_states()

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the values of `tensors` that are not copied yet."""
        for tensor in tensors:
            if id(tensor) not in self._kept and tensor.layout is torch.strided and not tensor.is_meta:
                copy = tensor.detach().clone()
                self._kept[id(tensor)] = (tensor, copy, (tensor.shape, tensor.stride(), tensor.storage_offset()))

    def changed(self) -> list[str]:
        """The names of Python state that is not as it was: rebound attributes, changed numbers, grown lists."""
        now = _python_state(self._model)
        names = [name for name in {**self._python, **now} if not _same(self._python.get(name), now.get(name))]
        for container, before in self._containers:
            if before is not None and not _same_contents(_copy_of(container), before):
                names.append(f"an argument of type {type(container).__qualname__}")
        return names

    def put_back(self) -> None:
        """Give tensors their values, module tables their tensors, containers their items, generators their states."""
        for table, before in self._tables:
            for key in {**before, **table}:
                was, now = before.get(key), table.get(key)
                if was is now or not (isinstance(was, torch.Tensor) or isinstance(now, torch.Tensor)):
                    continue
                if key in before:
                    table[key] = was
                else:
                    del table[key]
        for tensor, copy, (shape, strides, offset) in self._kept.values():
            _write_back(tensor, copy, shape, strides, offset)
        for container, before in self._containers:
            _restore(container, before)
        _set_generator_states(self._generators)


def _tensor_tables(module: torch.nn.Module) -> list[dict[str, Any]]:
    return [module._parameters, module._buffers, module.__dict__]


def _write_back(tensor: torch.Tensor, copy: torch.Tensor, shape: Any, strides: Any, offset: int) -> None:
    with torch.no_grad():
        if (tensor.shape, tensor.stride(), tensor.storage_offset()) != (shape, strides, offset):
            tensor.as_strided_(shape, strides, offset)
        # Writing only where something changed leaves the version counters of all other tensors alone.
        if not torch.equal(tensor.detach(), copy):
            scope = torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext()
            with scope:
                write(tensor.detach(), copy)


def _copy_of(container: Any) -> Any:
    """The items of a container that can change, else None."""
    if isinstance(container, list):
        return list(container)
    if isinstance(container, dict):
        return dict(container)
    return dict(vars(container)) if hasattr(container, "__dict__") else None


def _restore(container: Any, before: Any) -> None:
    if before is None or _same_contents(_copy_of(container), before):
        return
    if isinstance(container, list):
        container[:] = before
    elif isinstance(container, dict):
        container.clear()
        container.update(before)
    else:
        vars(container).clear()
        vars(container).update(before)


def _python_state(model: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Every named value that a call may rebind or change, with a copy of its items where it is a container."""
    state: dict[str, tuple[Any, Any]] = {}
    for space in namespaces_of(model):
        for key, value in space.items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue  # each is a namespace of its own
            items = list(value) if isinstance(value, set) else _copy_of(value) if _is_builtin(value) else None
            state[space.name(key)] = (value, items)
    return state


def _is_builtin(value: Any) -> bool:
    return type(value) in (list, dict, set)


def _same(before: tuple[Any, Any] | None, now: tuple[Any, Any] | None) -> bool:
    if before is None or now is None:
        return before is now
    return _same_value(before[0], now[0]) and _same_contents(before[1], now[1])


def _same_contents(before: Any, now: Any) -> bool:
    if isinstance(before, dict) and isinstance(now, dict):
        return list(before) == list(now) and all(map(_same_value, before.values(), now.values()))
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_same_value, before, now))
    return before is now


def _same_value(before: Any, now: Any) -> bool:
    if isinstance(before, (int, float, str)) and type(before) is type(now):
        return before == now or before != before
    return before is now


def _generator_states() -> dict[str, Any]:
    states = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_generator_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
