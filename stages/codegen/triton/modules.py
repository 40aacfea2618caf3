"""Generated sources as importable modules: one file a source, named by its content.

Triton reads a kernel's source from its file, so the file has to outlive the process' use of it, and two processes may
write the same one: it is written aside and moved into place.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

_lock = threading.RLock()


def cache_folder(configured: str) -> Path:
    """Where generated modules are kept: under `configured`, or under `torchweld` in the user's cache folder."""
    base = configured or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "torchweld")
    return Path(base) / "triton"


def source_name(source: str) -> str:
    """The module name of a source: 24 hex digits of its SHA-256 after a prefix."""
    return "torchweld_triton_" + hashlib.sha256(source.encode()).hexdigest()[:24]


def load_module(source: str, folder: Path) -> ModuleType:
    """The module of `source`, written to `folder` if it is not there yet. Raises `OSError` where that cannot be."""
    name = source_name(source)
    with _lock:
        if name not in sys.modules:
            path = folder / f"{name}.py"
            if not path.exists():
                _write(path, source)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def _write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(source)
    os.replace(aside, path)
