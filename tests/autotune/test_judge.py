"""Contests: which schedules are tried, who wins, and that nothing is timed twice. Times come from a fake clock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from stages.autotune import judge as room
from stages.autotune.config import AutotuneConfig
from stages.autotune.database import Database
from stages.autotune.judge import judge
from stages.autotune.products import GpuFacts, candidates, estimate, fits, shared_bytes
from stages.autotune.timing import Timing
from stages.ir.contest import Contest
from stages.ir.kernel import traffic
from stages.ir.matmul import matmul_of
from stages.ir.program import BufferSpec, Extern, Launch, TensorRef
from stages.ir.schedule import Schedule, default_schedule
from tests import products

GPU = GpuFacts()
SPACE = {
    "tile_m": [32, 64, 128],
    "tile_n": [32, 64, 128],
    "tile_k": [64, 128],
    "split_k": [1, 2, 4],
    "num_warps": [4, 8],
    "num_stages": [3, 4],
    "prefetch": [0, 1],
}


def contest(kernel, role="constant", names=("x", "w", "y")) -> Contest:
    """A product of x and w against torch's mm."""
    roles = dict(zip(names, ("arena", role, "output")))
    specs = {
        name: BufferSpec(name, buffer.dtype.torch, buffer.size, roles[name])
        for name, buffer in zip(names, kernel.buffers, strict=True)
    }
    refs = [TensorRef(name, (specs[name].size,), (1,)) for name in names]
    library = Extern(torch.ops.aten.mm.out, tuple(refs[:2]), {}, (refs[2],), out=True)
    return Contest((library,), Launch(kernel, names), specs)


class Built:
    """A kernel that does nothing and spills where its schedule says so."""

    def __init__(self, schedule, spills):
        self.schedule, self.resources = schedule, {"spills": spills}

    def bind(self, tensors):
        return lambda: None


class Court:
    """`judge` with a builder and a clock of its own. times: seconds by schedule, None for the library."""

    def __init__(self, times, margin=0.02, trials=8, refuses=lambda schedule: False, spills=lambda schedule: 0):
        self.times, self.refuses, self.spills = times, refuses, spills
        self.config = AutotuneConfig(trials=2, products=SPACE, product_trials=trials, margin=margin)
        self.database = Database(None, "gpu", "1")
        self.built, self.timed = [], 0

    def build(self, work):
        if any(self.refuses(schedule) for _, schedule in work):
            raise RuntimeError("out of resource: shared memory")
        self.built += [schedule for _, schedule in work]
        return [Built(schedule, self.spills(schedule)) for _, schedule in work]

    def measure(self, runs):
        self.timed += len(runs)
        schedules = [*self.able, None]
        return [Timing(*[2 * self.times(schedule)] * 3) for schedule in schedules[-len(runs) :]]

    def __call__(self, *contests):
        kernel = contests[0].template.kernel
        wanted = candidates(kernel, matmul_of(kernel), SPACE, GPU)
        if contests[0].buffers["w"].role != "constant":
            wanted = [schedule for schedule in wanted if not schedule.prefetch]
        wanted = wanted[: self.config.product_trials]
        self.able = [s for s in wanted if not self.refuses(s) and not self.spills(s)]
        untuned = lambda kernel, device: default_schedule(kernel.rows, kernel.row_size, "cuda")  # noqa: E731
        return judge(contests, self.config, self.build, self.database, untuned, torch.device("cpu"), GPU, self.measure)


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    """Two copies of each weight."""
    monkeypatch.setattr(room, "COLD_BYTES", 1)


PRODUCT = products.product(64, 64, 256, transposed=(False, True))


def test_the_fastest_schedule_wins_by_more_than_the_margin():
    ranked = candidates(PRODUCT, matmul_of(PRODUCT), SPACE, GPU)
    court = Court(lambda schedule: {None: 5.0e-6, ranked[2]: 4.0e-6}.get(schedule, 6e-6))
    (verdict,) = court(contest(PRODUCT))
    assert verdict.schedule == ranked[2]
    assert verdict.reason == "4.00 µs as one kernel, 5.00 µs as 1"
    (narrow,) = Court(lambda schedule: 5e-6 if schedule is None else 4.95e-6)(contest(PRODUCT))
    assert narrow.schedule is None


