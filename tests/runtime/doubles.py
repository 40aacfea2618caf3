"""Stand-ins for built kernels: torch operations on the same memory, by kernel hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stages.ir.kernel import Kernel
from stages.ir.program import Program
from tests.buffers.programs import add_kernel, scale_kernel, shift_kernel


def at(tensor: Tensor, size: int) -> Tensor:
    """`size` elements from the address of `tensor` on: all that a kernel knows of it. Keeps nothing alive that a real
    kernel would not, beyond the storage itself."""
    return torch.as_strided(tensor, (size,), (1,), tensor.storage_offset())


@dataclass
class BoundDouble:
    function: Callable[..., None]
    sizes: list[int]
    tensors: list[Tensor]
    launches: int = 0
    rebound: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        self.launches += 1
        self.function(*self.tensors)

    def check_index(self) -> None:
        """A double that met an index out of range has raised."""

    def rebind(self, position: int, tensor: Tensor) -> None:
        self.rebound.append(position)
        self.tensors[position] = at(tensor, self.sizes[position])


@dataclass
class KernelDouble:
    kernel: Kernel
    function: Callable[..., None]
    bound: list[BoundDouble] = field(default_factory=list)

    def bind(self, tensors: Sequence[Tensor]) -> BoundDouble:
        sizes = [buffer.size for buffer in self.kernel.buffers]
        made = BoundDouble(self.function, sizes, [at(t, size) for t, size in zip(tensors, sizes, strict=True)])
        self.bound.append(made)
        return made


@dataclass
class CompiledDouble:
    kernels: dict[tuple[str, None], KernelDouble]

    def of(self, kernel: Kernel) -> KernelDouble:
        return self.kernels[kernel.hash, None]


def compiled(program: Program, functions: dict[str, Callable[..., None]] | None = None) -> CompiledDouble:
    """Doubles for the kernels of `tests.buffers.programs`; `functions` replaces those of kernels of that name."""
    return CompiledDouble(
        {
            (step.kernel.hash, None): KernelDouble(
                step.kernel, (functions or {}).get(step.kernel.name) or _function(step.kernel)
            )
            for step in program.launches
        }
    )


def _function(kernel: Kernel) -> Callable[..., None]:
    size = kernel.outputs[0].size
    if kernel.inner:
        row = kernel.inner[0].extent
        assert kernel.hash == shift_kernel(size // row, row).hash
        return lambda x, out: out.copy_((x.view(-1, row) - x.view(-1, row).amax(1, keepdim=True)).view(-1))
    if len(kernel.inputs) == 1:
        factor = kernel.stores[0].value.args[1].value  # type: ignore[attr-defined]
        assert kernel.hash == scale_kernel(size, factor).hash
        return lambda x, out: torch.mul(x, factor, out=out)
    if kernel.hash == add_kernel(size).hash:
        return lambda x, y, out: torch.add(x, y, out=out)
    assert kernel.hash == add_kernel(size, flipped=True).hash
    return lambda x, y, out: out.copy_(x + y.flip(0))
