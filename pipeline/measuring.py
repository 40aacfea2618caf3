"""One process of the machine times a device at a time.

Two runs that time the same device time each other. So every section that times holds a lock on the device, across
processes, sweeps and users; what compiles or validates does not. Files in the machine's folder for temporary files, one
a device, locked by `flock`: the kernel lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import torch

from stages.ir.errors import UserError

Measuring = Callable[[], AbstractContextManager[None]]


def measuring_on(device: torch.device, waits: Callable[[bool], None] = lambda on: None) -> Measuring:
    """What makes a context that holds the lock of `device`.

    waits   told True before the lock is waited for, because another process has it, and False once it is had
    """
    return lambda: measuring(lock_path(device), waits)


@contextmanager
def measuring(path: Path, waits: Callable[[bool], None] = lambda on: None) -> Iterator[None]:
    """Hold the lock at `path`. Raises `UserError` where there can be no such file."""
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(True)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            finally:
                waits(False)
        yield
    finally:
        os.close(descriptor)


def lock_path(device: torch.device) -> Path:
    """The lock of `device`: the same one in every process, whichever GPUs it can see."""
    name = device.type
    if device.type == "cuda":
        name += f"-{torch.cuda.get_device_properties(device).uuid}"
    return Path(tempfile.gettempdir()) / "torchweld-locks" / f"{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock"


def _opened(path: Path) -> int:
    """A descriptor of the lock file, which another user may have made."""
    with suppress(OSError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    with suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"the lock {path}, which keeps runs from timing each other, cannot be opened: {error.strerror}",
            "TMPDIR=FOLDER names another folder for it",
        ) from error
