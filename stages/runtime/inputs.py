"""Whether a call's inputs are like those the program was made for. Comes in: the tensors of a call. Raises or passes.

The captured shapes, strides, types and devices come from `Program.geometry`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stages.ir.kernel import IRError
from stages.ir.program import Geometry, Program
from stages.runtime.errors import InputMismatch
from stages.runtime.views import same_layout


def called_inputs(program: Program) -> list[str]:
    """The names of the tensors that a call passes, in order."""
    return [entry.name for entry in program.inputs if entry.kind != "constant"]


def geometry_of(program: Program, name: str) -> Geometry:
    """How the input `name` lay in memory at capture. Raises `IRError` where the program does not say."""
    if name not in program.geometry:
        raise IRError(f"program: its geometry says nothing of input '{name}'")
    return program.geometry[name]


class InputCheck:
    """Checks the user inputs of each call; weights are `weights.py`'s."""

    def __init__(self, program: Program) -> None:
        names = called_inputs(program)
        kinds = {entry.name: entry.kind for entry in program.inputs}
        self._count = len(names)
        self._sources = {entry.name: entry.source or entry.name for entry in program.inputs}
        self._wanted = [
            (position, torch.Size(g.shape), g.strides, g.dtype, g.device, name)
            for position, name in enumerate(names)
            # An input that no step reads and that is no tensor has neither a buffer nor a geometry.
            if kinds[name] == "user" and (name in program.buffers or name in program.geometry)
            for g in [geometry_of(program, name)]
        ]

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        """Raise `InputMismatch` naming the first input that does not fit."""
        if len(inputs) != self._count:
            raise InputMismatch(f"the program takes {self._count} inputs, not {len(inputs)}")
        for position, shape, strides, dtype, device, name in self._wanted:
            tensor = inputs[position]
            try:
                if (
                    tensor.shape == shape
                    and tensor.dtype is dtype
                    and tensor.device == device
                    and (tensor.stride() == strides or same_layout(tensor, shape, strides))
                ):
                    continue
            except (AttributeError, RuntimeError):  # no tensor at all, or one of a layout without strides
                pass
            wanted = Geometry(tuple(shape), strides, dtype, device)
            given = f"input '{self._sources[name]}' (number {position}) is {_given(tensor)}"
            raise InputMismatch(
                f"{given}; the program was made for {wanted}",
                "Pass a tensor like the captured one (`.contiguous()`, `.to(...)`), or compile for this one.",
            )


def _given(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return str(Geometry.of(value)) if value.layout is torch.strided else f"a tensor of layout {value.layout}"
