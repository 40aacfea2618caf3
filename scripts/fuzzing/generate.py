"""A seed becomes a case. Every proposed step is tried in eager at once, so what a case holds is what eager can run.

Comes in: a seed and the number of a case. Goes out: the same `Case` for the same two, whatever ran before. A "special"
case has NaN, infinities, signed zeros and extreme whole numbers; in a "faulty" one indices may be out of range, and its
last step may raise in eager.
"""

from __future__ import annotations

import math
import warnings
from random import Random

import torch
from torch import Tensor

from scripts.fuzzing.case import Case, Input, Number, Setting, Step, Storage
from scripts.fuzzing.draw import FLOATS, INTEGERS, Draw, NoOperand
from scripts.fuzzing.operations import choose
from stages.ir.schedule import Schedule

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33)
MOST_ELEMENTS = 4096
MOST_ELEMENTS_OF_INPUT = 600
# Beyond this, values of an ordinary case lose the digits that a comparison needs.
LARGEST = 1e4

SPECIAL_FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, -3e38, 65504.0, 1e-5, 88.7, -104.0)


def generate(seed: int, number: int, steps: int = 12, faults: bool = True) -> Case:
    """Case `number` of `seed`, of at most `steps` steps; without `faults`, none raises in eager.

    On CUDA an index out of range ends the process, in eager as everywhere.
    """
    random = Random(f"{seed}/{number}")
    special, faulty = random.random() < 0.2, random.random() < 0.03 and faults
    inputs = _Inputs(random, special)
    case = Case(tuple(inputs.storages), tuple(inputs.views), (), (), setting_of(random))
    values = case.tensors()
    grown, raises = _grow(random, values, random.randint(1, steps), special, faulty)
    outputs = _outputs(random, len(case.inputs), grown, values, raises)
    return Case(case.storages, case.inputs, tuple(grown), outputs, case.setting).pruned()


def setting_of(random: Random) -> Setting:
    """A setting: the default one mostly, else drawn key by key."""
    if random.random() < 0.4:
        return Setting()
    schedule = None
    if random.random() < 0.4:
        schedule = Schedule(
            vector_width=random.choice([1, 4, 8, 16]),
            unroll=random.choice([1, 2, 4]),
            persistent=random.random() < 0.5,
        )
    return Setting(
        fusion=random.choice(["none", "default", "aggressive", "aggressive"]),
        buffers=random.choice(["none", "inplace", "greedy_by_size", "greedy_by_breadth", "best"]),
        rewrite=random.choice(["none", "default", "default"]),
        emulate_precision_casts=random.random() < 0.3,
        schedule=schedule,
        threads=random.choice([1, 1, 1, 1, 3]),
    )


