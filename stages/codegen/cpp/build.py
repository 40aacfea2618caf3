"""From C++ source to a loaded library, compiled once: binaries are kept in a cache by the hash of all that made them.

The cache is safe for several processes at once: a binary appears under its name complete or not at all, and two that
build the same one write the same. Each entry ends with the SHA-256 of the rest, so that one that was cut short or
changed is noticed, and built again, before the loader sees it. (ELF allows bytes after what its headers describe.)
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stages.codegen.config import CodegenConfig
from stages.codegen.cpp import compiler as machine
from stages.ir.errors import UserError

HEADERS = ("vector.h", "memory.h", "operators.h", "math.h", "reduce.h", "parallel.h")
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Library:
    """A loaded library; `cached` where it did not have to be compiled."""

    handle: ctypes.CDLL
    path: Path
    cached: bool


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text of our headers, which starts every translation unit."""
    folder = Path(__file__).parent / "include"
    return "\n".join((folder / name).read_text() for name in HEADERS)


def build_library(functions: str, config: CodegenConfig) -> Library:
    """The library with `functions`, C++ definitions that may use the headers.

    Raises `UserError` where there is no compiler, it refuses the code, or the cache folder cannot be written.
    """
    # Inside the namespace, so that a name such as round is ours and never the C library's.
    source = f"{prelude()}\nnamespace weld {{\n\n{functions}\n}}  // namespace weld\n"
    compiler = machine.find_compiler(config)
    made_of = (source, compiler.version, *machine.command(compiler, config, Path("s"), Path("t")), machine.cpu())
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    folder = cache_folder(config) / key[:2]
    entry = folder / f"{key}.so"
    cached = _is_whole(entry)
    if not cached:
        _compile(source, compiler, config, entry)
    return Library(ctypes.CDLL(str(entry)), entry, cached)


def cache_folder(config: CodegenConfig) -> Path:
    """Where binaries are kept."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchweld" / "kernels"


def _is_whole(entry: Path) -> bool:
    try:
        content = entry.read_bytes()
    except OSError:
        return False
    return len(content) > DIGEST and hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _compile(source: str, compiler: machine.Compiler, config: CodegenConfig, entry: Path) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix="build-") as folder:
            text, binary = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            text.write_text(source)
            done = subprocess.run(
                machine.command(compiler, config, text, binary), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise _refused(source, done.stderr, compiler, entry.with_suffix(".cpp"))
            content = binary.read_bytes()
            binary.write_bytes(content + hashlib.sha256(content).digest())
            os.replace(binary, entry)
    except OSError as error:
        raise UserError(
            f"kernels cannot be built in '{entry.parent}': {error}", "Name another folder with codegen.cache_dir=PATH."
        ) from error


def _refused(source: str, message: str, compiler: machine.Compiler, kept: Path) -> UserError:
    kept.write_text(source)
    errors = [line for line in message.splitlines() if "error" in line] or message.splitlines()
    return UserError(
        f"{compiler.path} ({compiler.version}) refused generated code: " + "\n  ".join(errors[:5] or ["no message"]),
        f"The source is kept in {kept}. Check codegen.flags and codegen.compiler; with the default ones it is our bug.",
    )
