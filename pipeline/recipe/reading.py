"""A recipe read from a file that may come from anywhere: nothing in it is run, looked up or believed.

Comes in: a path. Goes out: a `ReadRecipe`, or a `UserError` that names the key and the line. In this order: a regular
file of limited size; YAML of plain scalars, without tags, anchors, merge keys and keys that are there twice; values
within limits, without interpolations; the schema. That the config is valid, and names no code, is checked where it is
laid under the command line (`pipeline.configure`).
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from pipeline.recipe import limits
from pipeline.recipe.layout import FORMAT, RECORDED, Recipe
from pipeline.schema import read as read_schema
from stages.ir.errors import ConfigError, UserError, nearest

MAX_BYTES = 2 << 20
MAX_DEPTH = 16
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = ("null", "bool", "int", "float", "str")
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class ReadRecipe(Recipe):
    """A recipe and the file that it came from. lines: of each dotted key, counted from 1."""

    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, error: ConfigError) -> UserError:
        """`error` about the key of a config, as one about the place in the file that it came from."""
        key = f"config.{error.key}"
        line = line_of(self.lines, key)
        where = f", line {line}" if line else ""
        return UserError(f"recipe={self.file}{where}: config.{error}")


def read(path: str | Path) -> ReadRecipe:
    """The recipe in the file `path`. Raises `UserError` on one that is not there, not a recipe, or not harmless."""
    text = _text_of(Path(path))
    lines: dict[str, int] = {}
    try:
        values = _values_of(text, lines)
        _check(values)
        recipe = read_schema(Recipe, values, "")
        _check_layout(recipe)
    except ConfigError as error:
        line = line_of(lines, error.key)
        raise UserError(f"recipe={path}{f', line {line}' if line else ''}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"recipe={path} is no recipe: {_one_line(error)}", "name the recipe.yaml in a run folder"
        ) from error
    known = {each.name: getattr(recipe, each.name) for each in fields(recipe)}
    return ReadRecipe(**known, file=str(path), lines=lines)


def line_of(lines: Mapping[str, int], key: str) -> int | None:
    """The line of `key`, or of the nearest thing around it; * stands for any name."""
    while key:
        if key in lines:
            return lines[key]
        pattern = re.escape(key).replace(r"\*", r"[^.]+")
        found = next((line for name, line in lines.items() if "*" in key and re.fullmatch(pattern, name)), None)
        if found is not None:
            return found
        key = re.sub(r"(\.[^.\[]*|\[[^\]]*\]|^[^.\[]+)$", "", key)
    return None


def _text_of(file: Path) -> str:
    mend = "name the recipe.yaml in a run folder"
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"recipe={file} cannot be read: it is no file", mend)
        with open(file, "rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UserError(
                f"recipe={file}: larger than {MAX_BYTES >> 20} MiB", "recipes that a run writes are far smaller"
            )
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"recipe={file} cannot be read: {reason}", mend) from error


# ---- YAML ----------------------------------------------------------------------------------


def _values_of(text: str, lines: dict[str, int]) -> Any:
    """The values in `text`; the line of each key is put into `lines`. Raises `ValueError` and `yaml.YAMLError`."""
    _screen(text)
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        for key, place in _places(node, ""):
            lines.setdefault(key, place)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _screen(text: str) -> None:
    """Walk the YAML events, which builds nothing, and refuse what a recipe never has."""
    depth = 0
    for place, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"line {line}: anchors and aliases are not allowed")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"line {line}: tags are not allowed")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > limits.MAX_TEXT:
            raise ValueError(f"line {line}: a text of more than {limits.MAX_TEXT} letters")
        if place > limits.MAX_EVENTS:
            raise ValueError(f"line {line}: a recipe has at most {limits.MAX_EVENTS} keys and values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line}: nested deeper than {MAX_DEPTH}")


def _places(node: yaml.Node, key: str) -> Iterator[tuple[str, int]]:
    """The line of every value under its dotted key. Raises `ValueError` on a key or scalar that is not plain."""
    line = node.start_mark.line + 1
    if key:
        yield key, line
    if isinstance(node, yaml.MappingNode):
        names = set()
        for name, value in node.value:
            place = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode) or name.tag != f"{_TAG}str":
                raise ValueError(f"line {place}: a key that is no text")
            if name.value in names:
                raise ValueError(f"line {place}: '{name.value[: limits.MAX_NAME]}' is there twice")
            names.add(name.value)
            inner = f"{key}.{name.value}" if key else name.value
            yield inner, place
            yield from _places(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            yield from _places(value, f"{key}[{place}]")
    elif node.tag.removeprefix(_TAG) not in _SCALARS:
        raise ValueError(f"line {line}: '{node.value}' is neither text, number, truth value nor null; put it in quotes")


# ---- values --------------------------------------------------------------------------------


def _check(values: Any) -> None:
    """What can be said of the values before anything is made of them."""
    if not isinstance(values, Mapping):
        return  # the schema says it
    version = values.get("format")
    if type(version) is int and version != FORMAT:
        raise ConfigError("format", f"{version}, but this version reads {FORMAT}", "use the version that wrote it")
    limits.check(values)


def _check_layout(recipe: Recipe) -> None:
    for key in recipe.config:
        if key not in RECORDED:
            raise ConfigError(f"config.{key}", "a recipe cannot set this", nearest(key, RECORDED))
    for place, kernel in enumerate(recipe.kernels):
        limits.check_schedule(f"kernels[{place}].schedule", kernel.schedule or {})
    model = recipe.config.get("model")
    if isinstance(model, Mapping):
        limits.check_inputs(model)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
