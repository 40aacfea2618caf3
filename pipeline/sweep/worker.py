"""One job of a sweep that a launcher of Hydra's runs: in another process of this machine, or on another one.

Comes in: the config that Hydra composed there. Goes out: the job's status; its record is in its folder, as after a job
of our own launcher. It has the same process of its own, the same limits, and the same look for an earlier result, which
has to be made here: only here is it known what device the job runs on.

The sweep's folder is what this process and the one that the user started (the head) have in common, whatever is between
them: `.stop` in it asks every job to end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from pipeline.environment import environment
from pipeline.sweep import places

STOP = ".stop"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Worker:
    """What Hydra calls for each job, pickled on the way there.

    sweep    `id` and `name`, as in `pipeline.report.record.RunRecord`
    folder   of the sweep
    here     the folder in which the command was given, which relative paths and the user's modules are looked for in
    head     the host name and the process id of the command
    path     where the command finds modules
    gpus     one of these for each job that may run at once on this machine: a GPU as `CUDA_VISIBLE_DEVICES` names it,
             or an empty text; no entry where the launcher itself says what runs where
    """

    sweep: Mapping[str, str]
    folder: str
    here: str
    head: tuple[str, int]
    path: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def __call__(self, composed: DictConfig) -> str:
        from hydra.core.hydra_config import HydraConfig

        about = HydraConfig.get()
        folder = Path(about.runtime.output_dir)
        child = self.runs_in(os.getppid())
        self._settle()
        try:
            with self._place() as placed:
                if not placed:
                    with suppress(OSError):
                        folder.rmdir()
                    return NOT_RUN
                return self._run(composed, [str(text) for text in about.overrides.task], folder, int(about.job.num))
        finally:
            if child and not self.runs_in(os.getppid()):
                os._exit(1)  # joblib's worker would wait minutes for more work from a head that is gone

    def stopped(self) -> bool:
        return Path(self.folder, STOP).exists()

    def runs_in(self, process: int) -> bool:
        """Whether `process`, of this machine, is the head."""
        return (socket.gethostname(), process) == self.head

    def _settle(self) -> None:
        """Be in the folder of the command, and leave Ctrl-C to it: it asks for the end by `.stop`."""
        if self.runs_in(os.getpid()):
            return
        with suppress(OSError):  # on a machine without that folder, absolute paths will do
            os.chdir(self.here)
        sys.path += [entry for entry in self.path if entry not in sys.path]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, lambda *about: None)

    @contextmanager
    def _place(self) -> Iterator[bool]:
        """While one of the sweep's places on this machine is held; False where the sweep was stopped before it was."""
        if not self.gpus:
            yield not self.stopped()
            return
        with places.taken(Path(self.folder), len(self.gpus), self.stopped) as place:
            if place is None or self.stopped():
                yield False
            elif self.gpus[place]:
                with environment({places.VISIBLE: self.gpus[place]}):
                    yield True
            else:
                yield True

    def _run(self, composed: DictConfig, overrides: list[str], folder: Path, number: int) -> str:
        from pipeline.configure import configuration
        from pipeline.sweep.alone import run_alone
        from pipeline.sweep.source import Job

        config, recipe = configuration(composed, overrides)
        if self.gpus:  # the memory limit of a job is its share of this machine's
            config = replace(config, sweep=replace(config.sweep, jobs=len(self.gpus)))
        status = run_alone(Job(tuple(overrides), config, recipe), folder, number, self).status
        if status == "interrupted" and self.runs_in(os.getpid()):
            Path(self.folder, STOP).touch()  # Ctrl-C reached the job here, not the head's own handler
        return status
