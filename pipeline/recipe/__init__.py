"""`recipe.yaml`: what makes the same program again. Written by every run, read by `recipe=NAME` or `recipe=PATH`.

    layout       what stands in the file         writing      one made of a run
    finding      by name or by path              reading      one from elsewhere, in which nothing is believed
    limits       what a number or text may be    difference   what two of them do not share

A recipe holds the resolved config, versions, device, seeds, each kernel's hash and schedule, and the results. It says
nothing of this machine: where files lie, which compiler to call and where to send results is never taken from one.
"""

from __future__ import annotations

from pipeline.recipe.difference import AFTER, BEFORE, PARTS, Difference, compare, hold, lines_of
from pipeline.recipe.finding import FILE, find, shipped
from pipeline.recipe.layout import (
    FORMAT,
    RECORDED,
    EngineRecord,
    Interval,
    KernelRecord,
    Recipe,
    Results,
    ValidationRecord,
)
from pipeline.recipe.reading import ReadRecipe, read
from pipeline.recipe.writing import kernels_of, plain, recipe_of, results_of, write

__all__ = [
    "AFTER",
    "BEFORE",
    "FILE",
    "FORMAT",
    "PARTS",
    "RECORDED",
    "Difference",
    "EngineRecord",
    "Interval",
    "KernelRecord",
    "ReadRecipe",
    "Recipe",
    "Results",
    "ValidationRecord",
    "compare",
    "find",
    "hold",
    "kernels_of",
    "lines_of",
    "plain",
    "read",
    "recipe_of",
    "results_of",
    "shipped",
    "write",
]
