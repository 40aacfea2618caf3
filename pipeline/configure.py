"""From overrides to a checked `Config`: composed, laid over a recipe where one is named, and read by the schema.

On the command line and in `optimize` alike, what the user writes wins over the recipe, and that over the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from pipeline import recipe as recipes
from pipeline.compile import Session
from pipeline.compose import compose, parse, values_of
from pipeline.config import GROUPS, Config, check_trust, from_values
from pipeline.recipe import Recipe
from stages.ir.errors import UserError


def configuration(composed: DictConfig, overrides: Sequence[str]) -> tuple[Config, Recipe | None]:
    """The config of a run, and the recipe that it follows, if any. Raises `UserError`."""
    values = values_of(composed)
    named = {override.key_or_group: str(override.input_line) for override in parse(overrides)}
    recipe = recipes.read(str(values["recipe"])) if values.get("recipe") else None
    if recipe is not None:
        _lay_over(values, recipe, named)
        if "job" not in named:
            checked = from_values({**values, "job": "run"})
            values["job"] = f"{checked.model.name}-{checked.precision.mode}"
    config = from_values(values)
    check_trust(config, named)
    return config, recipe


def session_of(overrides: Sequence[str] | Mapping[str, Any]) -> Session:
    """The session of `optimize` and of the torch.compile backend, which have a model already. Raises `UserError`."""
    lines = as_lines(overrides)
    for line in lines:
        if re.match(r"\+*model\b", line):
            raise UserError(f"'{line}': the model is the one that you pass", "leave the override out")
    composed = compose(lines)
    named = {override.key_or_group for override in parse(lines)}
    values = values_of(composed)
    recipe = recipes.read(str(values["recipe"])) if values.get("recipe") else None
    if recipe is not None:
        model = values["model"]
        _lay_over(values, recipe, {name: "" for name in named})
        values["model"] = model
    return Session(from_values(values), schedules=recipe.schedules if recipe is not None else None)


def as_lines(overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Overrides as on the command line: `{"precision": "amp"}` is `precision=amp`."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{key}={_literal(value)}" for key, value in overrides.items()]
    lines = list(overrides) if isinstance(overrides, Iterable) else [overrides]
    if all(isinstance(line, str) for line in lines):
        return lines
    raise UserError(
        f"overrides: {overrides!r} is neither a list of texts nor a mapping",
        'Write them as on the command line: ["precision=amp"], or as {"precision": "amp"}.',
    )


def _literal(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, (int, float)) or re.fullmatch(r"[A-Za-z_][\w.-]*", str(value)):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lay_over(values: dict[str, Any], recipe: Recipe, named: Mapping[str, str]) -> None:
    """Put the recipe's config under what was named in the overrides, in place."""
    composed = dict(values)
    for key, recorded in recipe.config.items():
        if key not in named:
            values[key] = recorded
    for name in named:
        group, *path = name.split(".")
        if path and group in GROUPS and group in recipe.config and group not in named:
            values[group] = _with(values[group], path, _at(composed[group], path))


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def _with(values: Any, path: Sequence[str], new: Any) -> Any:
    """A copy of nested dicts with one value replaced."""
    inner = values if isinstance(values, Mapping) else {}
    rest = new if len(path) == 1 else _with(inner.get(path[0], {}), path[1:], new)
    return {**inner, path[0]: rest}
