"""Options of codegen, the keys of `codegen` in the config."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import require

UNSAFE_FLAGS = ("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations", "-fassociative-math")


@dataclass(frozen=True)
class CodegenConfig:
    """How kernels are built.

    compiler    the C++ compiler, a name on PATH or a path; empty: $CXX, then g++, clang++, c++, the first there is
    flags       flags for the C++ compiler that choose speed against compile time and the machine; what the generated
                code needs to be right is added to them
    cache_dir   folder where binaries are kept between runs; empty: `torchweld` in the user's cache folder
    debug       verify each kernel before printing, and compile with symbols and line numbers
    """

    compiler: str = ""
    flags: tuple[str, ...] = ("-O2", "-march=native")
    cache_dir: str = ""
    debug: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", tuple(self.flags))
        for flag in self.flags:
            require(
                flag not in UNSAFE_FLAGS,
                "codegen.flags",
                f"'{flag}' would let the compiler change results: NaN, inf and -0.0 would no longer be as in eager",
                "Leave it out; vector code is generated without its help.",
            )
