"""The search: what is tried, what is kept, what is remembered. Kernels are doubles whose speed is set by hand."""

import multiprocessing
import time
from dataclasses import replace

import pytest
import torch

from stages.autotune import best, candidates, run
from stages.autotune.config import AutotuneConfig
from stages.autotune.database import Database
from stages.autotune.space import CPU, CUDA, estimate, fits
from stages.autotune.timing import Timing
from stages.ir.dtype import DType
from stages.ir.errors import ConfigError, UserError
from stages.ir.expr import Axis, Buffer, load, op, reduce, var
from stages.ir.index import add, mul
from stages.ir.kernel import Kernel, Store, normalize
from stages.ir.program import BufferSpec, Launch, Program
from stages.ir.schedule import Schedule, default_schedule


def untuned(kernel, device):
    return default_schedule(kernel.rows, kernel.row_size, device.type)


SPACE = {"cpu": {"vector_width": [4, 8, 16], "unroll": [1, 2]}}


def double(size: int = 4096) -> Kernel:
    axis = Axis("i", size)
    value = load(Buffer("in0", DType.FLOAT32, size), var(axis))
    return normalize(
        Kernel("double", (axis,), (), (Store(Buffer("out0", DType.FLOAT32, size), var(axis), op("add", value, value)),))
    )


def row_sum(rows: int, size: int) -> Kernel:
    i, r = Axis("i", rows), Axis("r", size)
    value = load(Buffer("in0", DType.FLOAT32, rows * size), add(mul(var(i), size), var(r)))
    return normalize(
        Kernel("sum", (i,), (r,), (Store(Buffer("out0", DType.FLOAT32, rows), var(i), reduce("sum", (r,), value)),))
    )


def program(kernel: Kernel) -> Program:
    specs = {
        name: BufferSpec(name, torch.float32, kernel.buffers[0].size, role)
        for name, role in (("x", "user"), ("y", "output"))
    }
    steps = (Launch(kernel, ("x", "y")), Launch(kernel, ("x", "y")))
    return Program(torch.device("cpu"), (), specs, steps, ())


class Builder:
    """Builds doubles: each schedule sleeps for as long as `seconds` says."""

    def __init__(self, seconds):
        self.seconds, self.built = seconds, []

    def __call__(self, work):
        self.built += [schedule for _, schedule in work]
        return [self.kernel(schedule) for _, schedule in work]

    def kernel(self, schedule):
        outer = self

        class Double:
            def bind(self, tensors):
                assert [t.numel() for t in tensors] == [4096, 4096]
                return lambda: time.sleep(outer.seconds(schedule))

        return Double()


def test_the_fastest_schedule_is_found_and_the_second_run_times_nothing():
    builder = Builder(lambda schedule: 0.001 if schedule.vector_width == 16 and schedule.unroll == 1 else 0.003)
    config = AutotuneConfig(trials=10, space=SPACE, milliseconds=1.0, rounds=3)
    database = Database(None, "cpu", "1")
    tuned = run(program(double()), config, builder, database, untuned)
    assert [launch.schedule.vector_width for launch in tuned.launches] == [16, 16]
    assert [launch.schedule.unroll for launch in tuned.launches] == [1, 1]
    assert "1 kernel, 0 known, 6 candidates timed" in tuned.notes[0]
    again = Builder(lambda schedule: 1.0)
    assert run(program(double()), config, again, database, untuned).steps == tuned.steps
    assert again.built == []


def test_other_versions_share_no_timings(tmp_path):
    first = Database(tmp_path / "t.sqlite", "cpu", "1")
    first.record("k", {Schedule(): Timing(1.0, 1.0, 1.0)})
    assert Database(tmp_path / "t.sqlite", "cpu", "1").lookup("k") == {Schedule(): Timing(1.0, 1.0, 1.0)}
    assert Database(tmp_path / "t.sqlite", "cpu", "2").lookup("k") == {}
    assert Database(tmp_path / "t.sqlite", "cuda", "1").lookup("k") == {}


def test_a_narrow_win_leaves_the_default():
    default, other = Schedule(), Schedule(vector_width=8)
    near = {default: Timing(1.00, 1, 1), other: Timing(0.99, 1, 1)}
    far = {default: Timing(1.00, 1, 1), other: Timing(0.97, 1, 1)}
    assert best(near, default, 0.02) == default
    assert best(far, default, 0.02) == other
    assert best({}, default, 0.02) == default


def test_trials_bound_what_is_timed_and_off_builds_nothing():
    builder = Builder(lambda schedule: 0.0)
    config = AutotuneConfig(trials=3, space=SPACE, rounds=1)
    run(program(double()), config, builder, Database(None, "cpu", "1"), untuned)
    assert len(builder.built) == 3 and builder.built[0] == default_schedule(4096, 1, "cpu")
    off = run(program(double()), AutotuneConfig(), Builder(None), Database(None, "cpu", "1"), untuned)
    assert off.launches[0].schedule == default_schedule(4096, 1, "cpu") and off.notes == ()


def test_candidates_are_unique_and_begin_with_the_default():
    kernel = row_sum(64, 1000)
    space = {"tile": [1, 2, 4], "reduce_tile": [256, 512], "persistent": [0, 1], "num_warps": [1, 4, 32]}
    found = candidates(kernel, default_schedule(64, 1000, "cuda"), "cuda", space, CUDA)
    assert found[0] == default_schedule(64, 1000, "cuda")
    assert len(found) == len(set(found))
    assert all(schedule.reduce_tile == 1024 for schedule in found if schedule.persistent)
    assert all(fits(kernel, schedule, "cuda") for schedule in found)


def test_the_model_prefers_full_lanes_and_rows_that_stay_on_chip():
    kernel = row_sum(4096, 1024)
    wide = default_schedule(4096, 1024, "cpu")
    assert estimate(kernel, wide, "cpu", CPU) < estimate(kernel, replace(wide, vector_width=1), "cpu", CPU)
    kept = default_schedule(4096, 1024, "cuda")
    assert estimate(kernel, kept, "cuda", CUDA) < estimate(kernel, replace(kept, persistent=False), "cuda", CUDA)


def test_a_damaged_database_is_put_aside(tmp_path):
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"not a database, but long enough to be read as one" * 40)
    with pytest.warns(UserWarning, match="damaged"):
        Database(path, "cpu", "1").record("k", {Schedule(): Timing(1.0, 1.0, 1.0)})
    assert len(list(tmp_path.glob("t.damaged-*"))) == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"autotune\.database"):
        Database(tmp_path / "file" / "t.sqlite", "cpu", "1")


def _record(path, number):
    Database(path, "cpu", "1").record(f"k{number}", {Schedule(): Timing(float(number), 0.0, 0.0)})


def test_processes_may_write_at_once(tmp_path):
    path = tmp_path / "t.sqlite"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_record, args=(path, number)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    database = Database(path, "cpu", "1")
    assert [database.lookup(f"k{n}")[Schedule()].seconds for n in range(6)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"trials": 0}, "autotune.trials"),
        ({"margin": 1.5}, "autotune.margin"),
        ({"space": {"gpu": {}}}, "autotune.space"),
        ({"space": {"cpu": {"vector_with": [8]}}}, "autotune.space.cpu"),
        ({"space": {"cpu": {"unroll": []}}}, "autotune.space.cpu.unroll"),
    ],
)
def test_bad_values_are_named(values, key):
    with pytest.raises(ConfigError) as caught:
        AutotuneConfig(**values)
    assert caught.value.key == key
