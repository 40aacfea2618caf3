"""How a job ended whose process left no result: a status of `JobRecord`, and the reason in a line."""

from __future__ import annotations

import signal

from pipeline.pool.task import Ended

_WORDS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGILL: "illegal instruction",
    signal.SIGFPE: "arithmetic error",
}


def verdict(ended: Ended, timeout_seconds: float, memory_mib: float) -> tuple[str, str]:
    """The status and the reason; `timeout_seconds` and `memory_mib` are the limits that the job was held to."""
    if ended.cause == "timeout":
        return "timeout", f"ran longer than {timeout_seconds:g} s (sweep.timeout_seconds)"
    if ended.cause == "memory":
        return "memory", f"used more than {memory_mib:.0f} MiB (sweep.memory_mib)"
    if ended.cause == "stopped":
        return "interrupted", "the sweep was stopped"
    if ended.code == -signal.SIGKILL:
        if ended.oom_kills:
            return "memory", "killed by the kernel: the machine ran out of memory (SIGKILL)"
        return "crashed", "killed from outside of the sweep (SIGKILL)"
    if ended.code < 0:
        name = signal.Signals(-ended.code)
        return "crashed", f"{_WORDS.get(name, 'ended')} ({name.name})"
    if ended.raised:
        return "error", " ".join(ended.raised.splitlines()[:1])
    if isinstance(ended.value, tuple):
        status, reason = ended.value
        return status, reason or "it left no record"
    return "crashed", f"ended with exit code {ended.code}"
