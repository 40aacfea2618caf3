"""The candidates: the product of the declared values, less what cannot run, best guesses of the cost model first.

The model is a roofline: bytes over bandwidth or operations over rate, whichever is longer, times what a schedule wastes
(idle lanes, a last wave that does not fill the device, a row that does not fit on chip and is read again).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stages.ir.expr import Const, Load, Op, Var
from stages.ir.kernel import Kernel, traffic
from stages.ir.schedule import Schedule

# Largest number of elements a Triton program may hold at once, and the largest worth giving to one thread.
LARGEST_BLOCK = 1 << 16
ELEMENTS_PER_THREAD = 32
# Fields that are true or false; the default has `launch_pdl` where the device does.
FLAGS = ("persistent", "launch_pdl")


@dataclass(frozen=True)
class DeviceFacts:
    """What the model knows of the device.

    bandwidth     bytes a second between memory and processor
    rate          float32 operations a second
    units         processors that run programs side by side (SMs, cores)
    lanes         float32 lanes of a SIMD operation (CPU) or of a warp (GPU)
    on_chip       bytes a unit keeps near itself (L1/L2 of a core, registers of an SM)
    launch        seconds to start a kernel
    """

    bandwidth: float
    rate: float
    units: int
    lanes: int
    on_chip: int
    launch: float


CPU = DeviceFacts(bandwidth=2e10, rate=4e10, units=1, lanes=8, on_chip=256 << 10, launch=1e-6)
CUDA = DeviceFacts(bandwidth=3e12, rate=4e13, units=108, lanes=32, on_chip=256 << 10, launch=2e-6)


def candidates(
    kernel: Kernel, default: Schedule, device: str, space: Mapping[str, Sequence[int]], facts: DeviceFacts
) -> list[Schedule]:
    """The schedules to try, the default first, then by estimated time."""
    names = list(space)
    found: dict[Schedule, None] = {}
    for values in itertools.product(*(space[name] for name in names)):
        chosen = {name: bool(value) if name in FLAGS else int(value) for name, value in zip(names, values)}
        schedule = plain(kernel, replace(default, **chosen), device)  # type: ignore[arg-type]
        if fits(kernel, schedule, device) and not (schedule.launch_pdl and not default.launch_pdl):
            found[schedule] = None
    found.pop(default, None)
    return [default, *sorted(found, key=lambda schedule: estimate(kernel, schedule, device, facts))]


def plain(kernel: Kernel, schedule: Schedule, device: str) -> Schedule:
    """`schedule` with the fields that this kernel's printer does not read at their defaults: one value, one source."""
    if not kernel.inner:
        return replace(schedule, reduce_tile=1, persistent=True, num_stages=1)
    if device == "cuda" and schedule.persistent:
        return replace(schedule, reduce_tile=1 << (kernel.row_size - 1).bit_length(), num_stages=1)
    return schedule


def fits(kernel: Kernel, schedule: Schedule, device: str) -> bool:
    """Whether the schedule makes sense for the kernel: blocks of a size that runs, and no larger than the work."""
    if device == "cpu":
        extent = kernel.row_size if kernel.inner else kernel.rows
        return schedule.vector_width * schedule.unroll <= max(extent, 8)
    block = schedule.tile * (schedule.reduce_tile if kernel.inner else 1)
    threads = 32 * schedule.num_warps
    return block <= LARGEST_BLOCK and threads <= max(block, 32) and block <= threads * ELEMENTS_PER_THREAD * 4


def operations(kernel: Kernel) -> int:
    """Scalar operations of one launch, each node once at every position of its loops; transcendentals count as 16."""
    per_row = per_element = 0
    for node in kernel.nodes:
        if isinstance(node, (Const, Var, Load)):
            continue
        cost = 16 if isinstance(node, Op) and node.name in ("exp", "erf", "tanh", "log", "pow", "sin", "cos") else 1
        if kernel.inner:
            per_element += cost
        else:
            per_row += cost
    return kernel.rows * (per_row + kernel.row_size * per_element)


def estimate(kernel: Kernel, schedule: Schedule, device: str, facts: DeviceFacts) -> float:
    """Seconds that one launch should take; only the order of the candidates matters."""
    read, written = traffic(kernel)
    passes = 1 if schedule.persistent or not kernel.inner else 1 + len(kernel.reduces)
    memory = (read * passes + written) / facts.bandwidth
    arithmetic = operations(kernel) / facts.rate
    if device == "cpu":
        extent = kernel.row_size if kernel.inner else kernel.rows
        step = schedule.vector_width * schedule.unroll
        wasted = math.ceil(extent / step) * step / extent
        narrow = max(1.0, facts.lanes / schedule.vector_width)
        parallel = 1 if schedule.threads == 1 else facts.units
        return max(memory, arithmetic * wasted * narrow / parallel) + facts.launch * (1 if parallel == 1 else 4)
    programs = math.ceil(kernel.rows / schedule.tile)
    slots = facts.units * max(1, 64 // schedule.num_warps)
    waves = math.ceil(programs / slots) / (programs / slots)
    block = schedule.tile * (schedule.reduce_tile if kernel.inner else 1)
    each = block / (32 * schedule.num_warps)
    crowded = max(1.0, each / ELEMENTS_PER_THREAD)
    thin = max(1.0, 4 / each)
    return max(memory, arithmetic) * min(waves, 4.0) * crowded * thin**0.5 + facts.launch
