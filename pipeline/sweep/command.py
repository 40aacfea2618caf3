"""`-m` on the command line: jobs as Hydra's sweeper expands them, run by us or by a launcher of Hydra's.

Comes in: overrides. Goes out: an exit code. Every job is composed and checked before anything is written. With
`hydra/launcher=...` (joblib, submitit, ray) Hydra decides where and when a job runs; each is then held to its limits,
skipped and recorded in the same way, wherever that is.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from pipeline.compose import compose, jobs_of, parse
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.main import claim
from pipeline.pool.client import Pool
from pipeline.progress import plain_console
from pipeline.search.build import search_of
from pipeline.search.space import space_of
from pipeline.sweep import launchers
from pipeline.sweep.launched import run_launched
from pipeline.sweep.planning import WARM
from pipeline.sweep.run import run_sweep
from pipeline.sweep.source import Grid, Job, Source
from stages.ir.errors import ConfigError

_LAUNCHER = ("hydra/launcher=", "hydra.launcher.")


def sweep(overrides: list[str], config_dir: str | None, arguments: list[str]) -> int:
    """Run the sweep by ourselves; the exit code."""
    for text in overrides:
        if text.startswith("hydra.sweep.subdir="):
            raise ConfigError("hydra.sweep.subdir", "is for sweeps with hydra/launcher", "leave it out")
    with Pool(WARM) as pool:  # it imports while we compose
        named = _named_folder(overrides, config_dir)
        source = _source(overrides, config_dir, pool, named)
        return run_sweep(source, pool, lambda: _folder(source.config, named), plain_console(), named)


def _source(overrides: list[str], config_dir: str | None, pool: Pool, named: Path | None) -> Source:
    """Where the jobs come from: a grid, or the search that the command line asks for."""
    if _sample(overrides, config_dir).search.method == "grid":
        return Grid([checked(job, config_dir) for job in jobs_of(overrides)])
    return search_of(overrides, lambda lines: checked(list(lines), config_dir), pool, named)


def _sample(overrides: list[str], config_dir: str | None) -> DictConfig:
    """What one of the jobs composes to, Hydra's own node with it."""
    space = space_of(parse(overrides))
    return compose(space.overrides(space.first), config_dir)


def _named_folder(overrides: list[str], config_dir: str | None) -> Path | None:
    """The folder of the sweep, if the command line names one."""
    if not any(text.startswith("hydra.sweep.dir=") for text in overrides):
        return None
    return Path(str(_sample(overrides, config_dir).hydra.sweep.dir)).absolute()


def _folder(config: Config, named: Path | None) -> Path:
    """Make the folder of the sweep."""
    if named is None:
        return claim(config, "sweep")
    try:
        named.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("hydra.sweep.dir", f"{named} cannot be made: {error.strerror}") from error
    return named


def checked(overrides: list[str], config_dir: str | None) -> Job:
    """One job, with its config. Raises `UserError`."""
    config, recipe = configuration(compose(overrides, config_dir), overrides)
    if config.tracking.register is not None:
        mend = "register the winner afterwards: python -m pipeline.commands.register FOLDER NAME --alias champion"
        raise ConfigError("tracking.register", "would register every job of a sweep", mend)
    return Job(tuple(text for text in overrides if not text.startswith("hydra")), config, recipe)


def sweep_through_hydra(overrides: list[str], config_dir: str | None, arguments: list[str]) -> int:
    """Let Hydra run the sweep by the launcher that `overrides` name; the exit code."""
    launchers.check_installed(overrides)
    sample = _sample(overrides, config_dir)
    if sample.search.method != "grid":
        raise ConfigError("search", "runs its trials itself", "leave hydra/launcher out")
    if sample.sweep.dry_run:
        return sweep([text for text in overrides if not text.lstrip("+").startswith(_LAUNCHER)], config_dir, arguments)
    jobs = [checked(job, config_dir) for job in jobs_of(overrides)]
    launcher = str(sample.hydra.runtime.choices["hydra/launcher"]), str(sample.hydra.launcher["_target_"])
    folder = _folder(jobs[0].config, _named_folder(overrides, config_dir))
    return run_launched(jobs, folder, arguments, launcher, plain_console())
