"""Two ways to compute the same values, for a measurement to decide between: library steps, or one kernel.

Fusion sets contests up, the autotuner times them, and neither knows the other: both know this form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stages.ir.program import BufferSpec, Launch, Step, TensorRef
from stages.ir.schedule import Schedule


@dataclass(frozen=True)
class Contest:
    """library    the steps that compute the values now: an operation of torch's and the kernels around it
    template   the launch that would compute the same ones
    buffers    what both work on, by name; the roles tell constants, which lie in memory, from what was just computed
    """

    library: tuple[Step, ...]
    template: Launch
    buffers: Mapping[str, BufferSpec]

    @cached_property
    def key(self) -> str:
        """The hash of the template kernel, and 8 hex digits over all else that a time depends on."""
        names: dict[str, str] = {}

        def plain(value: Any) -> Any:
            if isinstance(value, TensorRef):
                return (name(value.buffer), value.shape, value.strides, value.offset, str(value.dtype))
            if isinstance(value, (tuple, list)):
                return tuple(map(plain, value))
            return tuple((key, plain(item)) for key, item in value.items()) if isinstance(value, dict) else repr(value)

        def name(buffer: str) -> str:
            spec = self.buffers[buffer]
            kind = "constant" if spec.role in ("constant", "weight") else "value"
            return names.setdefault(buffer, f"{kind}{len(names)}:{spec.dtype}[{spec.size}]")

        lines = [[name(buffer) for buffer in self.template.buffers]]
        for step in self.library:
            if isinstance(step, Launch):
                lines.append([step.kernel.hash, *map(name, step.buffers)])
            else:
                lines.append([str(step.target), *map(plain, (step.args, step.kwargs, step.outputs))])
        digest = hashlib.sha256(repr(lines).encode()).hexdigest()[:8]
        return f"{self.template.kernel.hash} {digest}"


@dataclass(frozen=True)
class Verdict:
    """schedule   of the template, where it is to be taken; None: the library steps stay
    reason     why, with the times
    """

    schedule: Schedule | None
    reason: str


Judge = Callable[[Sequence[Contest]], Sequence[Verdict]]
