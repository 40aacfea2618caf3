"""When two jobs are the same job: equal config, equal code, equal versions, equal device.

Comes in: a checked config. Goes out: a key of 16 hex digits. Left out of it is what cannot change a result: where files
go, where runs are logged, and how a sweep runs its jobs. A recipe counts by what is in its file, not by its name; the
user's own model by the source of its package, or of the modules beside it. What that model reads besides (data files,
packages that it imports) is not seen: `sweep.rerun=all` is for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.recipe import find
from pipeline.report.record import config_hash, plain

_ROOT = Path(__file__).parents[2]
_OWN_FOLDERS = ("pipeline", "stages")
_SOURCES = (".py", ".h")


@dataclass(frozen=True)
class Identity:
    """What a job is known by.

    key           of all that follows
    config_hash   of the resolved config, less what cannot change a result
    code          of our source, the user's model and the recipe
    device        as `pipeline.device.describe` has it
    versions      of Python and the packages that matter
    """

    key: str
    config_hash: str
    code: str
    device: str
    versions: Mapping[str, str]


def identity_of(config: Config, device: str, versions: Mapping[str, str]) -> Identity:
    """The identity of the job that `config` tells, on `device` under `versions`."""
    values = plain(asdict(config))
    code = hashlib.sha256(own_code().encode())
    if config.model.path is not None:
        code.update(user_code(config.model.path.split(":")[0].split(".")[0]).encode())
    if config.recipe.path is not None:
        code.update(find(config.recipe.path).read_bytes())
    parts: dict[str, Any] = {
        "config": config_hash({**values, "recipe": {**values["recipe"], "path": None}}),
        "code": code.hexdigest()[:16],
        "device": device,
        "versions": dict(versions),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return Identity(key, config_hash(values), parts["code"], device, parts["versions"])


@lru_cache(maxsize=1)
def own_code() -> str:
    """A digest of this program's source."""
    return _digest(path for name in _OWN_FOLDERS for path in (_ROOT / name).rglob("*"))


def user_code(module: str) -> str:
    """A digest of the source that the top-level module `module` has; of an installed one, where it is installed.

    Nothing of it is run. Empty where it cannot be found: the job itself will say so.
    """
    if os.getcwd() not in sys.path:  # where `pipeline.models.custom` finds it
        sys.path.append(os.getcwd())
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    if spec.submodule_search_locations:
        return _digest(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*"))
    if spec.origin is None or not os.path.isfile(spec.origin):
        return ""
    file = Path(spec.origin)
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    return _digest([file] if file.parent in installed else file.parent.iterdir())


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.suffix in _SOURCES and path.is_file()):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
