"""Where a recipe is: `recipe=NAME` is one that comes with the program, `recipe=PATH` a file or a run folder."""

from __future__ import annotations

import difflib
from pathlib import Path

from stages.ir.errors import ConfigError

FILE = "recipe.yaml"
_SHIPPED = Path(__file__).parents[2] / "conf" / "recipe"
_ENDINGS = (".yaml", ".yml")


def shipped() -> dict[str, Path]:
    """The recipes that come with the program, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def find(named: str) -> Path:
    """The file that `named` stands for: a name of `shipped`, the path of a file, or a run folder, which holds one.

    Raises `ConfigError` on what looks like a name and is none; whether a path leads anywhere is seen when it is read.
    """
    known = shipped()
    if named in known:
        return known[named]
    path = Path(named)
    if path.is_dir():
        return path / FILE
    if path.exists() or "/" in named or path.suffix in _ENDINGS:
        return path
    near = sorted(known, key=lambda name: difflib.SequenceMatcher(None, named, name).ratio(), reverse=True)
    raise ConfigError(
        "recipe",
        f"there is no '{named}'",
        f"there are, the nearest first: {', '.join(near)}; another one is named by its path, as in recipe=./{FILE}",
    )
