"""Graph to Graph: an equal computation that costs less. One file a family of rewrites, run in the order of the config.

Comes in: a captured graph. Goes out: the same object, edited, with a note for each rewrite that did something.
"""

from __future__ import annotations

from collections.abc import Callable

from stages.ir.graph import Graph, verify
from stages.rewrite.attention import fuse_attention
from stages.rewrite.batch_norm import fold_batch_norm
from stages.rewrite.cleanup import remove_dead, remove_duplicates, remove_identities
from stages.rewrite.config import PASSES, RewriteConfig
from stages.rewrite.convolution_bias import peel_bias
from stages.rewrite.freeze import fold_constants
from stages.rewrite.gelu import fuse_gelu
from stages.rewrite.layout import channels_last
from stages.rewrite.linear_bias import peel_linear_bias
from stages.rewrite.masks import fold_masks
from stages.rewrite.memory_order import ATTENTIONS, CONVOLUTIONS, memory_order_matters
from stages.rewrite.pad import pad_unaligned
from stages.rewrite.pointwise import pointwise_to_linear
from stages.rewrite.pooling import pool_to_maxima
from stages.rewrite.prepack import prepack, prepack_long_sums
from stages.rewrite.propagate import outputs_of, propagate
from stages.rewrite.short_attention import short_attention
from stages.rewrite.siblings import merge_siblings
from stages.rewrite.stems import patches_to_linear, space_to_depth

REWRITES: dict[str, Callable[[Graph], str]] = {
    "remove_identities": remove_identities,
    "remove_duplicates": remove_duplicates,
    "remove_dead": remove_dead,
    "fold_batch_norm": fold_batch_norm,
    "fuse_gelu": fuse_gelu,
    "patches_to_linear": patches_to_linear,
    "space_to_depth": space_to_depth,
    "pool_to_maxima": pool_to_maxima,
    "peel_bias": peel_bias,
    "channels_last": channels_last,
    "pointwise_to_linear": pointwise_to_linear,
    "merge_siblings": merge_siblings,
    "pad_unaligned": pad_unaligned,
    "peel_linear_bias": peel_linear_bias,
    "prepack": prepack,
    "prepack_long_sums": prepack_long_sums,
    "fold_constants": fold_constants,
    "fold_masks": fold_masks,
    "fuse_attention": fuse_attention,
    "short_attention": short_attention,
}
assert set(REWRITES) == set(PASSES)
# Those that put results into another order in memory, and whose. (`prepack` does, too, and sees to it itself.)
_OF_IMAGES = ("patches_to_linear", "space_to_depth", "pool_to_maxima", "channels_last", "pointwise_to_linear")
MOVES_MEMORY = (
    (_OF_IMAGES, CONVOLUTIONS),
    (("fold_masks", "fuse_attention", "short_attention"), ATTENTIONS),
)


def run(graph: Graph, config: RewriteConfig) -> Graph:
    """Apply the rewrites of `config.passes` in order. Raises `IRError` if one leaves a graph that breaks the rules."""
    wanted = outputs_of(graph)
    left_out: dict[str, str] = {}
    for names, makers in MOVES_MEMORY:
        if reason := memory_order_matters(graph, makers):
            left_out |= dict.fromkeys([name for name in config.passes if name in names], reason)
    graph.notes += [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    notes = [(name, REWRITES[name](graph)) for name in config.passes if name not in left_out]
    graph.notes += [f"{name}: {note}" for name, note in notes if note]
    if any(note for _, note in notes):
        propagate(graph, wanted, tidy="remove_identities" in config.passes)
    graph.module.recompile()
    verify(graph)
    return graph
