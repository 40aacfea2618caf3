"""Seeded choices for the proposals of steps: operands among the values so far, dimensions, shapes and literals.

Comes in: a `random.Random` and the values of the graph so far, real tensors. Goes out: numbers of values and texts.
A proposal that finds no operand raises `NoOperand`; one that draws what eager refuses is simply dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

_Item = TypeVar("_Item")

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class NoOperand(Exception):
    """There is no value that a proposal could work on."""


class Draw:
    """Choices over `values`; `special` allows literals such as 0, infinity and out-of-range indices."""

    def __init__(self, random: Random, values: list[Tensor], special: bool, faulty: bool) -> None:
        self.random, self.values, self.special, self.faulty = random, values, special, faulty

    def __getitem__(self, number: int) -> Tensor:
        return self.values[number]

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def among(self, items: Sequence[_Item]) -> _Item:
        return self.random.choice(items)

    def value(self, fits: Callable[[Tensor], bool] = lambda tensor: True) -> int:
        """The number of a value that `fits`; later ones are likelier."""
        fitting = [number for number, tensor in enumerate(self.values) if fits(tensor)]
        if not fitting:
            raise NoOperand
        return self.random.choices(fitting, [1 + 2 * place for place in range(len(fitting))])[0]

    def floating(self) -> int:
        return self.value(Tensor.is_floating_point)

    def partner(self, of: int, same_dtype: bool = False) -> int:
        """A value that broadcasts with value `of` (it may be that value)."""
        shape, dtype = self[of].shape, self[of].dtype
        return self.value(lambda other: broadcasts(shape, other.shape) and (other.dtype is dtype or not same_dtype))

    def dim(self, tensor: Tensor) -> int:
        """A dimension, counted from either end."""
        if tensor.ndim == 0:
            raise NoOperand
        return self.random.randrange(-tensor.ndim, tensor.ndim)

    def dims(self, tensor: Tensor) -> tuple[int, ...]:
        """One or more different dimensions, in any order."""
        if tensor.ndim == 0:
            raise NoOperand
        return tuple(self.random.sample(range(tensor.ndim), self.random.randint(1, tensor.ndim)))

    def shape_of(self, count: int) -> tuple[int, ...]:
        """A shape of `count` elements."""
        if count == 0:
            return self.among([(0,), (0, 3), (2, 0)])
        sizes, rest = [], count
        while rest > 1:
            size = self.among([divisor for divisor in range(2, rest + 1) if rest % divisor == 0][:6])
            sizes.append(size)
            rest //= size
        if self.chance(0.2):
            sizes.insert(self.random.randint(0, len(sizes)), 1)
        self.random.shuffle(sizes)
        return tuple(sizes)

    def number(self, dtype: torch.dtype) -> str:
        """A literal that an operation on `dtype` may be given, as text."""
        if dtype is torch.bool:
            return self.among(["True", "False", "1", "2"])
        if dtype.is_floating_point:
            usual = ["0.5", "2.0", "-1.0", "1.5", "3", "0.1", "-0.25", "1"]
            return self.among([*usual, "0.0", "-0.0", "inf", "nan", "1e30", "0"] if self.special else usual)
        usual = ["1", "2", "3", "-1", "5", "7"]
        return self.among([*usual, "0", "127", "-128", "255", "2.5", "True"] if self.special else usual)

    def index(self, size: int) -> int:
        """An index into a dimension of `size`; in a faulty case it may be out of range."""
        if size == 0:
            raise NoOperand
        if self.faulty and self.chance(0.3):
            return self.among([size, -size - 1, size + 5])
        return self.random.randrange(-size, size)

    def indices(self, shape: Sequence[int], size: int, negative: bool = False, distinct: bool = False) -> str:
        """The text of an int64 tensor of indices into a dimension of `size`; `distinct` where they say what to write,
        since on CUDA it is any of two values that ends up in one place."""
        count = 1
        for extent in shape:
            count *= extent
        if count > 64 or (size == 0 and count):
            raise NoOperand
        if distinct and count > size:
            raise NoOperand
        places = range(-size if negative else 0, size)
        found = self.random.sample(places, count) if distinct else [self.random.choice(places) for _ in range(count)]
        if self.faulty and found and self.chance(0.5):
            found[-1] = self.among([size, -size - 1])
        return f"torch.tensor({found}, dtype=torch.int64).reshape({tuple(shape)})"


def broadcasts(one: Sequence[int], two: Sequence[int]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(two)))
