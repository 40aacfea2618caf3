"""What codegen hands to the runtime and the autotuner: kernels that are built, and kernels bound to memory.

Both printers (`cpp`, `triton`) give values of these shapes; nobody outside codegen needs to know which of them did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from stages.ir.kernel import Kernel
from stages.ir.program import Launch
from stages.ir.schedule import Schedule


class BoundKernel(Protocol):
    """A kernel with an address for each of its buffers.

    It keeps the tensors alive that it was bound to, but not one passed to `rebind`: whoever rebinds owns the memory.
    """

    def __call__(self) -> None:
        """Launch; on CUDA on the current stream.

        Raises `IndexError` naming the kernel where an index was out of range: on the CPU of this launch, on CUDA of an
        earlier one (see `check_index`). Nothing outside of the buffers is read either way.
        """

    def check_index(self) -> None:
        """Raise `IndexError` where a launch of this kernel that has ended met an index out of range; waits for none.

        For whoever launches without calling, as a CUDA graph does. On the CPU every launch has raised its own error.
        """

    def rebind(self, position: int, tensor: Tensor) -> None:
        """Use the memory of `tensor` for `kernel.buffers[position]` from the next launch on."""


class CompiledKernel(Protocol):
    """One (kernel, schedule), built.

    source      what was compiled, for people to read
    file_name   a name for `source` when it is written out, such as "softmax_1f2e….cpp"
    resources   what the compiler says it needs: registers, spills, shared bytes where known
    cached      True where the binary came from the cache and nothing was compiled
    """

    @property
    def kernel(self) -> Kernel: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def source(self) -> str: ...
    @property
    def file_name(self) -> str: ...
    @property
    def resources(self) -> dict[str, int]: ...
    @property
    def cached(self) -> bool: ...

    def bind(self, tensors: Sequence[Tensor]) -> BoundKernel:
        """The kernel on `tensors`, one for each of `kernel.buffers` in order.

        A tensor is flat storage of which only the address counts: `kernel.buffers[n].size` elements from its first.
        Raises `IRError` where the count is wrong or a tensor's storage is too short.
        """


@dataclass(frozen=True)
class Compiled:
    """All kernels of one program.

    kernels   by (kernel hash, schedule of the launch); None is the schedule of a launch that was not tuned
    sources   by file name
    seconds   time spent on printing, compiling and loading
    cached    True where nothing had to be compiled
    """

    kernels: dict[tuple[str, Schedule | None], CompiledKernel]
    sources: dict[str, str]
    seconds: float
    cached: bool

    def kernel_of(self, launch: Launch) -> CompiledKernel:
        """What runs `launch`."""
        return self.kernels[launch.kernel.hash, launch.schedule]
