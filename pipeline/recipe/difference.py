"""What two recipes do not share, in config, versions, kernels and results.

Comes in: two `Recipe`s; one may be of a run that has just come to its end. Goes out: a `Difference` for each thing that
is not the same in both, in the order of the file. Kernels are the same where their hashes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeline.config import RecipeConfig
from pipeline.recipe.layout import BESIDE_THE_PROGRAM, KernelRecord, Recipe
from pipeline.recipe.writing import plain
from stages.ir.errors import ConfigError
from stages.ir.schedule import Schedule
from stages.ir.words import counted

Part = Literal["config", "versions", "device", "weights", "kernels", "results"]
PARTS: tuple[Part, ...] = get_args(Part)
ABSENT = "–"


@dataclass(frozen=True)
class Difference:
    """`name` is `one` in the first recipe and `other` in the second; `ABSENT` where it is not there."""

    part: Part
    name: str
    one: str
    other: str


def compare(one: Recipe, other: Recipe, parts: Sequence[Part] = PARTS) -> list[Difference]:
    """What is not the same in both, as far as it is in `parts`."""
    found = {
        "config": lambda: _values("config", one.config, other.config),
        "versions": lambda: _values("versions", one.versions, other.versions),
        "device": lambda: _values("device", {"device": one.device}, {"device": other.device}),
        "weights": lambda: _values("weights", {"weights": one.weights}, {"weights": other.weights}),
        "kernels": lambda: _kernels(one.kernels, other.kernels),
        "results": lambda: _values("results", plain(one.results) or {}, plain(other.results) or {}),
    }
    return [difference for part in PARTS if part in parts for difference in found[part]()]


# What can be said before anything is compiled, and what only afterwards.
BEFORE: tuple[Part, ...] = ("config", "versions", "device")
AFTER: tuple[Part, ...] = ("weights", "kernels")


def lines_of(recipe: Recipe, here: Recipe, parts: Sequence[Part] = (*BEFORE, *AFTER)) -> list[str]:
    """What of the program and of what it was made with is not as it was when `recipe` was written, one line each.

    How it is measured does not count; nor does a key that the recipe does not have.
    """
    lines = []
    for each in compare(recipe, here, parts):
        aside = each.name.split(".")[0] in BESIDE_THE_PROGRAM or each.one == ABSENT
        if each.part == "config" and aside:
            continue
        name = each.name if each.part != "config" else f"config.{each.name}"
        lines.append(f"{name}: {_shown(each.one)} in the recipe, {_shown(each.other)} here")
    return lines


def hold(config: RecipeConfig, lines: Sequence[str]) -> None:
    """Raise `ConfigError` where `recipe.strict` is set and there is a difference; `lines` names each."""
    if config.strict and lines:
        count = counted(len(lines), "difference")
        what = f"{count} from {config.path}:" + "".join(f"\n    {line}" for line in lines)
        raise ConfigError("recipe.strict", what, "leave recipe.strict out to run all the same, and be told")


def _shown(text: str) -> str:
    return "not there" if text == ABSENT else text


def _values(part: Part, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = dict(_leaves(one, "")), dict(_leaves(other, ""))
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after or before[name] != after[name]:
            sides = (str(values[name]) if name in values else ABSENT for values in (before, after))
            yield Difference(part, name, *sides)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Each value under its dotted key; a list of plain values is one value, one of mappings is not."""
    if isinstance(value, Mapping) and (value or not key):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{key}[{place}]")
    else:
        yield key, list(value) if isinstance(value, tuple) else value


def _kernels(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> Iterator[Difference]:
    before, after = ({kernel.hash: kernel for kernel in kernels} for kernels in (one, other))
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        title = f"kernel {(old or new).name} {name}"  # type: ignore[union-attr]
        if old is None or new is None:
            sides = (ABSENT if kernel is None else _times(kernel) for kernel in (old, new))
            yield Difference("kernels", title, *sides)
            continue
        if old.launches != new.launches:
            yield Difference("kernels", title, _times(old), _times(new))
        if (old.schedule or None) != (new.schedule or None):
            yield Difference("kernels", f"{title} schedule", _schedule(old), _schedule(new))


def _times(kernel: KernelRecord) -> str:
    return "launched once" if kernel.launches == 1 else f"launched {kernel.launches} times"


def _schedule(kernel: KernelRecord) -> str:
    return Schedule(**kernel.schedule).text() if kernel.schedule else "the default one"  # type: ignore[arg-type]
