"""Weights that change after compilation. Comes in: the weights of each call. Goes out: constants that are up to date.

Constants of the program were computed from weights by its prologue. A call whose weights were changed in place (their
`_version` counts that), replaced by other tensors, or moved (`weight.data = ...`) runs the prologue again and writes
its results into the same memory, so that bound kernels and CUDA graphs stay valid. Not noticed, since torch does not
count them: writes through `weight.data`, through an array of `weight.numpy()`, and writes to inference tensors.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.ir.kernel import IRError
from stages.ir.memory import write
from stages.ir.program import Geometry, Program, tensor_refs
from stages.runtime.errors import StaleProgram
from stages.runtime.inputs import called_inputs, geometry_of
from stages.runtime.views import same_layout

# Every call looks at every weight: these run in C.
_version_of = operator.attrgetter("_version")
_address_of = Tensor.data_ptr


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """The tensors at `positions`."""
    if len(positions) < 2:
        return lambda tensors: [tensors[position] for position in positions]
    return operator.itemgetter(*positions)


@dataclass(frozen=True)
class _Seen:
    """The weights of the last call. frozen: those the constants are made of; tracked: those of them whose changes torch
    counts; direct: the addresses of those that steps read, whose every change counts up `epoch`."""

    frozen: list[Tensor]
    tracked: list[Tensor]
    versions: list[int]
    pointers: list[int]
    direct: list[int]
    epoch: int


class Weights:
    """Looks at the weights of each call.

    constants   the program's constants by name: the tensors that the steps read
    check       False: leave the constants as they are

    changes     how often `observe` has found something changed, counted after it was put right
    """

    def __init__(self, program: Program, constants: dict[str, Tensor], check: bool) -> None:
        self._program = program
        self._constants = constants
        self._check = check and program.prologue is not None
        self._lock = threading.Lock()
        positions = {name: position for position, name in enumerate(called_inputs(program))}
        used = {name for step in program.steps for name in step.reads} | {
            r.buffer for r in tensor_refs(program.outputs)
        }
        self.direct = [e.name for e in program.inputs if e.kind == "weight" and e.name in used]
        self._direct_positions = [positions[name] for name in self.direct]
        self._pick_direct = _picker(self._direct_positions)
        entries = program.prologue.weights if program.prologue is not None else ()
        if lost := [entry.name for entry in entries if entry.tensor is None]:
            raise IRError(f"program: weight '{lost[0]}' of the prologue has no tensor")
        # Weights that a call passes come first, then those that only the prologue knows.
        self._entries = sorted(entries, key=lambda entry: entry.name not in positions)
        self._order = [self._entries.index(entry) for entry in entries]
        self._pick_passed = _picker([positions[entry.name] for entry in self._entries if entry.name in positions])
        captured = [entry.tensor for entry in self._entries if entry.tensor is not None]
        self._held = captured[sum(entry.name in positions for entry in self._entries) :]
        self._geometry = [Geometry.of(tensor) for tensor in captured]
        self._seen = self._look(captured, [0] * len(self.direct), epoch=0)
        self.changes = 0

    @property
    def untracked(self) -> list[str]:
        """The weights of constants whose changes in place torch does not count: inference tensors."""
        return [
            entry.source or entry.name
            for entry, tensor in zip(self._entries, self._seen.frozen, strict=True)
            if self._check and tensor.is_inference()
        ]

    def observe(self, inputs: Sequence[Tensor]) -> int:
        """A number that differs from that of the call before where a weight that steps read lies elsewhere.

        Brings the constants up to date first. Raises `StaleProgram` where a weight has another shape, type or device
        than at capture, or an assumption of the program no longer holds.
        """
        seen = self._seen
        direct = list(map(_address_of, self._pick_direct(inputs)))
        if direct == seen.direct and (not self._check or self._unchanged(self._frozen(inputs), seen)):
            return seen.epoch
        with self._lock:
            return self._settle(inputs, direct)

    @property
    def epoch(self) -> int:
        """What the last `observe` returned."""
        return self._seen.epoch

    def _frozen(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [*self._pick_passed(inputs), *self._held]

    @staticmethod
    def _unchanged(frozen: list[Tensor], seen: _Seen) -> bool:
        return (
            all(map(operator.is_, frozen, seen.frozen))
            and list(map(_version_of, seen.tracked)) == seen.versions
            and list(map(_address_of, frozen)) == seen.pointers
        )

    @staticmethod
    def _look(frozen: list[Tensor], direct: list[int], epoch: int) -> _Seen:
        tracked = [tensor for tensor in frozen if not tensor.is_inference()]
        versions = list(map(_version_of, tracked))
        return _Seen(frozen, tracked, versions, list(map(_address_of, frozen)), direct, epoch)

    def _settle(self, inputs: Sequence[Tensor], direct: list[int]) -> int:
        """What `observe` does when something changed."""
        seen = self._seen
        frozen = self._frozen(inputs) if self._check else seen.frozen
        # Looked at before the prologue runs: a change made meanwhile is seen by the next call.
        look = self._look(frozen, direct, seen.epoch + (direct != seen.direct))
        if direct != seen.direct:
            self._fit_direct(inputs)
        if self._check and not self._unchanged(frozen, seen):
            self._refresh(frozen)
        self._seen = look
        self.changes += 1
        return look.epoch

    def _fit_direct(self, inputs: Sequence[Tensor]) -> None:
        for name, position in zip(self.direct, self._direct_positions, strict=True):
            self._fit(name, inputs[position], geometry_of(self._program, name))

    @staticmethod
    def _fit(name: str, tensor: Tensor, wanted: Geometry) -> None:
        same = tensor.dtype is wanted.dtype and tensor.device == wanted.device
        if not (same and same_layout(tensor, wanted.shape, wanted.strides)):
            raise StaleProgram(f"weight '{name}' is now {Geometry.of(tensor)}; the program was made for {wanted}")

    def _refresh(self, frozen: list[Tensor]) -> None:
        """Compute the constants anew from `frozen` and write them where they are, if the program holds for them."""
        prologue = self._program.prologue
        assert prologue is not None
        for entry, tensor, geometry in zip(self._entries, frozen, self._geometry, strict=True):
            self._fit(entry.source or entry.name, tensor, geometry)
        # Constants may be inference tensors, which can only be written in this mode.
        with torch.inference_mode():
            values = dict(zip(prologue.constants, prologue.module(*(frozen[i] for i in self._order)), strict=True))
            for name, holds in prologue.assumed.items():
                if not holds({**self._constants, **values}):
                    raise StaleProgram(f"a weight changed, and the program relied on '{name}', which no longer holds")
            self._write({name: value for name, value in values.items() if name in self._constants})

    def _write(self, values: dict[str, Tensor]) -> None:
        """Bring the constants to `values` in place, all or none."""
        old_weights = {tensor.untyped_storage().data_ptr() for tensor in self._seen.frozen}
        changed = {}
        for name, value in values.items():
            constant = self._constants[name]
            if (value.shape, value.dtype, value.layout) != (constant.shape, constant.dtype, constant.layout):
                raise StaleProgram(
                    f"constant '{name}' would be another: {value.dtype}{list(value.shape)}, {value.layout}"
                )
            if constant.layout is torch.strided:
                if value.data_ptr() == constant.data_ptr():
                    continue  # memory of a weight that was changed in place
                if constant.untyped_storage().data_ptr() in old_weights:
                    raise StaleProgram(f"constant '{name}' is memory of a weight that was replaced")
            changed[name] = value
        on_cuda = self._program.device.type == "cuda"
        if on_cuda:  # calls in flight on any stream still read the old values
            torch.cuda.synchronize(self._program.device)
        for name, value in changed.items():
            write(self._constants[name], value)
        if on_cuda:
            torch.cuda.synchronize(self._program.device)
