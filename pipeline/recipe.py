"""`recipe.yaml`: what makes the same program again. Written by every run, read by `recipe=PATH`.

A recipe holds the resolved config, versions, device, seeds, each kernel's hash and schedule, and the results. A recipe
may come from elsewhere, so reading one runs nothing: plain YAML of limited size and depth, without tags, anchors and
interpolations, checked against a schema. It says nothing of this machine: where files lie, which compiler to call and
where to send results is never taken from a recipe. Its `model.path` needs `trust` (see `pipeline.config.check_trust`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import Config
from pipeline.files import write_whole
from pipeline.schema import read as read_schema
from stages.ir.errors import ConfigError, UserError, nearest
from stages.ir.program import Program
from stages.ir.schedule import Schedule

FORMAT = 1
MAX_BYTES = 2 << 20
MAX_DEPTH = 16

# What a recipe records of the config. Not here: codegen (the compiler and its flags), autotune (its database; nothing
# is tuned again), tracking, and keys about files.
RECORDED = (
    *("model", "device", "engine", "capture", "rewrite", "precision", "fusion", "buffers", "runtime", "validate"),
    *("benchmark", "stages", "seed"),
)


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of the program. schedule: fields of `stages.ir.schedule.Schedule`; None: the default one."""

    name: str
    hash: str
    launches: int = 1
    schedule: dict[str, int | bool] | None = None


@dataclass(frozen=True)
class Recipe:
    """A recipe as it stands in its file; `format` is the version of this layout."""

    format: int
    config: dict[str, Any]
    versions: dict[str, str]
    device: str
    weights: str = ""
    kernels: tuple[KernelRecord, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """By kernel hash, those that are not the default."""
        return {kernel.hash: Schedule(**kernel.schedule) for kernel in self.kernels if kernel.schedule}  # type: ignore[arg-type]


# ---- writing -------------------------------------------------------------------------------


def write(
    path: Path,
    config: Config,
    programs: Sequence[Program],
    versions: Mapping[str, str],
    device: str,
    weights: str,
    results: Mapping[str, Any],
) -> None:
    """Write the recipe of a run to `path`."""
    whole = plain(asdict(config))
    recipe = Recipe(
        FORMAT,
        {key: whole[key] for key in RECORDED},
        dict(versions),
        device,
        weights,
        kernels_of(programs),
        plain(results),
    )
    head = f"# Make the same program again:  torchweld recipe={path.name}\n"
    body = yaml.safe_dump(plain(asdict(recipe)), sort_keys=False, width=120, allow_unicode=True)
    write_whole(path, head + body)


def kernels_of(programs: Sequence[Program]) -> tuple[KernelRecord, ...]:
    """Each kernel of `programs` once, in the order of its first launch."""
    launches = [launch for program in programs for launch in program.launches]
    counts: dict[str, int] = {}
    for launch in launches:
        counts[launch.kernel.hash] = counts.get(launch.kernel.hash, 0) + 1
    first = {launch.kernel.hash: launch for launch in reversed(launches)}
    return tuple(
        KernelRecord(
            first[name].kernel.name, name, count, schedule.to_dict() if (schedule := first[name].schedule) else None
        )
        for name, count in counts.items()
    )


def plain(value: Any) -> Any:
    """`value` of nothing but dicts with text keys, lists, text, numbers and None; anything else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# ---- reading -------------------------------------------------------------------------------


def read(path: str | Path) -> Recipe:
    """The recipe in the file `path`. Raises `UserError` on one that is not there, not a recipe, or not harmless."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(
                f"recipe={path}: larger than {MAX_BYTES >> 20} MiB", "recipes that a run writes are far smaller"
            )
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"recipe={path} cannot be read: {reason}", "name the recipe.yaml in a run folder") from error
    try:
        _screen(text)
        values = yaml.safe_load(text)
        recipe = read_schema(Recipe, values, "")
        _check(recipe)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"recipe={path} is no recipe: {_one_line(error)}", "name the recipe.yaml in a run folder"
        ) from error
    except ConfigError as error:
        raise UserError(f"recipe={path}: {error}") from error
    return recipe


def _screen(text: str) -> None:
    """Walk the YAML events, which builds nothing, and refuse what a recipe never has."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"line {event.start_mark.line + 1}" if event.start_mark is not None else "somewhere"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"anchors and aliases are not allowed ({where})")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"tags are not allowed ({where})")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} ({where})")


def _check(recipe: Recipe) -> None:
    if recipe.format != FORMAT:
        raise ConfigError(
            "format", f"{recipe.format}, but this version reads {FORMAT}", "use the version that wrote it"
        )
    for key in recipe.config:
        if key not in RECORDED:
            raise ConfigError(f"config.{key}", "a recipe cannot set this", nearest(key, RECORDED))
    for key, value in _leaves(recipe.config, "config"):
        if key.rsplit(".", 1)[-1].startswith("_") and key.endswith("_"):
            raise ConfigError(key, "is not allowed in a recipe", "stages and models are named, not built by Hydra")
        if isinstance(value, str) and "${" in value:
            raise ConfigError(key, "interpolations are not allowed in a recipe", "write the value itself")
    known = Schedule().to_dict()
    for place, kernel in enumerate(recipe.kernels):
        for name, value in (kernel.schedule or {}).items():
            key = f"kernels[{place}].schedule.{name}"
            if name not in known:
                raise ConfigError(key, "there is no such key", nearest(name, known))
            if type(value) is not type(known[name]) or not 0 <= value <= 1 << 20:
                raise ConfigError(key, f"{value!r} is no size of a schedule")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    yield key, value
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{key}[{place}]")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# ---- comparing -----------------------------------------------------------------------------


def differences(
    recipe: Recipe, programs: Sequence[Program], versions: Mapping[str, str], device: str, weights: str
) -> list[str]:
    """What is not as it was when `recipe` was written, one line each; empty where the same program came out."""
    lines = []
    for name in dict.fromkeys((*recipe.versions, *versions)):
        old, new = recipe.versions.get(name, "not there"), versions.get(name, "not there")
        if old != new:
            lines.append(f"{name}: {old} in the recipe, {new} here")
    for what, old, new in (("device", recipe.device, device), ("weights", recipe.weights, weights)):
        if old != new:
            lines.append(f"{what}: '{old}' in the recipe, '{new}' here")
    before = {kernel.hash: kernel for kernel in recipe.kernels}
    after = {kernel.hash: kernel for kernel in kernels_of(programs)}
    lines += [f"kernel {before[name].name} {name}: only in the recipe" for name in before if name not in after]
    lines += [f"kernel {after[name].name} {name}: not in the recipe" for name in after if name not in before]
    for name in after.keys() & before.keys():
        old_count, new_count = before[name].launches, after[name].launches
        if old_count != new_count:
            lines.append(
                f"kernel {after[name].name} {name}: launched {old_count} times in the recipe, {new_count} here"
            )
    return lines
