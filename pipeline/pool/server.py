"""The process that tasks are forked from: Python with torch and what else they need, imported once.

Comes in: requests over a socket (`pipeline.pool.task`). Goes out: what the tasks tell, and how each of them ended.
Imports cost a task ten seconds and more; a fork costs none, and keeps what a process of its own gives: its own memory,
its own device context, an end of its own. What makes forking safe here: this process runs no thread of its own and no
tensor operation, never touches CUDA (a child that finds it did begins afresh by exec), and imports no code of a user's.

It enforces the limits too, since only the parent of a process can kill it without ever meeting another one under the
same number. When the caller is gone, however it died, its end of the socket is closed: everything is killed then. When
this process dies first, the kernel kills the jobs (`die_with_parent`).
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from pipeline.pool import processes
from pipeline.pool.task import Ended, Stop, Task, Told, Waiting, Warm

_TICK_SECONDS = 0.1
_TREE_SECONDS = 2.0  # between two looks at the memory of a job's children, which cost milliseconds each
_DUMP_SECONDS = 1.0  # that a job has to write where it hangs, before it is killed


@dataclass
class _Job:
    """A task that runs. heard: when it last told something; ends_at: when it is killed; silent: no channel is left."""

    task: Task
    process: int
    channel: Connection
    started: float
    oom_kills: int | None
    heard: float
    waited: float = 0.0
    waiting_since: float | None = None
    cause: str = ""
    ends_at: float | None = None
    looked: float = 0.0
    silent: bool = False
    value: Any = None
    raised: str = ""

    def waited_until(self, now: float) -> float:
        return self.waited + (now - self.waiting_since if self.waiting_since is not None else 0.0)


def serve(descriptor: int) -> None:
    """Serve the socket `descriptor` until its other end is closed. What runs in the new process from the beginning."""
    processes.die_with_parent()  # until `Server` watches the socket
    processes.adopt_orphans()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a GPU is then no use of CUDA
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with Connection(descriptor) as connection:
        Server(connection).serve()


class Server:
    """See the module. `connection` leads to the caller."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.jobs: dict[int, _Job] = {}

    def serve(self) -> None:
        """Work until the caller is gone, then kill what is left."""
        try:
            while True:
                channels = {job.channel: job for job in self.jobs.values() if not job.silent}
                ready = wait([self.connection, *channels], _TICK_SECONDS if self.jobs else None)
                for channel in ready:
                    if channel is not self.connection:
                        _hear(channels[channel], self.connection)  # type: ignore[index]
                if self.connection in ready:
                    self._answer(self.connection.recv())
                self._reap()
                self._enforce()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            for process in list(self.jobs):
                processes.kill_group(process)
            # What a job started becomes a child of this process only when the job is dead.
            while left := processes.children(os.getpid()):
                for process in left:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(-1, 0)

    def _answer(self, request: object) -> None:
        if isinstance(request, Warm):
            for module in request.modules:
                with suppress(Exception):
                    import_module(module)
            gc.collect()
            gc.freeze()  # so that no collection in a child copies the pages of these modules
            processes.outlive_parent()
        elif isinstance(request, Stop):
            for job in self.jobs.values():
                job.cause = job.cause or "stopped"
                job.ends_at = min(job.ends_at or float("inf"), time.monotonic() + request.grace_seconds)
                os.kill(job.process, signal.SIGINT)
        elif isinstance(request, Task):
            self._fork(request)

    def _fork(self, task: Task) -> None:
        ours, theirs = Pipe(duplex=False)
        server, kills = os.getpid(), processes.oom_kills()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                os.setsid()
                processes.die_with_parent(server)
                for connection in (ours, self.connection, *(job.channel for job in self.jobs.values())):
                    connection.close()
                code = _begin(task, theirs)
            finally:
                os._exit(code)
        theirs.close()
        now = time.monotonic()
        self.jobs[process] = _Job(task, process, ours, now, kills, now)

    def _reap(self) -> None:
        """Take leave of every process that has ended; tell of those that were tasks."""
        while True:
            try:
                process, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            job = self.jobs.pop(process, None)
            if job is not None:
                self._end(job, status, usage.ru_maxrss / 1024)

    def _end(self, job: _Job, status: int, peak_mib: float) -> None:
        _hear(job, self.connection)
        processes.kill_group(job.process)
        for process, session in processes.children(os.getpid()).items():
            if process not in self.jobs and (session == job.process or not self.jobs):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        job.channel.close()
        now, kills = time.monotonic(), processes.oom_kills()
        self.connection.send(
            Ended(
                job.task.number,
                os.waitstatus_to_exitcode(status),
                job.cause,
                job.value,
                job.raised,
                seconds=now - job.started,
                waited=job.waited_until(now),
                peak_mib=peak_mib,
                oom_kills=None if kills is None or job.oom_kills is None else kills - job.oom_kills,
            )
        )

    def _enforce(self) -> None:
        """Kill what is over its limits. A job that hangs first writes into its log where it is."""
        now = time.monotonic()
        for job in self.jobs.values():
            if not job.cause and (cause := _over_time(job, now)):
                job.cause, job.ends_at = cause, now + _DUMP_SECONDS
                os.kill(job.process, signal.SIGUSR1)
            if not job.cause and job.task.memory_mib and _too_large(job, now):
                job.cause, job.ends_at = "memory", now
            if job.ends_at is not None and now >= job.ends_at:
                processes.kill_group(job.process)


