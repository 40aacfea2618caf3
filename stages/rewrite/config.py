"""Keys of `conf/rewrite`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RewriteConfig:
    """passes: the rewrites by name, in the order they run."""

    passes: tuple[str, ...] = ()
