"""What `conf/sweep/*.yaml` says: how the jobs of a sweep are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stages.ir.errors import require


@dataclass(frozen=True)
class SweepConfig:
    """Keys of `conf/sweep`.

    jobs              that run at once
    timeout_seconds   of one job from its start; waiting until another job has done its timing is not counted
    memory_mib        resident memory of a job and its children; None: nine tenths of the machine's, divided by `jobs`
    rerun             which of the jobs that ran before run again: "failed", "all" or "none"; None: in a grid those that
                      failed, in a search none, since there a failure is an answer too
    dry_run           print the jobs, and which of them would be skipped; run nothing
    log_lines         lines of a failed job's log that are shown under the table
    """

    jobs: int = 1
    timeout_seconds: float = 3600.0
    memory_mib: int | None = None
    rerun: Literal["failed", "all", "none"] | None = None
    dry_run: bool = False
    log_lines: int = 8

    def __post_init__(self) -> None:
        require(self.jobs >= 1, "sweep.jobs", f"{self.jobs} is too few", "Give 1 or more.")
        require(self.timeout_seconds > 0, "sweep.timeout_seconds", f"{self.timeout_seconds} is not above 0")
        require(self.memory_mib is None or self.memory_mib >= 1, "sweep.memory_mib", f"{self.memory_mib} is too little")
        require(self.log_lines >= 0, "sweep.log_lines", f"{self.log_lines} is negative")
