"""What is to be known of Hydra's launchers: which package has one, and what it is told unless the user tells it.

Comes in: the name of a launcher and the sweep that it is to run. Goes out: overrides of Hydra's `hydra.launcher` keys.
The plugins' own defaults would start a job for each CPU, or all jobs of the sweep at once, and end a job after an hour.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from stages.ir.errors import ConfigError

_START_SECONDS = 600.0  # that a job may need besides its own time: imports, on a busy file system


@dataclass(frozen=True)
class Outlook:
    """What a launcher's defaults depend on.

    jobs              of the sweep
    at_once           of them, on one machine
    gpus              of this machine, where the jobs use them
    cuda              whether the jobs are sure to need a GPU
    timeout_seconds   of a job; memory_mib: of a job, where the user limits it
    """

    jobs: int
    at_once: int
    gpus: int
    cuda: bool
    timeout_seconds: float
    memory_mib: int | None


@dataclass(frozen=True)
class Launcher:
    """A plugin of Hydra's.

    package    that has it; extra: of torchweld, that installs it
    target     the end of the class's name, by which a config of the user's own is known
    here       whether it starts processes on this machine without handing out its GPUs
    defaults   overrides, each for a key of `hydra.launcher`
    """

    package: str
    extra: str
    target: str
    here: bool
    defaults: Callable[[Outlook], Mapping[str, object]]


def _minutes(seconds: float) -> int:
    return math.ceil((seconds + _START_SECONDS) / 60)


def _joblib(outlook: Outlook) -> Mapping[str, object]:
    return {"n_jobs": outlook.at_once}


def _submitit_local(outlook: Outlook) -> Mapping[str, object]:
    """All jobs are started at once, and wait for each other inside their time."""
    rounds = math.ceil(outlook.jobs / outlook.at_once)
    return {"timeout_min": rounds * _minutes(outlook.timeout_seconds)}


def _submitit_slurm(outlook: Outlook) -> Mapping[str, object]:
    found: dict[str, object] = {"timeout_min": _minutes(outlook.timeout_seconds)}
    if outlook.cuda:
        found["gpus_per_node"] = 1
    if outlook.memory_mib is not None:
        found["mem_gb"] = math.ceil(outlook.memory_mib / 1024) + 2  # and the process that the job is forked from
    return found


def _ray(outlook: Outlook) -> Mapping[str, object]:
    """A local cluster has room for as many jobs as a sweep of ours runs at once; a real one knows its own room."""
    found: dict[str, object] = {}
    if "RAY_ADDRESS" not in os.environ:
        found |= {"ray.init.num_cpus": outlook.at_once, "ray.init.include_dashboard": "false"}
    if outlook.cuda or outlook.gpus:
        found["ray.remote.num_gpus"] = 1
    return found


LAUNCHERS = {
    "joblib": Launcher("hydra_plugins.hydra_joblib_launcher", "joblib", "JoblibLauncher", True, _joblib),
    "submitit_local": Launcher(
        "hydra_plugins.hydra_submitit_launcher", "submitit", "LocalLauncher", True, _submitit_local
    ),
    "submitit_slurm": Launcher(
        "hydra_plugins.hydra_submitit_launcher", "submitit", "SlurmLauncher", False, _submitit_slurm
    ),
    "ray": Launcher("hydra_plugins.hydra_ray_launcher", "ray", "RayLauncher", False, _ray),
}


def check_installed(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` where `overrides` name a launcher whose package is not there."""
    for text in overrides:
        key, _, name = text.lstrip("+").partition("=")
        if key == "hydra/launcher" and name in LAUNCHERS and not _found(LAUNCHERS[name].package):
            extra = LAUNCHERS[name].extra
            raise ConfigError(key, f"{name} is not installed", f"pip install 'torchweld[{extra}]'")


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def runs_here(target: str) -> bool:
    """Whether the launcher of class `target` starts its jobs on this machine without handing out GPUs."""
    return any(launcher.here and target.endswith(launcher.target) for launcher in LAUNCHERS.values())


def defaults_of(name: str, outlook: Outlook, overrides: Sequence[str]) -> list[str]:
    """Overrides for the launcher `name`, less those that the user's `overrides` have."""
    if name not in LAUNCHERS:
        return []
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    if "hydra.launcher.ray.init.address" in named:  # such a cluster has its own size
        named |= {f"hydra.launcher.ray.init.{key}" for key in ("num_cpus", "include_dashboard")}
    wanted = {f"hydra.launcher.{key}": value for key, value in LAUNCHERS[name].defaults(outlook).items()}
    return [f"++{key}={value}" for key, value in wanted.items() if key not in named]
