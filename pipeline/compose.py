"""Hydra composes the configuration; every error on the way is said in our words.

Comes in: overrides as on the command line (`precision=amp`). Goes out: Hydra's composed config, or plain values of it
for `pipeline.config`. Overrides are checked against the schema before Hydra sees them, so that a misspelt group, choice
or key is answered with the nearest valid name. Hydra's global state is left alone: a user's own Hydra application can
call `optimize`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from os.path import abspath
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import GROUPS, Config
from pipeline.models import hydra_source
from stages.ir.errors import ConfigError, UserError, choose, nearest

CONFIG_PACKAGE = "pkg://conf"
CONFIG_NAME = "config"


def compose(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """The composed config, with Hydra's own node `hydra`.

    config_dir   a folder of further choices, searched after ours (`--config-dir`)
    """
    setup_globals()
    loader = _loader(config_dir)
    for override in parse(overrides):
        _check(override, loader)
    lines = for_hydra(overrides)
    try:
        return loader.load_configuration(CONFIG_NAME, lines, RunMode.RUN, from_shell=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise _translated(error, lines) from error


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra has to see them.

    `recipe=NAME` is short for `recipe.path=NAME`. What is set on top of a recipe need not be in the default choice of
    its group, but in the recipe (`pipeline.configure` sees to that): so Hydra is told to add it. `experiment=null` is
    how things are anyway, and Hydra cannot read it.
    """
    parsed = parse(overrides)
    by_recipe = any(override.key_or_group in _RECIPE for override in parsed)
    lines = []
    for override in parsed:
        line, key = str(override.input_line), override.key_or_group
        plain = not (override.is_add() or override.is_force_add() or override.is_delete())
        if key == "experiment" and plain and override.value() is None:
            continue
        if key == _RECIPE[0]:
            line = re.sub(r"recipe\s*=", "recipe.path=", line, count=1)
        elif by_recipe and plain and "." in key and key.split(".")[0] in GROUPS:
            line = f"++{line}"
        lines.append(line)
    return lines


_RECIPE = ("recipe", "recipe.path")


def jobs_of(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep, in Hydra's order."""
    for override in parse(overrides):
        if override.is_interval_sweep():
            raise ConfigError(
                override.key_or_group,
                "a grid cannot have all numbers of an interval",
                "write some, as in range(1,9,2); or add search=random, tpe or halving",
            )
    try:
        return [job for batch in BasicSweeper.split_arguments(parse(overrides), None) for job in batch]
    except HydraException as error:
        raise UserError(f"cannot sweep: {_first_line(error)}", "write a sweep as key=a,b,c") from error


def parse(overrides: Sequence[str]) -> list[Override]:
    """The overrides, taken apart. Raises `UserError` on one that is not key=value."""
    parsed: list[Override] = []
    for text in overrides:
        mend = "write key=value, as in precision=amp; put quotes around a value with special characters"
        try:
            parsed += OverridesParser.create().parse_overrides([text])
        except HydraException as error:
            raise UserError(f"cannot read '{text}' on the command line", mend) from error
        if not parsed[-1].key_or_group:
            raise UserError(f"cannot read '{text}' on the command line", mend)
    return parsed


def values_of(config: DictConfig) -> dict[str, Any]:
    """Plain values, interpolations resolved, without Hydra's own node."""
    bare = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        values = OmegaConf.to_container(bare, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key or "config"), _first_line(error)) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _loader(config_dir: str | None) -> ConfigLoaderImpl:
    hydra_source.register()
    search_path = create_config_search_path(CONFIG_PACKAGE)
    if config_dir is not None:
        # Where Hydra puts it: before the schema, which must be last.
        search_path.prepend("command-line", f"file://{abspath(config_dir)}", SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(config_search_path=search_path)


# ---- checking an override before Hydra sees it ---------------------------------------------


def _check(override: Override, loader: ConfigLoaderImpl) -> None:
    key = override.key_or_group
    if key.split(".")[0].split("/")[0] == "hydra":
        return
    if override.is_delete():
        raise ConfigError(
            key, "'~' takes nothing away here", "every group has a choice for that; stages=[...] leaves a stage out"
        )
    if override.package is not None:
        raise ConfigError(key, f"'@{override.package}' moves nothing here", f"write {key}=...")
    if key in GROUPS:
        if override.is_add():
            raise ConfigError(key, "is there already, so '+' has nothing to add", f"write {key}=...")
        for choice in _choices(override):
            if isinstance(choice, dict):
                raise ConfigError(key, "wants the name of a choice", f"write {key}=<choice>, or {key}.<key>=<value>")
            if not (choice is None and key == "experiment"):
                choose(key, "null" if choice is None else str(choice), _options(key, str(choice), loader))
        return
    in_dictionary(key)


def _options(group: str, wanted: str, loader: ConfigLoaderImpl) -> list[str]:
    """The choices of `group`; those of the suite where one of them is `wanted`, and so has to be near."""
    options = loader.get_group_options(group)
    if group == hydra_source.GROUP and wanted not in options:
        options = [*options, *hydra_source.choices()]
    return options


def _choices(override: Override) -> list[Any]:
    if override.is_sweep_override():
        return [part.strip("[]") for text in override.sweep_string_iterator() for part in str(text).split(",")]
    value = override.value()
    return list(value) if isinstance(value, list) else [value]


def in_dictionary(key: str) -> bool:
    """Whether `key` lies in a dictionary, where any name goes. Raises `ConfigError` unless the schema has it."""
    hint: Any = Config
    path: list[str] = []
    for name in key.split("."):
        if not (is_dataclass(hint) and isinstance(hint, type)):
            raise ConfigError(".".join(path), "is a value and has no keys")
        known = [field.name for field in fields(hint)]
        if not path:
            known = sorted({*known, *GROUPS})
        if name not in known:
            what = "key" if path else "group or key"
            raise ConfigError(".".join([*path, name]), f"there is no such {what}", nearest(name, known))
        path.append(name)
        hint = _inner(get_type_hints(hint)[name])
        if get_origin(hint) is dict or hint is dict:
            return True
    return False


def _inner(hint: Any) -> Any:
    """The type inside `X | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(arg for arg in get_args(hint) if arg is not type(None))
    return hint


# ---- what Hydra still has to say -----------------------------------------------------------


def _translated(error: Exception, overrides: Sequence[str]) -> UserError:
    """Hydra's error about composing, with the override that it is about and the mend."""
    text = str(error)
    for override in parse(overrides):
        key = override.key_or_group
        if override.is_sweep_override():
            return ConfigError(
                key, f"'{override.input_line}' is several values", "add -m for a sweep, or write a list as [a,b]"
            )
        if f"'{key}'" not in text:
            continue
        if "Could not override" in text and key.startswith("hydra"):
            return ConfigError(key, "Hydra has no such key", "torchweld --cfg hydra shows what it has")
        if "Could not override" in text:
            if not in_dictionary(key):
                return ConfigError(
                    key, f"the choice of {key.split('.')[0]} does not have it", "leave it out, or choose another"
                )
            return ConfigError(key, "there is no such key yet", f"to add it, write +{override.input_line}")
        if "Could not append" in text:
            return ConfigError(key, "is there already, so '+' has nothing to add", f"write {key}=...")
    return UserError(
        f"the configuration does not compose: {_first_line(error)}", "torchweld --help lists what there is"
    )


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None and not str(error).strip():
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
