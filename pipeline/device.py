"""The device of a run, and what the machine is made of, for recipes and reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.config import DeviceConfig
from stages.ir.errors import ConfigError

_ALWAYS = ("torchweld", "torch", "triton", "hydra-core", "mlflow", "numpy")


def device_of(config: DeviceConfig) -> torch.device:
    """The device. Raises `ConfigError` where CUDA is asked for and there is no such GPU."""
    if config.kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if config.kind == "auto":
            return torch.device("cpu")
        built = torch.version.cuda is not None
        why = "torch sees no CUDA GPU here" if built else "this torch was built without CUDA"
        raise ConfigError("device", why, "device=cpu runs everywhere; device=auto takes a GPU where there is one")
    count = torch.cuda.device_count()
    if config.index >= count:
        raise ConfigError("device.index", f"there is no GPU {config.index}", f"there are {count}, counted from 0")
    return torch.device("cuda", config.index)


def require_device(config: DeviceConfig, inputs: Any) -> None:
    """Raise `ConfigError` where `device` names another kind than the tensors in `inputs` lie on: nothing moves them."""
    if config.kind == "auto":
        return
    for leaf in _pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != config.kind:
            raise ConfigError(
                "device",
                f"device={config.kind} is asked for, and an input lies on '{leaf.device}'",
                f"Move the model and its inputs with .to('{config.kind}'), or leave the override out: a model is "
                "compiled for the device that its inputs lie on.",
            )


def describe(device: torch.device) -> str:
    """`cpu: Intel Xeon ..., 2 threads, AVX2` or `cuda:0: NVIDIA H200, CUDA 13.0`."""
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu: {_cpu_name()}, {torch.get_num_threads()} threads, {capability}"


def versions(libraries: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python, of what always matters, and of `libraries`; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in (*_ALWAYS, *libraries):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else f"{platform.machine() or 'unknown'} with {os.cpu_count()} cores"
