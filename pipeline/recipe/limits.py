"""What a number or a text of a recipe may be at the most: enough for every model there is, too little to do harm.

Comes in: the values of a file, under their dotted keys. Goes out: nothing, or a `ConfigError` that names the key. What
a key means is not known here; that is the schema's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from stages.ir.errors import nearest, require
from stages.ir.schedule import Schedule

MAX_TEXT = 4096
MAX_NAME = 200
MAX_EVENTS = 200_000  # of YAML: keys, values, beginnings and ends
MAX_ELEMENTS = 1 << 30  # of one input: 4 GiB of float32

# Keys, and the largest number that each may be; the first that fits counts.
_NUMBERS = (
    ("config.seed", (1 << 63) - 1),
    ("config.*.seed", (1 << 63) - 1),
    ("config.device.*", 4096),
    ("config.validate.input_sets", 1000),
    ("config.validate.few_sets", 1000),
    ("config.benchmark.*", 100_000),
    ("config.*", 1 << 24),
    ("kernels*.launches", 1 << 24),
    ("format", 1 << 24),
    ("results.*", math.inf),
)
# Of each field of a schedule. A larger one would only make the compiler work for hours.
_SCHEDULE = {
    **{"vector_width": 64, "unroll": 64, "threads": 4096, "tile": 1 << 17, "reduce_tile": 1 << 17},
    **{"persistent": 1, "num_warps": 32, "num_stages": 16, "tile_m": 1024, "tile_n": 1024, "tile_k": 1024},
    **{"split_k": 1024, "group": 1024, "launch_pdl": 1, "prefetch": 1},
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,+- ")


def check(values: Any) -> None:
    """Raise `ConfigError` on the first value of `values`, those of a whole file, that no recipe of a run has."""
    for key, value in leaves(values, ""):
        name = key.rsplit(".", 1)[-1]
        require(len(name) <= MAX_NAME, f"{key[:MAX_NAME]}…", f"is a name of more than {MAX_NAME} letters")
        require(name.isprintable(), repr(key), "has characters that do not print")
        hydra = name.startswith("_") and name.endswith("_")
        require(not hydra, key, "is not allowed in a recipe", "stages and models are named, not built by Hydra")
        if isinstance(value, str):
            _text(key, value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            _number(key, value)


def _text(key: str, text: str) -> None:
    require(len(text) <= MAX_TEXT, key, f"is a text of more than {MAX_TEXT} letters")
    lines = text.split("\n") if key.startswith("results.") else [text]
    require(all(line.isprintable() for line in lines), key, "has characters that do not print")
    require("${" not in text, key, "interpolations are not allowed in a recipe", "write the value itself")
    if key.startswith(("config.model.config.", "config.model.call.")):
        mend = "a recipe says of a model how large it is, and names no file or address"
        require(set(text) <= _PLAIN and ".." not in text, key, f"'{text}' is no plain word", mend)


def _number(key: str, value: float) -> None:
    if isinstance(value, float):
        require(math.isfinite(value), key, f"{value} is no number to work with")
        if not key.startswith("config.benchmark."):
            return
    most = next((most for pattern, most in _NUMBERS if fnmatchcase(key, pattern)), 1 << 24)
    require(abs(value) <= most, key, f"{value} is out of bounds", f"at most {most}")


def check_schedule(key: str, schedule: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless every key of `schedule` is a field of `Schedule`, of its type and of sensible size."""
    known = Schedule().to_dict()
    for name, value in schedule.items():
        require(name in known, f"{key}.{name}", "there is no such key", nearest(name, known))
        fits = type(value) is type(known[name]) and 0 <= value <= _SCHEDULE[name]
        require(fits, f"{key}.{name}", f"{value!r} is no size of a schedule", f"at most {_SCHEDULE[name]}")


def check_inputs(model: Mapping[str, Any]) -> None:
    """Raise `ConfigError` on an input of the model that is larger than any real one."""
    inputs = model.get("inputs")
    for name, spec in inputs.items() if isinstance(inputs, Mapping) else ():
        shape = spec.get("shape") if isinstance(spec, Mapping) else None
        sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, list) else []
        key = f"config.model.inputs.{name}.shape"
        require(len(sizes) <= 16, key, f"{len(sizes)} dimensions are too many")
        require(math.prod(sizes) <= MAX_ELEMENTS, key, f"{sizes} is out of bounds", f"at most {MAX_ELEMENTS} elements")


def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value, containers too, under its dotted key."""
    if key:
        yield key, value
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from leaves(item, f"{key}[{place}]")
