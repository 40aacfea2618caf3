"""Which rewrites run, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.ir.errors import choose

DEFAULT = (
    "remove_identities",
    "remove_duplicates",
    "remove_dead",
    "fold_batch_norm",
    "fuse_gelu",
    "patches_to_linear",
    "space_to_depth",
    "pool_to_maxima",
    "peel_bias",
    "channels_last",
    "pointwise_to_linear",
    "merge_siblings",
    "pad_unaligned",
    "peel_linear_bias",
    "prepack",
    "fold_constants",
    "fold_masks",
    "fuse_attention",
    "short_attention",
)
PASSES = (*DEFAULT, "prepack_long_sums")


@dataclass(frozen=True)
class RewriteConfig:
    """passes: the rewrites, in order; each is a function of that name in `stages.rewrite`."""

    passes: list[str] = field(default_factory=lambda: list(DEFAULT))

    def __post_init__(self) -> None:
        for name in self.passes:
            choose("rewrite.passes", name, PASSES)