def test_a_second_contest_times_nothing():
    court = Court(lambda schedule: 5e-6 if schedule is None else 4e-6)
    first = court(contest(PRODUCT))
    built, timed = len(court.built), court.timed
    assert (built, timed) == (8, 9)
    assert court(contest(PRODUCT)) == first
    assert (len(court.built), court.timed) == (built, timed)


def test_equal_contests_in_one_call_are_fought_once():
    court = Court(lambda schedule: 5e-6 if schedule is None else 4e-6)
    first, second = court(contest(PRODUCT), contest(PRODUCT))
    assert first == second and court.timed == 9


def test_what_does_not_fit_or_spills_is_left_out_and_remembered():
    court = Court(
        lambda schedule: 5e-6 if schedule is None else 4e-6,
        refuses=lambda schedule: schedule.num_stages == 4,
        spills=lambda schedule: schedule.num_warps == 8,
    )
    (verdict,) = court(contest(PRODUCT))
    assert verdict.schedule is None or (verdict.schedule.num_stages, verdict.schedule.num_warps) == (3, 4)
    seen = court.database.lookup(f"template {contest(PRODUCT).key}")
    assert any(timing.seconds == math.inf for timing in seen.values())
    timed = court.timed
    court(contest(PRODUCT))
    assert court.timed == timed


def test_nothing_that_runs_leaves_the_library():
    (verdict,) = Court(lambda schedule: 1e-6, refuses=lambda schedule: schedule.tile_m > 0)(contest(PRODUCT))
    assert verdict.schedule is None and "no schedule" in verdict.reason


def test_only_a_constant_is_prefetched():
    court = Court(lambda schedule: 5e-6 if schedule is None else 4e-6)
    court(contest(PRODUCT, role="arena"))
    assert not any(schedule.prefetch for schedule in court.built)
    court = Court(lambda schedule: 5e-6 if schedule is None else 4e-6)
    court(contest(PRODUCT))
    assert any(schedule.prefetch for schedule in court.built)


def test_the_key_forgets_names_and_tells_constants_from_values():
    one, other = contest(PRODUCT), contest(PRODUCT, names=("a", "b", "c"))
    assert one.key == other.key != contest(PRODUCT, role="arena").key
    assert one.key.startswith(PRODUCT.hash)


def test_candidates_fit_the_device():
    product = matmul_of(PRODUCT)
    found = candidates(PRODUCT, product, SPACE, GPU)
    assert found and len(found) == len(set(found))
    assert all(shared_bytes(product, schedule) <= GPU.shared for schedule in found)
    assert not fits(product, Schedule(tile_m=64, tile_n=64, tile_k=128, split_k=4), GPU), "two steps in four parts"
    assert not any(schedule.launch_pdl for schedule in candidates(PRODUCT, product, SPACE, GpuFacts(pdl=False)))


# The fastest of all timed schedules on an H200, and a common one that is slower (`docs/measurements/h200_gemm.md`).
MEASURED = [
    ((128, 768, 768), Schedule(tile_m=64, tile_n=32, tile_k=128), Schedule(tile_m=64, tile_n=64, tile_k=64, split_k=4)),
    (
        (128, 768, 3072),
        Schedule(tile_m=64, tile_n=32, tile_k=128, split_k=2),
        Schedule(tile_m=128, tile_n=64, tile_k=64),
    ),
    ((512, 768, 768), Schedule(tile_m=64, tile_n=64, tile_k=128), Schedule(tile_m=64, tile_n=64, tile_k=64, split_k=2)),
]


@pytest.mark.parametrize(("shape", "fast", "slow"), MEASURED)
def test_the_model_ranks_as_measured(shape, fast, slow):
    kernel = products.product(*shape, transposed=(False, True), bias=True)
    schedules = [replace(schedule, num_stages=4, launch_pdl=True) for schedule in (fast, slow)]
    assert sorted(schedules, key=lambda each: estimate(matmul_of(kernel), sum(traffic(kernel)), each, GPU)) == schedules
