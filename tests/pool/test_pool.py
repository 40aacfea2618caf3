"""Processes: limits, crashes, and that nothing is left over, whoever dies. The server imports nothing here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.pool.client import Pool, PoolDied
from pipeline.pool.task import Ended, Task, Told
from pipeline.sweep.verdict import verdict

TASKS = "tests.pool.tasks:"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pool():
    with Pool() as made:
        yield made


def ended(pool: Pool, count: int = 1) -> list[Ended]:
    """The next `count` tasks to end, by number."""
    found: list[Ended] = []
    while len(found) < count:
        found += [event for event in pool.events(60) if isinstance(event, Ended)]
    return sorted(found, key=lambda each: each.number)


def told(pool: Pool) -> object:
    while True:
        for event in pool.events(60):
            if isinstance(event, Told):
                return event.value


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody has taken leave of yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(process: int, seconds: float = 40.0) -> bool:
    end = time.monotonic() + seconds
    while alive(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(process)


def test_each_end_is_told_from_the_others(pool: Pool, tmp_path: Path) -> None:
    limits = {"hang": {"timeout_seconds": 1.0}, "grow": {"memory_mib": 200}, "child_grows": {"memory_mib": 200}}
    names = ("add_one", "segfault", "raises", "killed", "hang", "grow", "child_grows")
    for number, name in enumerate(names):
        pool.start(Task(number, TASKS + name, 41, str(tmp_path / name), **limits.get(name, {})))
    result = dict(zip(names, ended(pool, len(names))))
    assert (result["add_one"].code, result["add_one"].value) == (0, 42)
    verdicts = {name: verdict(result[name], 1.0, 200.0) for name in names[1:]}
    assert verdicts == {
        "segfault": ("crashed", "segmentation fault (SIGSEGV)"),
        "raises": ("error", "ValueError: no such thing"),
        "killed": ("crashed", "killed from outside of the sweep (SIGKILL)"),
        "hang": ("timeout", "ran longer than 1 s (sweep.timeout_seconds)"),
        "grow": ("memory", "used more than 200 MiB (sweep.memory_mib)"),
        "child_grows": ("memory", "used more than 200 MiB (sweep.memory_mib)"),
    }
    assert result["grow"].peak_mib > 200
    for name, line in (("segfault", "in segfault"), ("hang", "in hang"), ("raises", "ValueError: no such thing")):
        assert line in (tmp_path / name).read_text()


def test_a_kill_for_want_of_memory_is_told_by_the_kernels_count() -> None:
    assert verdict(Ended(0, -signal.SIGKILL, oom_kills=1), 0, 0)[0] == "memory"
    assert verdict(Ended(0, -signal.SIGKILL, oom_kills=0), 0, 0)[0] == "crashed"


def test_who_tells_nothing_for_too_long_is_killed(pool: Pool) -> None:
    pool.start(Task(0, TASKS + "falls_silent", 0.7, silence_seconds=1.0))
    assert [told(pool), told(pool)] == ["one", "two"]
    (event,) = ended(pool)
    assert event.cause == "silence" and event.seconds > 1.7


def test_waiting_for_another_jobs_timing_does_not_count(pool: Pool) -> None:
    pool.start(Task(0, TASKS + "waits", None, timeout_seconds=1.5))
    (event,) = ended(pool)
    assert event.value == "done" and event.waited > 2.5


def test_output_and_command_line(pool: Pool, tmp_path: Path) -> None:
    pool.start(Task(0, TASKS + "command_line", None, str(tmp_path / "log"), ("torchweld", "seed=1")))
    assert ended(pool)[0].value == ["torchweld", "seed=1"]
    assert (tmp_path / "log").read_text() == "to the log\n"


def test_what_a_task_leaves_is_ended_with_it(pool: Pool) -> None:
    pool.start(Task(0, TASKS + "leaves_a_child", None))
    child = told(pool)
    ended(pool)
    assert gone(child)


def test_stop_interrupts_and_then_kills(pool: Pool) -> None:
    for number, name in enumerate(("says_bye", "leaves_a_child")):
        pool.start(Task(number, TASKS + name, "hang"))
    told(pool), told(pool)
    pool.stop(5.0)
    polite, other = ended(pool, 2)
    assert (polite.value, polite.cause, other.cause) == ("bye", "stopped", "stopped")
    assert verdict(other, 0, 0) == ("interrupted", "the sweep was stopped")


def test_after_close_nothing_runs() -> None:
    with Pool() as pool:
        pool.start(Task(0, TASKS + "leaves_a_child", "hang"))
        child, server = told(pool), pool.process
    assert gone(child) and gone(server)


PARENT = """
import sys, time
from pipeline.pool.client import Pool
from pipeline.pool.task import Task, Told
pool = Pool()
pool.start(Task(0, "tests.pool.tasks:leaves_a_child", "hang"))
while True:
    for event in pool.events(60):
        print(pool.process, event.value, flush=True)
"""


def test_kill_9_of_the_parent_leaves_no_orphan() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    server, child = map(int, parent.stdout.readline().split())
    job = next(int(p) for p in os.listdir("/proc") if p.isdigit() and _parent(p) == server)
    assert alive(job) and alive(child)
    parent.kill()
    parent.wait()
    assert gone(server) and gone(job) and gone(child)


def _parent(process: str) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def test_kill_9_of_the_server_takes_its_tasks_along_and_is_told() -> None:
    with Pool() as pool:
        pool.start(Task(0, TASKS + "says_bye", None))
        told(pool)
        job = next(int(p) for p in os.listdir("/proc") if p.isdigit() and _parent(p) == pool.process)
        os.kill(pool.process, signal.SIGKILL)
        with pytest.raises(PoolDied):
            pool.events(10)
        assert gone(job)
        pool.restart()
        pool.start(Task(1, TASKS + "add_one", 1))
        assert ended(pool)[0].value == 2


def test_jobs_are_forked_where_torch_has_used_nothing(tmp_path: Path) -> None:
    """What the server imports for jobs starts no CUDA, and leaves the children able to use threads."""
    with Pool(["pipeline.sweep.job"]) as pool:
        event = pool.call("tests.pool.test_pool:_state", None)
    assert event.value == (False, False, 10.0)


def _state(argument, tell):
    import torch

    product = torch.ones(10, 10) @ torch.ones(10, 10)
    return torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), float(product[0, 0])
