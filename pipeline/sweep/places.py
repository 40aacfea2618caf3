"""Places at which the jobs of a launcher take turns on one machine: a GPU each, or so many at once.

A place is a file in the sweep's folder that one job has locked; the kernel unlocks it however the job ends. Only for
launchers that start processes here without handing out GPUs to them; a cluster's scheduler does that itself.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PREFIX = ".place-"
_LOOK_SECONDS = 0.5


def gpus_seen() -> tuple[str, ...]:
    """The GPUs that this process may use, each as `CUDA_VISIBLE_DEVICES` names it."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get(VISIBLE)
    if named is None:
        return tuple(map(str, range(count)))
    return tuple(text.strip() for text in named.split(",") if text.strip())[:count]


@contextmanager
def taken(folder: Path, count: int, given_up: Callable[[], bool] = lambda: False) -> Iterator[int | None]:
    """Hold one of `count` places, the first that is free; waits for one, and is None where `given_up` then says so."""
    descriptors = [os.open(folder / f"{_PREFIX}{number}", os.O_RDWR | os.O_CREAT, 0o644) for number in range(count)]
    try:
        while (place := _free(descriptors)) is None and not given_up():
            time.sleep(_LOOK_SECONDS)
        yield place
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _free(descriptors: list[int]) -> int | None:
    for place, descriptor in enumerate(descriptors):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return place
    return None


def clear(folder: Path) -> None:
    """Take the files away, once no job is left."""
    for path in folder.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