def _over_time(job: _Job, now: float) -> str:
    """The limit that a job is over, if any."""
    limit, silence = job.task.timeout_seconds, job.task.silence_seconds
    if limit and now - job.started - job.waited_until(now) > limit:
        return "timeout"
    return "silence" if silence and job.waiting_since is None and now - job.heard > silence else ""


def _too_large(job: _Job, now: float) -> bool:
    limit = job.task.memory_mib
    if (processes.resident_mib(job.process) or 0.0) > limit:
        return True
    if now - job.looked < _TREE_SECONDS:
        return False
    job.looked = now
    return processes.session_mib(job.process) > limit


def _hear(job: _Job, connection: Connection) -> None:
    """Take in what a job has said so far, and pass on what is for the caller."""
    try:
        while job.channel.poll():
            kind, value = job.channel.recv()
            job.heard = time.monotonic()
            if kind == "returned":
                job.value = value
            elif kind == "raised":
                job.raised = value
            elif isinstance(value, Waiting):
                now = time.monotonic()
                job.waited, job.waiting_since = job.waited_until(now), now if value.on else None
            if kind == "told":
                connection.send(Told(job.task.number, value))
    except EOFError:
        job.silent = True


# ---- in the forked process -----------------------------------------------------------------


def _begin(task: Task, channel: Connection) -> int:
    """What a forked process does first; its exit code."""
    processes.be_first_to_go()
    _redirect(task.log)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda._is_in_bad_fork():
        _afresh(task, channel)
    return perform(task, channel)


def perform(task: Task, channel: Connection) -> int:
    """Call the task's function and say what came of it; the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    sys.argv = list(task.command) or sys.argv

    def tell(value: object) -> None:
        channel.send(("told", value))

    try:
        module, _, name = task.function.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        channel.send(("returned", function(task.argument, tell)))
        code = 0
    except BaseException as error:  # also SystemExit and Ctrl-C: this process does nothing else
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        channel.send(("raised", f"{type(error).__name__}: {error}"))
        with suppress(Exception):
            traceback.print_exc()
    with suppress(Exception):
        sys.stdout.flush()
    return code


def _redirect(log: str) -> None:
    """Send the output of this process, and of all it starts, line by line to the file `log`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(log or os.devnull, flags, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def _afresh(task: Task, channel: Connection) -> None:
    """Become a new Python that performs `task`: something that was imported has used CUDA, which forbids a fork."""
    with os.fdopen(os.memfd_create("task", 0), "wb", closefd=False) as file:
        pickle.dump(task, file)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        os.set_inheritable(channel.fileno(), True)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from pipeline.pool.server import continue_as; "
            f"continue_as({file.fileno()}, {channel.fileno()})"
        )
        os.execv(sys.executable, [sys.executable, "-c", code])


def continue_as(task_descriptor: int, channel_descriptor: int) -> None:
    """Perform the task that lies in a file, and end. What runs in the new Python of `_afresh`."""
    with os.fdopen(task_descriptor, "rb") as file:
        task = pickle.load(file)
    os.set_inheritable(channel_descriptor, False)
    _redirect(task.log)
    os._exit(perform(task, Connection(channel_descriptor)))
