"""From the command line to a search: its space is read and every value in it is tried, before anything is written.

Comes in: overrides, some of them with several values. Goes out: a source of jobs for `pipeline.sweep.run`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.compose import parse
from pipeline.pool.client import Pool
from pipeline.report.record import BESIDE_THE_RESULT
from pipeline.report.summary import Summary, read_summary
from pipeline.search.halving import HalvingSearch
from pipeline.search.sampling import RandomSearch
from pipeline.search.space import Space, space_of
from pipeline.search.tpe import TpeSearch
from pipeline.search.trials import Make, Search, Setting, tried
from pipeline.sweep.identity import Identity
from pipeline.sweep.planning import identified, modules_of
from pipeline.sweep.record import JobRecord
from pipeline.sweep.source import Job
from stages.ir.errors import ConfigError, UserError

_METHODS: dict[str, type[Search]] = {"random": RandomSearch, "tpe": TpeSearch, "halving": HalvingSearch}


def search_of(
    overrides: Sequence[str], check: Callable[[Sequence[str]], Job], pool: Pool, named: Path | None
) -> Search:
    """The search that `overrides` ask for. Raises `UserError` where one of its values cannot be had.

    check   composes and checks one job; raises `UserError`
    pool    a warmed one
    named   the sweep's folder, where the user named one
    """
    space = space_of(parse(overrides))
    if not space.dimensions:
        mend = "write what may vary, as in fusion=none,default or autotune.margin=interval(0,0.1)"
        raise ConfigError("search", "there is nothing to search", mend)
    jobs = [check(lines) for lines in _samples(space, check)]
    config = jobs[0].config
    if not config.sweep.dry_run:
        pool.warm({name for job in jobs for name in modules_of(job.config)})
    search = _id(space, jobs[0], identified(jobs, pool)[0])
    before = tried(search, Path(config.outputs).absolute(), named)
    fits = [point for point in before if len(point) == len(space.dimensions)]
    setting = Setting(search, config, space, _forgiving(check, jobs[0]), figures, fits)
    return _METHODS[config.search.method](setting)


def _samples(space: Space, check: Callable[[Sequence[str]], Job]) -> Iterator[list[str]]:
    """Overrides in which every value of every dimension is seen once, and every rung."""
    first = space.first
    yield space.overrides(first)
    for place, dimension in enumerate(space.dimensions):
        for value in dimension.samples[1:]:
            yield space.overrides((*first[:place], value, *first[place + 1 :]))
    varied = {dimension.key.lstrip("+") for dimension in space.dimensions}
    settings = check(space.overrides(first)).config.search
    for number, rung in enumerate(settings.rungs if settings.method == "halving" else ()):
        key = f"search.rungs[{number}].overrides"
        for override in parse(rung.overrides):
            if override.is_sweep_override():
                raise ConfigError(key, f"'{override.input_line}' has several values", "a rung gives one to each key")
            if override.key_or_group in varied:
                raise ConfigError(
                    key, f"sets {override.key_or_group}, which the search varies", "leave one of them out"
                )
        yield space.overrides(first, rung.overrides)


def _forgiving(check: Callable[[Sequence[str]], Job], sample: Job) -> Make:
    """As `check`; a job that cannot be had carries its fault: values that go by themselves may not go together."""

    def make(overrides: Sequence[str]) -> Job:
        try:
            return check(overrides)
        except UserError as error:
            return replace(sample, overrides=tuple(overrides), fault=str(error))

    return make


def figures(record: JobRecord) -> Summary | None:
    """The figures of a job, from its folder; None where there are none to read."""
    try:
        return read_summary(Path(record.folder))
    except UserError:
        return None


def _id(space: Space, job: Job, identity: Identity) -> str:
    """16 hex digits over what decides which trials there are, and what they are worth; not how many."""
    fixed = [line for line in space.lines if isinstance(line, str) and not line.startswith(_BESIDE)]
    settings = asdict(job.config.search)
    for key in ("trials", "minutes"):
        settings.pop(key)
    dimensions = [asdict(dimension) for dimension in space.dimensions]
    about = (fixed, dimensions, settings, identity.code, identity.device, dict(identity.versions))
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


# Overrides that do not make another search. (Those of `search` count by what they say.)
_BESIDE = ("hydra", *(f"{key}{end}" for key in BESIDE_THE_RESULT for end in ("=", ".")))
