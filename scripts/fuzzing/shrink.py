"""A failing case becomes a small one that fails in the same way (delta debugging, Zeller and Hildebrandt 2002).

Comes in: a case and a predicate. Goes out: a case on which the predicate still holds and no single move below makes it
smaller: fewer outputs, steps left out or made inputs, a plainer setting, smaller and dense inputs, plainer values.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scripts.fuzzing.case import Case, Input, Setting, Step, Storage

Fails = Callable[[Case], bool]


def shrink(case: Case, fails: Fails, seconds: float = 60.0, faults: bool = True) -> Case:
    """The smallest case found within `seconds`; `case` itself where nothing smaller fails.

    Without `faults` no case is tried whose last step raises in eager on the CPU: an index that a smaller input puts out
    of range costs a process its GPU.
    """
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for moves in (_fewer_outputs, _fewer_steps, _plainer_setting, _smaller_inputs, _plainer_values):
            taken = True
            while taken:
                taken = False
                for smaller in moves(case):
                    if time.monotonic() > deadline:
                        return case
                    if size_of(smaller) < size_of(case) and _runs(smaller, faults) and fails(smaller):
                        case, taken, progress = smaller, True, True
                        break
    return case


def size_of(case: Case) -> tuple[int, ...]:
    """What is made smaller: steps first, then outputs, inputs, the setting, elements, layout, and digits of values."""
    values = [number for storage in case.storages for number in storage.values]
    plain = sum(getattr(case.setting, name) != getattr(Setting(), name) for name in Setting.__dataclass_fields__)
    layout = sum(each.offset + sum(each.strides) for each in case.inputs)
    digits = sum(len(repr(number)) for number in values) + sum(number not in (0, 1) for number in values)
    return len(case.steps), len(case.outputs), len(case.inputs), plain, len(values), layout, digits


def _runs(case: Case, faults: bool) -> bool:
    """Whether eager gets through all steps; with `faults` the last one may raise."""
    steps = case.steps[:-1] if faults else case.steps
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = replace(case, steps=steps).run(case.tensors())
    except Exception:
        return False
    return all(isinstance(value, Tensor) for value in values)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    for place in range(len(case.outputs)):
        if len(case.outputs) > 1:
            yield replace(case, outputs=case.outputs[:place] + case.outputs[place + 1 :]).pruned()


def _fewer_steps(case: Case) -> Iterator[Case]:
    """Without the last steps; with a step's result replaced by an operand of it, or by an input of its value."""
    first = len(case.inputs)
    for number in range(first + len(case.steps) - 2, first - 1, -1):
        shorter = replace(case, steps=case.steps[: number - first + 1], outputs=(number,))
        yield shorter.pruned()
    for position, step in reversed(list(enumerate(case.steps))):
        for operand in step.operands:
            yield _instead(case, first + position, operand).pruned()
    values = _values(case)
    for position in reversed(range(len(case.steps))):
        if position < len(values):
            yield _as_input(case, position, values[position]).pruned()


def _instead(case: Case, number: int, other: int) -> Case:
    """`case` with value `other` wherever value `number` is used; its own step does nothing."""

    def swapped(operands: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(other if operand == number else operand for operand in operands)

    first = len(case.inputs)
    steps = [replace(step, operands=swapped(step.operands)) for step in case.steps]
    steps[number - first] = Step("{0}", (other,))
    return replace(case, steps=tuple(steps), outputs=swapped(case.outputs))


def _values(case: Case) -> list[Tensor]:
    """What each step gives; fewer where one raises."""
    found: list[Any] = case.tensors()
    copies = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in case.steps:
            try:
                found.append(step.function()(*(found[operand] for operand in step.operands)))
            except Exception:
                break
            copies.append(found[-1].clone(memory_format=torch.preserve_format))
    return copies


def _as_input(case: Case, position: int, value: Tensor) -> Case:
    """`case` with the result of step `position` as a new, last input; values are numbered anew."""
    first = len(case.inputs)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride())) if value.numel() else 0
    storage = Storage(value.dtype, tuple(value.as_strided((reach,), (1,)).tolist()))
    given = Input(len(case.storages), tuple(value.shape), tuple(value.stride()))

    def renumbered(number: int) -> int:
        if number == first + position:
            return first
        return number if number < first else number + 1

    steps = [replace(step, operands=tuple(map(renumbered, step.operands))) for step in case.steps]
    steps[position] = Step("{0}", (first,))
    outputs = tuple(map(renumbered, case.outputs))
    return replace(
        case, storages=(*case.storages, storage), inputs=(*case.inputs, given), steps=tuple(steps), outputs=outputs
    )


