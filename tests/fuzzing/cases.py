"""Small cases by hand."""

from __future__ import annotations

import torch

from scripts.fuzzing.case import Case, Input, Step, Storage


def dense(values, shape=None, dtype=torch.float32):
    """A storage and the dense input that is all of it."""
    shape = (len(values),) if shape is None else shape
    return Storage(dtype, tuple(values)), shape


def case_of(inputs, steps, outputs=None):
    """`inputs` are `dense`; `steps` are (code, operands) that round, or `Step`s; the last value is returned."""
    storages = tuple(storage for storage, _ in inputs)
    views = tuple(
        Input(place, shape, torch.empty(shape, device="meta").stride()) for place, (_, shape) in enumerate(inputs)
    )
    made = tuple(step if isinstance(step, Step) else Step(*step, rounds=True) for step in steps)
    return Case(storages, views, made, outputs or (len(views) + len(made) - 1,))
