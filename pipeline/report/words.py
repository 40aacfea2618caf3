"""Numbers as people read them. One place, so that terminal, HTML and messages say the same."""

from __future__ import annotations

from stages.benchmark.result import EngineResult
from stages.benchmark.statistics import Ratio

STATUS = {"passed": "PASSED", "failed": "FAILED", "partial": "PARTIAL", "unvalidated": "NOT VALIDATED"}
NONE = "–"


def milliseconds(value: float | None) -> str:
    """Four significant digits, in ms."""
    return NONE if value is None else significant(value, 4)


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits and no exponent where it can be read without."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - len(str(int(abs(value)))) if abs(value) >= 1 else digits)
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}"


def size(nbytes: float | None) -> str:
    """In B, KiB, MiB or GiB."""
    if nbytes is None:
        return NONE
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def rate(value: float, unit: str) -> str:
    """`value` per second with a decimal prefix: 12.3 GB/s."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}/s"
        value /= 1000
    return f"{value:.3g} P{unit}/s"


def seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f} s"


def speedup(ratio: Ratio | None) -> str:
    """`1.42 [1.38, 1.45]`."""
    return NONE if ratio is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def error(value: float | None) -> str:
    return NONE if value is None else f"{value:.2e}"


def compile_time(engine: EngineResult) -> str:
    """`12.3 s (0.4 s warm)`."""
    times = engine.compile_time
    if times.cold_seconds is None:
        return NONE
    warm = f" ({seconds(times.warm_seconds)} warm)" if times.warm_seconds is not None else ""
    return seconds(times.cold_seconds) + warm


def memory(engine: EngineResult) -> str:
    """Peak of a call, and what is held besides where that is known."""
    if engine.memory is None or engine.memory.call_bytes is None:
        return NONE
    held = f" + {size(engine.memory.held_bytes)} held" if engine.memory.held_bytes else ""
    return size(engine.memory.call_bytes) + held