def _plainer_setting(case: Case) -> Iterator[Case]:
    plain = Setting()
    for name in Setting.__dataclass_fields__:
        if getattr(case.setting, name) != getattr(plain, name):
            yield replace(case, setting=replace(case.setting, **{name: getattr(plain, name)}))


def _smaller_inputs(case: Case) -> Iterator[Case]:
    """All dimensions of one size halved or made 1, or those of one input; inputs made dense, of their own memory."""
    sizes = sorted({size for each in case.inputs for size in each.shape if size > 1}, reverse=True)
    for size in sizes:
        for less in sorted({1, 2, size // 2, size - 1} - {0, size}):
            yield _resized(case, lambda number, old, size=size, less=less: less if old == size else old)  # type: ignore[misc]
    for place, given in enumerate(case.inputs):
        for dim, size in enumerate(given.shape):
            if size > 1:
                shape = (*given.shape[:dim], size // 2, *given.shape[dim + 1 :])
                yield _with_input(case, place, shape)
        yield _with_input(case, place, given.shape)


def _resized(case: Case, change: Callable[[int, int], int]) -> Case:
    for place, given in enumerate(case.inputs):
        case = _with_input(case, place, tuple(change(place, size) for size in given.shape))
    return case


def _with_input(case: Case, place: int, shape: tuple[int, ...]) -> Case:
    """Input `place` cut to `shape`, dense, in memory of its own."""
    given = case.inputs[place]
    storage = case.storages[given.storage]
    tensor = storage.tensor(torch.device("cpu")).as_strided(given.shape, given.strides, given.offset)
    cut = tensor[tuple(slice(0, size) for size in shape)].contiguous()
    new = Input(len(case.storages), tuple(cut.shape), tuple(cut.stride()))
    inputs = (*case.inputs[:place], new, *case.inputs[place + 1 :])
    # `tolist` keeps NaN payloads and signs of zero as a Python number does, which is all that a storage holds.
    storages = (*case.storages, Storage(storage.dtype, tuple(cut.flatten().tolist())))
    used = {number: at for at, number in enumerate(dict.fromkeys(each.storage for each in inputs))}
    return replace(
        case,
        storages=tuple(storages[number] for number in used),
        inputs=tuple(replace(each, storage=used[each.storage]) for each in inputs),
    )


def _plainer_values(case: Case) -> Iterator[Case]:
    """Whole storages of one number, then halves, then single elements; then numbers of fewer digits."""
    for place, storage in enumerate(case.storages):
        length = len(storage.values)
        chunk = length
        while chunk:
            for begin in range(0, length, chunk):
                for plain in (0, 1):
                    filled = (plain,) * len(storage.values[begin : begin + chunk])
                    values = (*storage.values[:begin], *filled, *storage.values[begin + chunk :])
                    yield _with_values(case, place, values)
            chunk //= 2
        rounded = tuple(round(number) if _is_finite(number) else number for number in storage.values)
        yield _with_values(case, place, rounded)


def _is_finite(number: bool | int | float) -> bool:
    return number == number and abs(number) != float("inf")


def _with_values(case: Case, place: int, values: tuple[bool | int | float, ...]) -> Case:
    storages = list(case.storages)
    storages[place] = replace(storages[place], values=values)
    return replace(case, storages=tuple(storages))
