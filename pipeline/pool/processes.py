"""What Linux tells of processes, and what it does for them: memory in use, whom to kill when, who is left over.

Only /proc, prctl and signals. What cannot be read is None or empty; a process may be gone at any moment.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def die_with_parent(parent: int | None = None) -> None:
    """Be killed as soon as the parent is gone (which has the process id `parent`, and may be gone by now)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of what descendants of this process leave behind, so that it can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_first_to_go() -> None:
    """Where memory runs out, let the kernel kill this process before any other."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def resident_mib(process: int) -> float | None:
    """Resident memory of one process."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE / 2**20
    except (OSError, IndexError, ValueError):
        return None


def session_mib(session: int) -> float:
    """Memory of all processes of a session; what several of them share is counted once, in parts."""
    total = 0.0
    for process in _processes():
        if _stat(process)[3:4] == [str(session)]:
            with suppress(OSError, ValueError):
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


def children(parent: int) -> dict[int, int]:
    """The processes whose parent is `parent`, each with its session."""
    found = {}
    for process in _processes():
        fields = _stat(process)
        if fields[1:2] == [str(parent)]:
            found[process] = int(fields[3])
    return found


def kill_group(group: int) -> None:
    """End a process group; nothing happens where there is none."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since the machine started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def machine_mib() -> float:
    """Memory of the machine, or of the container that this process is in, where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE / 2**20
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()) / 2**20)
    return total


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session, ..."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
