"""The state of the machine while engines were timed: what a reader needs to judge a figure. Unreadable is None."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

_GPU_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


@dataclass(frozen=True)
class Conditions:
    """One reading. load_average is of the last minute, over all CPUs; cpu_mhz is the mean over CPUs."""

    load_average: float | None
    logical_cpus: int
    torch_threads: int
    cpu_mhz: float | None
    cpu_governor: str | None
    gpu_sm_clock_mhz: float | None = None
    gpu_memory_clock_mhz: float | None = None
    gpu_temperature_celsius: float | None = None
    gpu_power_watts: float | None = None


def read_conditions(device: torch.device) -> Conditions:
    sm, memory, temperature, power = _gpu(device) if device.type == "cuda" else (None,) * 4
    return Conditions(
        load_average=_load(),
        logical_cpus=_cpus(),
        torch_threads=torch.get_num_threads(),
        cpu_mhz=_cpu_mhz(),
        cpu_governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        gpu_sm_clock_mhz=sm,
        gpu_memory_clock_mhz=memory,
        gpu_temperature_celsius=temperature,
        gpu_power_watts=power,
    )


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
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits", "-i", uuid]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (None,) * len(_GPU_FIELDS)
    values = [value.strip() for value in text.splitlines()[0].split(",")] if text.strip() else []
    if len(values) != len(_GPU_FIELDS):
        return (None,) * len(_GPU_FIELDS)
    return tuple(_number(value) for value in values)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
