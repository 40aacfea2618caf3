"""Lanes for concurrent calls: each call in flight has memory of its own.

Comes in: a call on some CUDA stream. Goes out: a lane that no other call uses, whose earlier work the stream waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.runtime.weights import Weights


class Lane(Protocol):
    """Runs one call at a time."""

    def run(self, inputs: Sequence[Tensor], weights: Weights) -> list[Any]: ...

    @property
    def memory(self) -> Iterable[Tensor]:
        """What it keeps between calls."""


class Pool:
    """The free lanes, with the stream that each was last used on; a new one is made where none is free.

    A lane of the same stream is preferred. One of another stream serves too, after an order between the two streams:
    there are never more lanes than calls in flight at once.
    """

    def __init__(self, make: Callable[[], Lane], device: torch.device) -> None:
        self._make = make
        self._device = device
        self._lock = threading.Lock()
        self._free: list[tuple[Lane, Any]] = []

    def make_one(self) -> None:
        """Have a lane ready for the first call."""
        self.give(self._make(), None)

    def run(self, inputs: Sequence[Tensor], weights: Weights) -> list[Any]:
        """The outputs of a call on `inputs`, with constants that are up to date with `weights`."""
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        lane = self.take(stream)
        try:
            return lane.run(inputs, weights)
        finally:
            self.give(lane, stream)

    def take(self, stream: Any) -> Lane:
        """A lane for the caller alone, until `give`."""
        with self._lock:
            same = next((place for place, (_, last) in enumerate(self._free) if last == stream), len(self._free) - 1)
            lane, last = self._free.pop(same) if self._free else (None, None)
        if lane is None:
            return self._make()
        if last is not None and last != stream:
            stream.wait_stream(last)
            for tensor in lane.memory:
                # Else its memory could go to others, when the lane dies, before this stream is done with it.
                tensor.record_stream(stream)
        return lane

    def give(self, lane: Lane, stream: Any) -> None:
        """`lane` is free again; its last work is on `stream`."""
        with self._lock:
            self._free.append((lane, stream))
