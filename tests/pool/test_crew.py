"""A list of batches: every batch is done or told to be lost, whatever kills a worker."""

from __future__ import annotations

import os
import signal

from pipeline.pool.client import Pool
from pipeline.pool.crew import Crew, Done


def test_a_batch_that_kills_its_worker_is_lost_and_the_others_are_done() -> None:
    with Pool() as pool:
        crew = Crew(pool, "tests.pool.tasks:crew_work", "common", iter(range(8)), 2, 3, silence_seconds=1.5)
        events = list(crew)
    told = [event.told for event in events if isinstance(event.told, tuple)]
    assert sorted(batch for _, _, batch in told) == list(range(8))
    assert {common for _, common, _ in told} == {"common"}
    workers = {batch: process for process, _, batch in told}
    assert workers[0] == workers[1] == workers[2] and workers[3] != workers[4]
    assert sorted(event.batch for event in events if event.told == Done()) == [0, 1, 2, 4, 6, 7]
    lost = {event.batch: event for event in events if event.ended is not None}
    assert (lost[3].ended.code, lost[5].ended.cause) == (-signal.SIGKILL, "silence")
    assert lost[3].last == (workers[3], "common", 3)


def test_the_end_of_the_server_loses_one_batch_which_can_be_given_back() -> None:
    with Pool() as pool:
        crew = Crew(pool, "tests.pool.tasks:crew_work", None, iter([5, 0, 1]), 1, 3, silence_seconds=100)
        done, lost = [], []
        for event in crew:
            if event.told == Done():
                done.append(event.batch)
            elif event.ended is not None:
                lost.append((event.batch, event.ended.raised != ""))
                crew.again([6])
            elif event.batch == 5:
                os.kill(pool.process, signal.SIGKILL)
    assert (sorted(done), lost) == ([0, 1, 6], [(5, True)])
