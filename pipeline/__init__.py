"""From a config to a recorded result. `optimize(model, inputs, overrides)` is the door for a user's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.optimized import Optimized, optimize

__all__ = ["Optimized", "optimize"]


def __getattr__(name: str) -> Any:
    """Imports torch and the stages only when they are asked for, so that `--help` answers at once."""
    if name in __all__:
        from pipeline import optimized

        return getattr(optimized, name)
    raise AttributeError(f"module 'pipeline' has no attribute '{name}'")
