"""A case: inputs, a few lines of torch, what is returned, and how it is compiled. It prints as a runnable program.

Tensors that a step makes lie where the inputs do: the program runs under `made_on(device)`.

Values are numbered: first the inputs (`x0`, `x1`, ...), then the result of each step (`v2`, `v3`, ...). A step is a
line of Python with `{0}`, `{1}`, ... for its operands, so the data structure and the printed program are the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from stages.ir.schedule import Schedule

Number = bool | int | float

SCOPE: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan"), "F": torch.nn.functional}
_FLOATING = re.compile(r"torch\.(?:float32|float16|bfloat16)\b")


def made_on(device: torch.device | str) -> AbstractContextManager[Any]:
    """Meanwhile `torch.tensor`, `torch.arange` and their like make tensors on `device`, unless they name another."""
    # Dynamo guards torch's default device, so the usual one is left alone.
    return nullcontext() if torch.device(device).type == "cpu" else torch.device(device)


@dataclass(frozen=True)
class Storage:
    """Flat memory; `values` are Python numbers, converted to `dtype`."""

    dtype: torch.dtype
    values: tuple[Number, ...]

    def tensor(self, device: torch.device) -> Tensor:
        return torch.tensor(self.values, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Input:
    """A view of storage number `storage`. Strides and offset count elements; inputs of one storage share memory."""

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One line: `code` with the names of `operands` (numbers of values) put in.

    rounds    whether its floating result may differ by rounding; else every bit counts
    mutates   whether it writes to an operand
    mixes     whether it adds and scales elements in a way of its own, so that even the sign of a zero is rounding
    """

    code: str
    operands: tuple[int, ...] = ()
    rounds: bool = False
    mutates: bool = False
    mixes: bool = False

    def line(self, names: Sequence[str]) -> str:
        return self.code.format(*(names[number] for number in self.operands))

    def function(self, float64: bool = False) -> Callable[..., Any]:
        """The step as a function of its operands; with `float64`, every floating type it names is that one."""
        return _compiled(self.code, len(self.operands), float64)


@lru_cache(maxsize=4096)
def _compiled(code: str, arity: int, float64: bool) -> Callable[..., Any]:
    names = [f"a{position}" for position in range(arity)]
    text = code.format(*names)
    if float64:
        text = _FLOATING.sub("torch.float64", text)
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", dict(SCOPE))
    return function


@dataclass(frozen=True)
class Setting:
    """How a case is compiled.

    fusion, buffers, rewrite   the choices of these groups of the config
    emulate_precision_casts    `fusion.emulate_precision_casts`
    schedule                   of all kernels; None is the default one of each
    threads                    torch's
    """

    fusion: str = "default"
    buffers: str = "best"
    rewrite: str = "default"
    emulate_precision_casts: bool = False
    schedule: Schedule | None = None
    threads: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """The config of this setting, as options of torch.compile."""
        return {
            "fusion": self.fusion,
            "buffers": self.buffers,
            "rewrite": self.rewrite,
            "fusion.emulate_precision_casts": self.emulate_precision_casts,
            "debug": True,
        }


@dataclass(frozen=True)
class Case:
    """A graph, its inputs and its setting. `outputs` are numbers of values."""

    storages: tuple[Storage, ...]
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    setting: Setting = field(default_factory=Setting)

    @property
    def names(self) -> list[str]:
        first = len(self.inputs)
        return [f"{'x' if number < first else 'v'}{number}" for number in range(first + len(self.steps))]

    def tensors(self, device: torch.device | str = "cpu", float64: bool = False) -> list[Tensor]:
        """The inputs, fresh; with `float64`, the same numbers in float64 where they are floating."""
        memory = [storage.tensor(torch.device(device)) for storage in self.storages]
        if float64:
            memory = [each.double() if each.is_floating_point() else each for each in memory]
        return [memory[i.storage].as_strided(i.shape, i.strides, i.offset) for i in self.inputs]

    def run(self, inputs: Sequence[Tensor], float64: bool = False) -> list[Any]:
        """Every value, step by step in eager, on `inputs`, which lie on the CPU."""
        values: list[Any] = list(inputs)
        for step in self.steps:
            values.append(step.function(float64)(*(values[number] for number in step.operands)))
        return values

    def function(self) -> Callable[..., Any]:
        """The printed function: called with the inputs, it returns the tuple of outputs."""
        scope: dict[str, Any] = dict(SCOPE)
        exec(self.function_text(), scope)
        found: Callable[..., Any] = scope["program"]
        return found

    def function_text(self) -> str:
        """`def program(x0, ...): ...`"""
        names = self.names
        lines = [f"def program({', '.join(names[: len(self.inputs)])}):"]
        for name, step in zip(names[len(self.inputs) :], self.steps):
            lines.append(f"    {name} = {step.line(names)}")
        lines.append(f"    return ({''.join(f'{names[number]}, ' for number in self.outputs).rstrip()})")
        return "\n".join(lines) + "\n"

    def text(self, device: str = "cpu") -> str:
        """A program that runs by itself, on `device`: it prints what eager gives and what torchweld gives."""
        lines = ["import torch", "import torch.nn.functional as F", "from torch import inf, nan", ""]
        lines += ["from pipeline.backend import torchweld", ""]
        lines += [] if device == "cpu" else [f'torch.set_default_device("{device}")', ""]
        lines += ["", self.function_text(), "", "def inputs():"]
        for number, storage in enumerate(self.storages):
            values = ", ".join(map(repr, storage.values))
            lines.append(f"    s{number} = torch.tensor([{values}], dtype={storage.dtype})")
        views = (f"s{i.storage}.as_strided({i.shape}, {i.strides}, {i.offset})" for i in self.inputs)
        lines += [f"    return [{', '.join(views)}]", "", "", 'if __name__ == "__main__":']
        lines.append(f"    compiled = torch.compile(program, backend=torchweld, options={self.setting.options})")
        lines.append("    with torch.no_grad():")
        lines.append('        print("eager", *program(*inputs()), "torchweld", *compiled(*inputs()), sep="\\n")')
        if self.setting.schedule or self.setting.threads != 1:
            schedule = self.setting.schedule.text() if self.setting.schedule else "the default schedules"
            lines.insert(0, f"# It was compiled with {schedule} and ran on {self.setting.threads} threads.")
        return "\n".join(lines) + "\n"

    def pruned(self) -> Case:
        """Without the steps and inputs that neither an output nor a write depends on; values are numbered anew."""
        first, kept = len(self.inputs), set(self.outputs)
        for number in reversed(range(first, first + len(self.steps))):
            step = self.steps[number - first]
            if number in kept or step.mutates:
                kept |= {number, *step.operands}
        new = {number: position for position, number in enumerate(sorted(kept))}
        steps = [
            replace(step, operands=tuple(new[operand] for operand in step.operands))
            for number, step in enumerate(self.steps, first)
            if number in kept
        ]
        inputs = [each for number, each in enumerate(self.inputs) if number in kept]
        used = {storage: position for position, storage in enumerate(dict.fromkeys(each.storage for each in inputs))}
        return replace(
            self,
            storages=tuple(self.storages[storage] for storage in used),
            inputs=tuple(replace(each, storage=used[each.storage]) for each in inputs),
            steps=tuple(steps),
            outputs=tuple(new[number] for number in self.outputs),
        )
