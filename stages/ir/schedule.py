"""Level 3: a `Schedule` says how a kernel's loops run on a device. It is the search space and the cached value.

A printer is (Kernel, Schedule) -> source. Every field is read by at least one printer; a field that a printer does not
read has its default there, so that equal source means equal schedule.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """How one kernel runs.

    vector_width   C++: elements a SIMD operation handles (1: scalar code)
    unroll         C++: SIMD vectors handled together in the innermost loop
    threads        C++: OpenMP threads at most; 0 is all of torch's (`torch.get_num_threads`), 1 is serial
    tile           Triton: parallel positions a program handles
    reduce_tile    Triton, looped: inner positions handled at once
    persistent     the whole row stays on chip between its loops (registers on the GPU, a scratch row on the CPU);
                   otherwise each loop computes again what it needs
    num_warps      Triton: warps a program
    num_stages     Triton: software pipelining depth of loops
    tile_m         Triton, matrix products (`ir.matmul`): rows of the result that a program computes
    tile_n         the same: columns
    tile_k         the same: terms of the sums that are multiplied at once
    split_k        the same: programs that share the sums of one tile, each a part of their terms
    group          the same: rows of tiles that run side by side, so that they share columns of the second operand in L2
    launch_pdl     Triton: the launch overlaps the end of the step before (programmatic dependent launch): the kernel
                   starts early and waits before it reads or writes what other steps touch
    prefetch       Triton, matrix products under `launch_pdl`: the second operand is brought into L2 before that wait.
                   Only where no step of the program writes it
    """

    vector_width: int = 1
    unroll: int = 1
    threads: int = 0
    tile: int = 1
    reduce_tile: int = 1
    persistent: bool = True
    num_warps: int = 4
    num_stages: int = 1
    tile_m: int = 0
    tile_n: int = 0
    tile_k: int = 0
    split_k: int = 1
    group: int = 1
    launch_pdl: bool = False
    prefetch: bool = False

    def text(self) -> str:
        """A form to paste back: `Schedule(tile=1024, num_warps=8)`, fields at their defaults left out."""
        changed = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Schedule({', '.join(changed)})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Schedule:
        """The schedule that `to_dict` gave. Raises `TypeError` naming a field that there is none of."""
        return cls(**values)


def default_schedule(rows: int, row_size: int, device: str, vector_width: int = 8) -> Schedule:
    """The schedule used where nothing was tuned.

    rows, row_size   positions of the kernel's parallel and inner axes
    device           "cpu" or "cuda"
    vector_width     SIMD lanes of float32 on this CPU
    """
    if device == "cpu":
        return Schedule(vector_width=vector_width, unroll=2, persistent=row_size <= 16384)
    if row_size == 1:
        return Schedule(tile=1024 if rows >= 1 << 18 else 256)
    block = 1 << (row_size - 1).bit_length()
    if block <= 16384:
        tile = max(1, min(1024 // block, rows))
        tile = 1 << (tile.bit_length() - 1)
        return Schedule(tile=tile, reduce_tile=block, num_warps=min(16, max(1, block * tile // 256)))
    return Schedule(tile=1, reduce_tile=4096, persistent=False, num_warps=8)