class _Inputs:
    """Two to five inputs whose shapes go together: the same one, with dimensions of 1, of other order, or parts."""

    def __init__(self, random: Random, special: bool) -> None:
        self.random, self.special = random, special
        self.storages: list[Storage] = []
        self.views: list[Input] = []
        shape = self._shape()
        dtypes = [random.choice(FLOATS), random.choice([*FLOATS, *INTEGERS, torch.bool, torch.bool])]
        for _ in range(random.randint(1, 4)):
            if self.views and random.random() < 0.08:
                self._share()
                continue
            self._add(
                self._related(shape), dtypes[0] if random.random() < 0.7 else random.choice([*dtypes, torch.int64])
            )

    def _shape(self) -> tuple[int, ...]:
        ndim = self.random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4, 4])
        shape = [self.random.choice(SIZES) for _ in range(ndim)]
        if shape and self.random.random() < 0.03:
            shape[self.random.randrange(ndim)] = 0
        while math.prod(shape) > MOST_ELEMENTS_OF_INPUT:
            shape[shape.index(max(shape))] = self.random.choice([1, 2, 3, 4])
        return tuple(shape)

    def _related(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        kind = self.random.random()
        if kind < 0.5 or not shape:
            return shape
        if kind < 0.65:
            return tuple(1 if self.random.random() < 0.4 else size for size in shape)
        if kind < 0.75:
            return shape[-self.random.randint(1, len(shape)) :]
        if kind < 0.85 and len(shape) >= 2:
            return (self.random.choice([1, 2, 3]), *shape[1:])
        if kind < 0.92 and len(shape) == 4:
            return (self.random.choice([1, 2]), self.random.choice([shape[1], 1]), 2, 2)
        return self._shape()

    def _share(self) -> None:
        """Another view of the memory of an earlier input."""
        base = self.random.choice(self.views)
        if self.random.random() < 0.5 or not base.shape or base.shape[0] < 2:
            self.views.append(base)
            return
        shape = (base.shape[0] - 1, *base.shape[1:])
        self.views.append(Input(base.storage, shape, base.strides, base.offset + base.strides[0]))

    def _add(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        strides, offset, size = self._layout(shape)
        self.storages.append(Storage(dtype, self._values(dtype, size)))
        self.views.append(Input(len(self.storages) - 1, shape, strides, offset))

    def _layout(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
        """Strides, offset, and how many elements they need: dense, permuted, channels-last, stepped or expanded."""
        order = list(range(len(shape)))
        kind = self.random.random()
        if 0.6 < kind < 0.75:
            self.random.shuffle(order)
        elif 0.75 < kind < 0.85 and len(shape) == 4:
            order = [0, 2, 3, 1]
        strides, step = [0] * len(shape), 2 if kind > 0.93 else 1
        for dim in reversed(order):
            strides[dim] = step
            step *= max(shape[dim], 1)
        if 0.85 < kind < 0.93 and shape:
            strides[self.random.randrange(len(shape))] = 0
        offset = self.random.choice([0, 0, 0, 0, 1, 3])
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
        return tuple(strides), offset, offset + (reach if 0 not in shape else 0)

    def _values(self, dtype: torch.dtype, size: int) -> tuple[Number, ...]:
        random = self.random
        if dtype is torch.bool:
            return tuple(random.random() < 0.5 for _ in range(size))
        if not dtype.is_floating_point:
            low, high = (0, 9) if dtype is torch.uint8 else (-8, 9)
            extremes = (torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0, -1 if low else 0, 100)
            return tuple(
                random.choice(extremes) if self.special and random.random() < 0.3 else random.randint(low, high)
                for _ in range(size)
            )
        halves = random.random() < 0.25  # equal and whole numbers, for ties and exact sums
        draw = (lambda: random.randint(-6, 6) / 2) if halves else (lambda: round(random.gauss(0, 1.5), 4))
        return tuple(
            random.choice(SPECIAL_FLOATS) if self.special and random.random() < 0.25 else draw() for _ in range(size)
        )


def _grow(random: Random, values: list[Tensor], steps: int, special: bool, faulty: bool) -> tuple[list[Step], bool]:
    """Steps over `values`, which get their results; and whether the last one raises."""
    draw, grown = Draw(random, values, special, faulty), []
    for _ in range(steps * 6):
        if len(grown) == steps:
            break
        try:
            step = choose(random)(draw)
        except NoOperand:
            continue
        result, failed = _tried(step, values)
        if failed and faulty and _depends_on_data(failed):
            values.append(values[0])
            return [*grown, step], True
        if result is not None and (step.mutates or _fit(result, special)):
            values.append(result)
            grown.append(step)
    return grown, False


def _tried(step: Step, values: list[Tensor]) -> tuple[Tensor | None, Exception | None]:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = step.function()(*(values[number] for number in step.operands))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return None, error
    return (result, None) if isinstance(result, Tensor) and not result.is_complex() else (None, None)


def _depends_on_data(error: Exception) -> bool:
    """Whether `error` is of the values, which a compiler meets only when it runs, and not of the shapes."""
    return any(words in str(error) for words in ("out of range", "out of bounds", "ZeroDivisionError"))


def _fit(result: Tensor, special: bool) -> bool:
    if result.numel() > MOST_ELEMENTS or result.ndim > 6:
        return False
    if special or not result.is_floating_point() or result.numel() == 0:
        return True
    return bool((result.detach().abs() < LARGEST).all())


def _outputs(random: Random, first: int, steps: list[Step], values: list[Tensor], raises: bool) -> tuple[int, ...]:
    """The last value and up to three others, those that nobody uses first; now and then an input or one twice."""
    used = {operand for step in steps for operand in step.operands}
    leaves = [number for number in range(first, len(values) - 1) if number not in used]
    others = random.sample(leaves, min(len(leaves), 2))
    if random.random() < 0.4:
        others.append(random.randrange(first if random.random() < 0.9 and steps else 0, len(values)))
    outputs = [*others, len(values) - 1]
    if not raises and random.random() < 0.03:
        outputs.append(outputs[0])
    return tuple(outputs)
