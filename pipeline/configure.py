"""From overrides to a checked `Config`: composed, laid over a recipe where one is named, and read by the schema.

On the command line and in `optimize` alike, what the user writes wins over the recipe, and that over the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from pipeline import recipe as recipes
from pipeline.compile import Session
from pipeline.compose import compose, in_dictionary, parse, values_of
from pipeline.config import GROUPS, Config, RecipeConfig, check_trust, from_values
from pipeline.recipe import ReadRecipe
from pipeline.schema import read
from stages.ir.errors import ConfigError, UserError


def configuration(composed: DictConfig, overrides: Sequence[str]) -> tuple[Config, ReadRecipe | None]:
    """The config of a run, and the recipe that it follows, if any. Raises `UserError`."""
    values = values_of(composed)
    named = _named(overrides)
    values["model"] = {**values["model"], "follow": _references(composed.model)}
    recipe = _recipe_of(values, named)
    if recipe is None:
        config = from_values(values)
    else:
        _lay_over(values, recipe, named)
        config = _checked({**values, "job": "run"} if "job" not in named else values, recipe, named)
        if "job" not in named:
            config = replace(config, job=f"{config.model.name}-{config.precision.mode}")
        _check_download(config, recipe, named)
    try:
        check_trust(config, named)
    except ConfigError as error:
        if recipe is not None and error.key == "model.path" and "model" not in named:
            raise recipe.error(error) from error
        raise
    return config, recipe


def session_of(overrides: Sequence[str] | Mapping[str, Any]) -> Session:
    """The session of `optimize` and of the torch.compile backend, which have a model already. Raises `UserError`."""
    lines = as_lines(overrides)
    for line in lines:
        if re.match(r"\+*model\b", line):
            raise UserError(f"'{line}': the model is the one that you pass", "leave the override out")
    values = values_of(compose(lines))
    named = _named(lines)
    recipe = _recipe_of(values, named)
    if recipe is None:
        return Session(from_values(values))
    model = values["model"]
    _lay_over(values, recipe, named)
    return Session(_checked({**values, "model": model}, recipe, named), recipe=recipe)


def _named(overrides: Sequence[str]) -> dict[str, Override]:
    """What the user set, by key."""
    return {override.key_or_group: override for override in parse(overrides)}


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


# ---- a recipe under the overrides ----------------------------------------------------------


def _recipe_of(values: Mapping[str, Any], named: Mapping[str, Override]) -> ReadRecipe | None:
    """The recipe that is named, read."""
    about = read(RecipeConfig, values.get("recipe") or {}, "recipe")
    if about.path is None:
        if about.strict:
            raise ConfigError("recipe.strict", "holds a run to a recipe, and none is named", "add recipe=NAME")
        return None
    if "experiment" in named and named["experiment"].value() is not None:
        raise ConfigError(
            "experiment", "sets what a recipe sets too", "leave one of the two out, and name single groups and keys"
        )
    return recipes.read(recipes.find(about.path))


def _lay_over(values: dict[str, Any], recipe: ReadRecipe, named: Mapping[str, Override]) -> None:
    """Put the recipe's config under what was named in the overrides, in place."""
    composed = dict(values)
    for key, recorded in recipe.config.items():
        if key not in named:
            values[key] = recorded
    for name, override in named.items():
        group, *path = name.split(".")
        if path and group in GROUPS and group in recipe.config and group not in named:
            if not (override.is_add() or override.is_force_add()):
                _check_there(name, values[group], path)
            values[group] = _with(values[group], path, _at(composed[group], path))
    if "model" in recipe.config and "model" not in named:
        try:
            values["model"] = _followed(values["model"], named)
        except ConfigError as error:
            raise recipe.error(error) from error


def _check_there(name: str, group: Any, path: Sequence[str]) -> None:
    """Raise `ConfigError` where the last of `path` is a name that neither the schema nor the recipe has."""
    if not in_dictionary(name):
        return
    inner = group
    for step in path[:-1]:
        inner = inner.get(step) if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or path[-1] not in inner:
        raise ConfigError(name, "the recipe does not have it", f"to add it, write +{name}=...")


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values[int(name)] if isinstance(values, (list, tuple)) else values[name]
    return values


def _with(values: Any, path: Sequence[str], new: Any) -> Any:
    """A copy of nested dicts, and of lists under places in them, with one value replaced."""
    rest = path[1:]
    if isinstance(values, (list, tuple)):
        place = int(path[0])
        return [_with(item, rest, new) if rest else new if at == place else item for at, item in enumerate(values)]
    inner = values if isinstance(values, Mapping) else {}
    return {**inner, path[0]: _with(inner.get(path[0], {}), rest, new) if rest else new}


def _checked(values: Mapping[str, Any], recipe: ReadRecipe, named: Mapping[str, Override]) -> Config:
    """The config; what the recipe has wrong is told with its place there."""
    try:
        return from_values(values)
    except ConfigError as error:
        group = error.key.split(".")[0].split("[")[0]
        theirs = group in recipe.config and group not in named
        mine = any(error.key == name or error.key.startswith(f"{name}.") for name in named)
        if theirs and not mine:
            raise recipe.error(error) from error
        raise


def _check_download(config: Config, recipe: ReadRecipe, named: Mapping[str, Override]) -> None:
    """Raise where the recipe alone would fetch weights from an address of its choice."""
    if config.model.weights == "pretrained" and not {"model", "model.weights"} & named.keys():
        from_where = config.model.pretrained or "where its library has them"
        what = f"the recipe asks to download weights from {from_where}"
        raise recipe.error(ConfigError("model.weights", what, "if you want that, add model.weights=pretrained"))


# ---- numbers of a model that are a size by name ---------------------------------------------


def _references(model: DictConfig) -> dict[str, str]:
    """Where `conf/model` has a size of the model by name: `inputs.x.shape.0` -> `batch` for `${model.batch}`."""
    return dict(_found(OmegaConf.to_container(model, resolve=False), ()))


def _found(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if match := re.fullmatch(r"\$\{model\.([\w.]+)\}", value):
            yield ".".join(path), match[1]
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in pairs:
        if "." not in str(name):  # an input that is a key of a mapping; no path leads through it
            yield from _found(item, (*path, str(name)))


def _followed(model: Any, named: Mapping[str, Override]) -> Any:
    """`model` with every number that is a size by name set to that size, where the size was named in the overrides."""
    follow = model.get("follow") if isinstance(model, Mapping) else None
    for key, source in follow.items() if isinstance(follow, Mapping) else ():
        path = str(key).split(".")
        try:
            _at(model, path)
            size = _at(model, str(source).split("."))
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"model.follow.{key}", "leads nowhere in the model of the recipe") from error
        itself = any(f"model.{key}.".startswith(f"{name}.") for name in named)
        if f"model.{source}" in named and not itself:
            model = _with(model, path, size)
    return model
