"""The model suite: `suite.yaml` read, and an entry of it as an ordinary model.

Comes in: a `ModelConfig` with `library: suite`, which names an entry and a size. Goes out: the `ModelConfig` of that
entry: its library, its architecture's config, and inputs whose shapes are numbers. One data file declares all entries,
so that a run and its recipe need to hold a name and a size only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import InputConfig, ModelConfig
from pipeline.schema import read
from stages.ir.errors import ConfigError, UserError, choose, nearest

_FILE = Path(__file__).with_name("suite.yaml")
_BY_KEYWORD = ("transformers", "diffusers")


@dataclass(frozen=True)
class Entry:
    """One architecture of the suite; the head of `suite.yaml` says what each key means.

    inputs   as `InputConfig`, but numbers may be words that `sizes` gives
    sizes    size -> word -> number
    """

    name: str
    family: str
    tier: str
    library: str
    inputs: dict[str, dict[str, Any]]
    sizes: dict[str, dict[str, int]]
    architecture: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    layers: tuple[Any, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)
    smoke_config: dict[str, Any] = field(default_factory=dict)
    stands_for: tuple[str, ...] = ()
    published: str = ""
    substitute_for: str = ""
    note: str = ""
    parameters_m: float = 0.0


@cache
def entries() -> dict[str, Entry]:
    """All entries by name, in the order of the file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    values = yaml.load(_FILE.read_text(encoding="utf-8"), loader)
    return {name: read(Entry, {"name": name, **entry}, name) for name, entry in values.items()}


def choice(name: str) -> dict[str, Any]:
    """What `model=suite/<name>` composes to: plain values of a `ModelConfig`. `sizes` has the words that can be set."""
    entry = entry_of(name)
    return {
        "name": name,
        "library": "suite",
        "architecture": name,
        "weights": "random",
        "size": "full",
        "sizes": dict.fromkeys(entry.sizes["full"]),
        "config": {},
        "call": {},
    }


def entry_of(name: str | None) -> Entry:
    """The entry of this name. Raises `ConfigError` with the nearest one."""
    return entries()[choose("model.architecture", name or "", entries())]


def expand(config: ModelConfig) -> ModelConfig:
    """The model that an entry of the suite stands for; any other config as it is.

    The user's `config`, `call` and `sizes` are laid over the entry's. Raises `ConfigError` on a word that is no size of
    the entry, and on weights other than random ones: the suite names none.
    """
    if config.library != "suite":
        return config
    entry = entry_of(config.architecture)
    if config.weights == "pretrained":
        raise ConfigError("model.weights", "models of the suite have random weights", "leave it out")
    sizes = _sizes(entry, config)
    base = merge(entry.config, entry.smoke_config) if config.size == "smoke" else entry.config
    return replace(
        config,
        library=entry.library,  # type: ignore[arg-type]
        architecture=entry.architecture or entry.name,
        config=merge(base, config.config),
        inputs={name: _input(entry, name, spec, sizes) for name, spec in entry.inputs.items()},
        positional=entry.library not in _BY_KEYWORD,
        call=merge(entry.call, config.call),
        batch=sizes.get("B", 1),
    )


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def _sizes(entry: Entry, config: ModelConfig) -> dict[str, int]:
    sizes = entry.sizes[config.size]
    given = {word: number for word, number in config.sizes.items() if number is not None}
    for word in given:
        if word not in sizes:
            raise ConfigError(f"model.sizes.{word}", f"{entry.name} has no such size", nearest(word, sizes))
    return {**sizes, **given}


def _input(entry: Entry, name: str, spec: Mapping[str, Any], sizes: Mapping[str, int]) -> InputConfig:
    """The input with its words looked up."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        if not isinstance(value, str):
            return value
        if value not in sizes:
            raise UserError(f"suite.yaml: '{value}' of {entry.name}.inputs.{name} is not among its sizes")
        return sizes[value]

    words = {key: value if key in ("kind", "dtype") else number(value) for key, value in spec.items()}
    return read(InputConfig, words, f"{entry.name}.inputs.{name}")
