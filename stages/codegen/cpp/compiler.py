"""The C++ compiler and the machine: which compiler, with which flags, for which CPU, beside which OpenMP runtime.

All of it enters the key under which a binary is cached.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from stages.codegen.config import CodegenConfig
from stages.ir.errors import UserError

CANDIDATES = ("g++", "clang++", "c++")

# What the generated code needs to be right: whole numbers wrap, no multiplication is fused with an addition behind
# eager's back. The rest only says that nobody looks at errno or at floating-point exceptions.
REQUIRED_FLAGS = (
    *("-std=c++17", "-shared", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w"),
)


@dataclass(frozen=True)
class Compiler:
    """`path` of the compiler and the first line of what it says of its version."""

    path: str
    version: str


def find_compiler(config: CodegenConfig) -> Compiler:
    """The compiler that `config` names, or else $CXX, or else the first of `CANDIDATES`.

    Raises `UserError` where there is none, or it does not run.
    """
    wanted = config.compiler or os.environ.get("CXX", "")
    names = (wanted,) if wanted else CANDIDATES
    for name in names:
        if path := shutil.which(name):
            return Compiler(path, _version(path))
    what = f"there is no C++ compiler '{wanted}'" if wanted else f"there is no C++ compiler ({', '.join(names)})"
    raise UserError(
        f"{what}, and kernels for the CPU are C++",
        "Install one (on Debian: apt install g++), or name one with codegen.compiler=PATH or the variable CXX.",
    )


@lru_cache(maxsize=8)
def _version(path: str) -> str:
    try:
        done = subprocess.run((path, "--version"), capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"the C++ compiler '{path}' does not run: {error}", "Name another with codegen.compiler=PATH."
        ) from error
    return done.stdout.partition("\n")[0]


@lru_cache(maxsize=1)
def cpu() -> str:
    """What distinguishes this CPU for -march=native: its model and instruction sets, as 16 hex digits."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = f"{platform.machine()} {platform.processor()}"
    lines = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)
    return hashlib.sha256("\n".join(sorted(set(lines)) or [text]).encode()).hexdigest()[:16]


def float_lanes() -> int:
    """Lanes of float32 in one SIMD register of this CPU."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": 16, "AVX2": 8}.get(capability, 4)


def openmp_runtime() -> tuple[str, ...]:
    """What to link so that a kernel runs on the threads torch has: the runtime already in this process, by path.

    A shared library that needs one of that name then gets the one that is loaded, whatever the name is (wheels of torch
    have carried a renamed libgomp).
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ("-lgomp",)
    loaded = re.findall(r"\s(/\S*/lib(?:gomp|iomp5|omp)[-.\w]*\.so[.\d]*)$", maps, re.MULTILINE)
    return (loaded[0],) if loaded else ("-lgomp",)


def command(compiler: Compiler, config: CodegenConfig, source: Path, target: Path) -> tuple[str, ...]:
    """The command line that makes the shared library `target` from `source`."""
    debug = ("-g",) if config.debug else ()
    flags = (*config.flags, *REQUIRED_FLAGS, *debug)
    return (compiler.path, *flags, str(source), "-o", str(target), *openmp_runtime())
