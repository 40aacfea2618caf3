"""The state of the machine while engines were timed: what a reader needs to judge a figure. Unreadable is None."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch

# The share of all CPUs that others may use before figures are marked.
_BUSY = 0.1
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower")
_GPU_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


@dataclass(frozen=True)
class Conditions:
    """One reading.

    load_average         of the last minute, over all CPUs
    cpu_mhz              the mean over CPUs
    cpu_celsius          of the hottest sensor of the CPU
    gpu_other_processes  processes that use the GPU, less this one
    """

    load_average: float | None
    logical_cpus: int
    torch_threads: int
    cpu_mhz: float | None
    cpu_governor: str | None
    cpu_celsius: float | None = None
    gpu_sm_clock_mhz: float | None = None
    gpu_memory_clock_mhz: float | None = None
    gpu_temperature_celsius: float | None = None
    gpu_power_watts: float | None = None
    gpu_other_processes: int | None = None


@dataclass(frozen=True)
class CpuUse:
    """Seconds of CPU since some moment: of all CPUs together, and of this process and its ended children of it."""

    clock: float
    busy: float | None
    own: float


def read_conditions(device: torch.device) -> Conditions:
    sm, memory, temperature, power = _gpu(device) if device.type == "cuda" else (None,) * 4
    return Conditions(
        load_average=_load(),
        logical_cpus=_cpus(),
        torch_threads=torch.get_num_threads(),
        cpu_mhz=_cpu_mhz(),
        cpu_governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        cpu_celsius=_cpu_celsius(),
        gpu_sm_clock_mhz=sm,
        gpu_memory_clock_mhz=memory,
        gpu_temperature_celsius=temperature,
        gpu_power_watts=power,
        gpu_other_processes=_gpu_others(device) if device.type == "cuda" else None,
    )


def read_cpu_use() -> CpuUse:
    """For `others_between`."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    fields = (_read("/proc/stat") or "").partition("\n")[0].split()[1:9]
    if len(fields) < 8:
        return CpuUse(time.monotonic(), None, own)
    user, nice, system, _idle, _iowait, interrupt, soft_interrupt, stolen = map(int, fields)
    ticks = user + nice + system + interrupt + soft_interrupt + stolen
    return CpuUse(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own)


def others_between(before: CpuUse, after: CpuUse) -> float | None:
    """How many CPUs others kept busy between two readings, on the mean; what a host took from a guest is among it."""
    if before.busy is None or after.busy is None or after.clock <= before.clock:
        return None
    return max(0.0, (after.busy - before.busy) - (after.own - before.own)) / (after.clock - before.clock)


def load_of(before: Conditions, other_cpus: float | None) -> str:
    """What else used the machine while engines were timed, in words; empty where that was little, or is not known."""
    said = []
    if other_cpus is not None and other_cpus > _BUSY * before.logical_cpus:
        said.append(f"other processes kept {other_cpus:.1f} CPUs busy ({before.logical_cpus} are there)")
    elif other_cpus is None and before.load_average is not None and before.load_average > 0.5 * before.logical_cpus:
        said.append(f"the load average was {before.load_average:.1f} on {before.logical_cpus} CPUs at the beginning")
    if before.gpu_other_processes:
        count = before.gpu_other_processes
        said.append(f"{count} other process{'es' if count > 1 else ''} had the GPU open")
    return " and ".join(said)


def _cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_mhz() -> float | None:
    lines = (_read("/proc/cpuinfo") or "").splitlines()
    values = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(values) / len(values) if values else None


def _gpu(device: torch.device) -> tuple[float | None, ...]:
    """`_GPU_FIELDS` of the device as nvidia-smi tells them."""
    lines = _nvidia_smi(device, f"--query-gpu={','.join(_GPU_FIELDS)}") or []
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    if len(values) != len(_GPU_FIELDS):
        return (None,) * len(_GPU_FIELDS)
    return tuple(_number(value) for value in values)


def _gpu_others(device: torch.device) -> int | None:
    """Processes on the GPU, less this one. Inside a container their ids are not ours, so they are only counted."""
    processes = _nvidia_smi(device, "--query-compute-apps=pid")
    return None if processes is None else max(0, len(processes) - 1)


def _nvidia_smi(device: torch.device, query: str) -> list[str] | None:
    """The lines that nvidia-smi answers about the device; None where there is no answer."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", uuid]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [line for line in text.splitlines() if line.strip()]


def _cpu_celsius() -> float | None:
    """The hottest sensor of the CPU's own driver, where the kernel shows one."""
    readings = []
    for name in Path("/sys/class/hwmon").glob("*/name"):
        if (_read(str(name)) or "") in _CPU_SENSORS:
            readings += [_number(_read(str(path)) or "") for path in name.parent.glob("temp*_input")]
    known = [value / 1000 for value in readings if value is not None]
    return max(known, default=None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
