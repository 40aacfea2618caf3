"""`-m` on the command line: jobs as Hydra's sweeper expands them, run by us or by a launcher of Hydra's.

Comes in: overrides. Goes out: an exit code. Every job is composed and checked before anything is written. With
`hydra/launcher=...` (joblib, submitit, ray) or `hydra/sweeper=...`, Hydra decides where and when a job runs; each is
then held to its limits, skipped and recorded in the same way, wherever that is; the table is made of the records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from pipeline.compose import compose, jobs_of, parse
from pipeline.config import Config
from pipeline.configure import configuration
from pipeline.main import claim, quoted, through_hydra
from pipeline.pool.client import Pool
from pipeline.progress import plain_console
from pipeline.search.build import search_of
from pipeline.search.space import space_of
from pipeline.sweep import record as records
from pipeline.sweep import table
from pipeline.sweep.planning import WARM
from pipeline.sweep.run import FAILED, OK, run_alone, run_sweep
from pipeline.sweep.source import Grid, Job, Source
from stages.ir.errors import ConfigError


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
    return Job(tuple(text for text in overrides if not text.startswith("hydra")), config, recipe)


def sweep_through_hydra(overrides: list[str], config_dir: str | None, arguments: list[str]) -> int:
    """Let Hydra run the sweep by the launcher and the sweeper that `overrides` name; the exit code."""
    if _sample(overrides, config_dir).search.method != "grid":
        raise ConfigError("search", "runs its trials itself", "leave hydra/launcher and hydra/sweeper out")
    jobs = [checked(job, config_dir) for job in jobs_of(overrides)]
    if jobs[0].config.sweep.dry_run:
        raise ConfigError("sweep.dry_run", "is for sweeps without hydra/launcher", "leave the launcher out")
    named = _named_folder(overrides, config_dir)
    folder = _folder(jobs[0].config, named)
    task: Any = hydra.main(config_path="pkg://conf", config_name="config", version_base="1.3")(run_one)
    stopped = through_hydra(task, [*arguments, *([] if named else [f"hydra.sweep.dir={quoted(folder)}"])])
    found = [records.read(path) for path in folder.glob(f"*/{records.FILE}")]
    outcome = sorted((record for record in found if record is not None), key=lambda record: record.number)
    rows, console = table.rows_of(outcome), plain_console()
    console.print(table.render(rows, folder.name))
    table.write(rows, folder, {})
    if stopped is not None:
        return stopped
    return OK if outcome and all(record.done for record in outcome) else FAILED


def run_one(composed: DictConfig) -> str:
    """One job, inside a launcher of Hydra's, perhaps on another machine: its status. Its record is in its folder."""
    from hydra.core.hydra_config import HydraConfig

    about = HydraConfig.get()
    overrides = [str(text) for text in about.overrides.task]
    config, recipe = configuration(composed, overrides)
    job = Job(tuple(overrides), config, recipe)
    return run_alone(job, Path(about.runtime.output_dir), int(about.job.num), plain_console()).status
