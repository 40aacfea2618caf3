"""Steps are counted and the first run is dropped; how long they take is not tested."""

import torch

from stages.benchmark.steps import time_steps


def test_every_step_has_a_time():
    seen = []

    def run_steps(inputs, hook):
        for index in range(3):
            seen.append((index, inputs))
            hook(index, None, {})

    times = time_steps(run_steps, ["x"], torch.device("cpu"), repeats=2)
    assert len(times) == 3 and all(time >= 0 for time in times)
    assert seen == [(index, ["x"]) for _ in range(3) for index in range(3)]
