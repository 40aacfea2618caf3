"""`-m` on the command line: jobs as Hydra's sweeper expands them, run by us or by a launcher of Hydra's.

Comes in: overrides. Goes out: an exit code. Every job is composed and checked before anything is written. With
`hydra/launcher=...` (joblib, submitit, ray) Hydra decides where and when a job runs; each is then held to its limits,
skipped and recorded in the same way, wherever that is.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.compose import compose, jobs_of
from pipeline.configure import configuration
from pipeline.main import claim
from pipeline.pool.client import Pool
from pipeline.progress import plain_console
from pipeline.sweep import launchers
from pipeline.sweep.launched import run_launched
from pipeline.sweep.run import WARM, Job, run_sweep
from stages.ir.errors import ConfigError

_LAUNCHER = ("hydra/launcher=", "hydra.launcher.")


def sweep(overrides: list[str], config_dir: str | None, arguments: list[str]) -> int:
    """Run the sweep by ourselves; the exit code."""
    for text in overrides:
        if text.startswith("hydra.sweep.subdir="):
            raise ConfigError("hydra.sweep.subdir", "is for sweeps with hydra/launcher", "leave it out")
    with Pool(WARM) as pool:  # it imports while we compose
        jobs = [checked(job, config_dir) for job in jobs_of(overrides)]
        named = _named_folder(overrides, config_dir)
        return run_sweep(jobs, pool, lambda: _folder(jobs[0], named), plain_console(), named)


def _named_folder(overrides: list[str], config_dir: str | None) -> Path | None:
    """The folder of the sweep, if the command line names one."""
    if not any(text.startswith("hydra.sweep.dir=") for text in overrides):
        return None
    return Path(str(compose(jobs_of(overrides)[0], config_dir).hydra.sweep.dir)).absolute()


def _folder(first: Job, named: Path | None) -> Path:
    """Make the folder of the sweep."""
    if named is None:
        return claim(first.config, "sweep")
    try:
        named.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("hydra.sweep.dir", f"{named} cannot be made: {error.strerror}") from error
    return named


def checked(overrides: list[str], config_dir: str | None) -> Job:
    """One job, with its config. Raises `UserError`."""
    config, recipe = configuration(compose(overrides, config_dir), overrides)
    return Job(tuple(text for text in overrides if not text.startswith("hydra")), config, recipe)


def sweep_through_hydra(overrides: list[str], config_dir: str | None, arguments: list[str]) -> int:
    """Let Hydra run the sweep by the launcher that `overrides` name; the exit code."""
    launchers.check_installed(overrides)
    expanded = jobs_of(overrides)
    jobs = [checked(job, config_dir) for job in expanded]
    if jobs[0].config.sweep.dry_run:
        return sweep([text for text in overrides if not text.lstrip("+").startswith(_LAUNCHER)], config_dir, arguments)
    about = compose(expanded[0], config_dir).hydra
    launcher = str(about.runtime.choices["hydra/launcher"]), str(about.launcher["_target_"])
    folder = _folder(jobs[0], _named_folder(overrides, config_dir))
    return run_launched(jobs, folder, arguments, launcher, plain_console())
