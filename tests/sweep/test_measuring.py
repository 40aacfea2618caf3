"""The lock on a device: one process at a time, let go of however it ends."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
import torch

from pipeline.measuring import lock_path, measuring
from stages.benchmark.conditions import Conditions, CpuUse, load_of, others_between
from stages.ir.errors import UserError


def _hold(path, has, seconds):
    with measuring(path):
        has.set()
        time.sleep(seconds)


def test_another_process_is_waited_for(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path, has, said = tmp_path / "locks" / "cpu.lock", context.Event(), []
    other = context.Process(target=_hold, args=(path, has, 1000))
    other.start()
    assert has.wait(60)
    began = time.monotonic()
    context.Process(target=_kill_later, args=(other.pid, 1.0)).start()
    with measuring(path, said.append):
        waited = time.monotonic() - began
    other.join()
    assert said == [True, False] and waited > 0.5 and other.exitcode == -9
    with measuring(path, said.append):
        assert said == [True, False]  # nobody to wait for


def _kill_later(process, seconds):
    import os
    import signal

    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)


def test_one_lock_for_a_device_and_an_error_that_says_the_mend(tmp_path: Path) -> None:
    assert lock_path(torch.device("cpu")) == lock_path(torch.device("cpu"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="TMPDIR"), measuring(tmp_path / "file" / "cpu.lock"):
        pass


def test_other_load_is_what_the_machine_did_less_what_we_did() -> None:
    before, after = CpuUse(10.0, 100.0, 5.0), CpuUse(20.0, 118.0, 13.0)
    assert others_between(before, after) == pytest.approx(1.0)
    assert others_between(before, CpuUse(20.0, None, 13.0)) is None
    quiet = Conditions(0.1, 16, 16, None, None)
    assert load_of(quiet, 1.0) == ""
    assert load_of(quiet, 2.0) == "other processes kept 2.0 CPUs busy (16 are there)"
    assert load_of(Conditions(12.0, 16, 16, None, None), None).startswith("the load average was 12.0")
    assert (
        load_of(Conditions(0.1, 16, 16, None, None, gpu_other_processes=2), 0.0) == "2 other processes had the GPU open"
    )
