"""What a caller and the process that tasks are forked from say to each other. Plain values, pickled over a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """Something to do in a process of its own.

    number            the sender's name for it
    function          `module:name`, called as `function(argument, tell)`; what it returns and tells must be picklable
    log               the file that its output is appended to; empty drops it
    command           what `sys.argv` is in the process
    timeout_seconds   after which the process is killed; 0 sets no limit
    silence_seconds   the same, of telling nothing
    memory_mib        resident memory, of the process and its children, at which it is killed; 0 sets no limit
    """

    number: int
    function: str
    argument: Any
    log: str = ""
    command: tuple[str, ...] = ()
    timeout_seconds: float = 0.0
    memory_mib: float = 0.0
    silence_seconds: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """A task tells this as it begins (`on`) and ends to wait for something that its timeout should not count."""

    on: bool


@dataclass(frozen=True)
class Told:
    """What a task said while it ran."""

    number: int
    value: Any


@dataclass(frozen=True)
class Ended:
    """A task's process is gone.

    code       its exit code; the negative of a signal's number where one ended it
    cause      "timeout", "silence", "memory" or "stopped" where it was killed for that; else empty
    value      what the function returned
    raised     "ValueError: no such thing" where it raised
    seconds    from fork to end
    waited     of these, waiting (see `Waiting`)
    peak_mib   the most resident memory that its largest process had
    oom_kills  processes of this machine that the kernel killed meanwhile for want of memory; None where it does not say
    """

    number: int
    code: int
    cause: str = ""
    value: Any = None
    raised: str = ""
    seconds: float = 0.0
    waited: float = 0.0
    peak_mib: float = 0.0
    oom_kills: int | None = None


# ---- what the server is asked for, beside a `Task` -----------------------------------------


@dataclass(frozen=True)
class Warm:
    """Import these modules; one that does not import is left to the jobs that need it."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """Interrupt every task as Ctrl-C would; kill what still runs after `grace_seconds`."""

    grace_seconds: float
