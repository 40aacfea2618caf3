"""The candidates for matrix products, best guesses of a cost model first.

The model counts, for one program: steps along the sums, each as long as its longest part (tensor cores, loads from L2,
the latency of a load over the loads in flight), and the epilogue; times the waves of programs that the device takes;
what programs that share a tile lose on it; and no less than the bytes from memory need. The constants of `GpuFacts`
were fitted to 860 timings of 14 products of BERT, GPT-2 and ViT on one H200 (`docs/measurements/h200_gemm.md`), where
the best of the first four candidates was within 3 % of the best of all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.ir.kernel import Kernel, traffic
from stages.ir.matmul import Matmul
from stages.ir.schedule import Schedule

Space = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class GpuFacts:
    """What the model knows of a GPU.

    units        multiprocessors
    shared       bytes of shared memory that one program may have, about what a multiprocessor has
    pdl          whether launches may overlap (capability 9.0)
    rate         tensor-core operations a second of one multiprocessor, half types
    loads        bytes a second from L2 to one multiprocessor
    bandwidth    bytes a second from memory
    latency      seconds from a load's issue to its data
    first        seconds of a program before its first product
    launch       seconds of a launch
    program      seconds to start one more program
    element      seconds of the epilogue for each element of a tile
    exchange     seconds that programs which share a tile wait for each other
    partials     bytes a second at which they read and write partial sums
    narrow       by what power of the width a tile narrower than 128 falls short of `rate`
    """

    units: int = 132
    shared: int = 232448
    pdl: bool = True
    rate: float = 5.3e12
    loads: float = 1.1e11
    bandwidth: float = 4.5e12
    latency: float = 5.2e-7
    first: float = 1.9e-6
    launch: float = 7e-7
    program: float = 6e-10
    element: float = 1.1e-10
    exchange: float = 7.6e-7
    partials: float = 8.3e10
    narrow: float = 0.34


# What a prefetch of the second operand gains on a device with room for it, and costs on one without; of the whole time.
PREFETCH_GAIN, PREFETCH_LOSS = 0.97, 1.08
PREFETCHED_TERMS = 1536

# Products of float32 are written out one by one in the code of a step: at most so many, or compiling takes minutes.
UNROLLED = 1024


def candidates(kernel: Kernel, product: Matmul, space: Space, gpu: GpuFacts) -> list[Schedule]:
    """The schedules of `space` that `kernel` can have, by estimated time."""
    names = list(space)
    moved = sum(traffic(kernel))
    found: dict[Schedule, None] = {}
    for values in itertools.product(*(space[name] for name in names)):
        chosen = dict(zip(names, map(int, values)))
        prefetch = bool(chosen.pop("prefetch", 0)) and gpu.pdl
        schedule = Schedule(**chosen, launch_pdl=gpu.pdl, prefetch=prefetch)  # type: ignore[arg-type]
        if fits(product, schedule, gpu):
            found[schedule] = None
    return sorted(found, key=lambda schedule: estimate(product, moved, schedule, gpu))


def shared_bytes(product: Matmul, schedule: Schedule) -> int:
    """Bytes of shared memory of a program: the tiles of both operands, once a stage of the pipeline."""
    step = (schedule.tile_m + schedule.tile_n) * schedule.tile_k * product.first.dtype.itemsize
    return step * schedule.num_stages


def fits(product: Matmul, schedule: Schedule, gpu: GpuFacts) -> bool:
    """Whether the schedule makes sense: it runs, no tile is mostly outside, and parts are worth sharing out."""
    tile = schedule.tile_m * schedule.tile_n
    each = tile // (32 * schedule.num_warps)
    if schedule.prefetch and not product.second_in_lines:
        return False
    if shared_bytes(product, schedule) > gpu.shared or not 8 <= each <= 128:
        return False
    if product.first.dtype.itemsize == 4 and each * schedule.tile_k > UNROLLED:
        return False
    for size, extent in ((schedule.tile_m, product.m), (schedule.tile_n, product.n), (schedule.tile_k, product.k)):
        if size > 16 and size >= 2 * extent:
            return False
    down, across = _tiles(product, schedule)
    if schedule.group > 1 and down < schedule.group:
        return False
    if schedule.split_k > 1:
        steps = math.ceil(product.k / schedule.tile_k)
        return steps >= 2 * schedule.split_k and down * across * product.count <= gpu.units
    return True


def _tiles(product: Matmul, schedule: Schedule) -> tuple[int, int]:
    return math.ceil(product.m / schedule.tile_m), math.ceil(product.n / schedule.tile_n)


def estimate(product: Matmul, moved: int, schedule: Schedule, gpu: GpuFacts) -> float:
    """Seconds that one launch should take; only the order of the candidates matters. moved: bytes read and written."""
    down, across = _tiles(product, schedule)
    programs = down * across * product.count * schedule.split_k
    itemsize, tile = product.first.dtype.itemsize, schedule.tile_m * schedule.tile_n
    resident = max(1, min(gpu.shared // shared_bytes(product, schedule), 64 // schedule.num_warps, 4))
    crowd = min(resident, math.ceil(programs / gpu.units))
    waves = math.ceil(programs / (gpu.units * crowd))
    # Tensor cores take float32 (not TF32) at the rate of ordinary units, an eighth or less.
    width = min(1.0, schedule.tile_m / 64) * min(1.0, schedule.tile_n / 128) ** gpu.narrow * (2 / itemsize) ** 3
    arithmetic = 2 * tile * schedule.tile_k / (gpu.rate * width) * crowd
    loads = (schedule.tile_m + schedule.tile_n) * schedule.tile_k * itemsize / gpu.loads * crowd
    waiting = gpu.latency / max(1, schedule.num_stages - 1)
    steps = math.ceil(product.k / schedule.tile_k / schedule.split_k)
    one = gpu.first + steps * max(arithmetic, loads, waiting) + tile * gpu.element * crowd
    shared = 0.0
    if schedule.split_k > 1:
        shared = gpu.exchange + tile * 4 * (1 + schedule.split_k) * crowd / gpu.partials
    seconds = max(waves * one, moved / gpu.bandwidth) + shared + gpu.launch + programs * gpu.program
    if schedule.prefetch:
        room = programs <= gpu.units and product.k <= PREFETCHED_TERMS * schedule.split_k
        return seconds * (PREFETCH_GAIN if room else PREFETCH_LOSS)
    return seconds
