"""Where and why Dynamo could not go on: graph breaks and failures, as the user's file, line and code, and the reason.

Comes in: Dynamo's exceptions, the reason it stores with each graph, and its list of break reasons. Goes out:
`GraphBreak`s. Dynamo offers no stable interface for these facts, so each source is read with care for its absence;
the first break is always known exactly, from the exception that `fullgraph` raises.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class GraphBreak:
    """A place of the user's source at which capture stopped, and Dynamo's reason in one or a few lines."""

    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: {self.code}" if self.file else "(no source line)"
        return f"{place}\n  {self.reason}"


def break_of(error: BaseException) -> GraphBreak:
    """The break that one of Dynamo's exceptions tells of."""
    frames = [(frame.filename, frame.lineno) for frame in getattr(error, "real_stack", None) or ()]
    frames = frames or [(match["file"], int(match["line"])) for match in _FRAME.finditer(str(error))]
    return _at(frames, str(error))


def break_of_model(error: BaseException) -> GraphBreak:
    """The place in the user's source at which the model itself raised `error`."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = os.path.dirname(__file__) + os.sep
    return _at([frame for frame in frames if not frame[0].startswith(own)], f"{type(error).__name__}: {error}")


def _at(frames: Sequence[tuple[str, int | None]], text: str) -> GraphBreak:
    users = [(file, line or 0) for file, line in frames if not file.startswith((_TORCH, "<"))]
    file, line = users[-1] if users else ("", 0)
    return GraphBreak(file, line, linecache.getline(file, line).strip() if file else "", _reason(text))


def _reason(text: str) -> str:
    """Dynamo's message without its hints, debug context and traceback: what was met and why it cannot be traced."""
    kept = []
    for line in text.splitlines():
        if re.match(
            r"\s*(Hint:|Developer debug context:|from user code|For more details|Set TORCH|The above exc)", line
        ):
            break
        if line.strip():
            kept.append(re.sub(r"^(Explanation:|backend=.* raised:) *", "", line.strip()))
    return " ".join(kept) or text.strip()


class BreakLog:
    """Collects the breaks of one call that is not `fullgraph`.

    Dynamo keeps its reasons in lists of the process; what is in them already when the log is made is not of this call.
    """

    def __init__(self) -> None:
        self._before = {id(entry) for entry in (*_reasons(), *_failures())}
        # Keeps what is listed alive, so that an id stays its own.
        self._alive = [*_reasons(), *_failures()]

    def breaks(self) -> list[GraphBreak]:
        """The breaks since, each place once, in Dynamo's order."""
        found = []
        for reason in self._new(_reasons()):
            frames = [(frame.filename, frame.lineno) for frame in reason.user_stack or ()]
            found.append(_at(frames, str(reason.reason)))
        return _once(found)

    def failures(self) -> list[GraphBreak]:
        """The places since at which Dynamo gave a frame up, which then runs in eager; each once, in Dynamo's order."""
        found = []
        for failure in self._new(_failures()):
            place = (failure.fail_user_frame_filename or "", failure.fail_user_frame_lineno)
            found.append(_at([place], str(failure.fail_reason)))
        return _once(found)

    def _new(self, entries: Iterable[Any]) -> list[Any]:
        return [entry for entry in entries if id(entry) not in self._before]


def _once(places: Sequence[GraphBreak]) -> list[GraphBreak]:
    return list({(entry.file, entry.line): entry for entry in reversed(places)}.values())[::-1]


def _reasons() -> list[Any]:
    return list(getattr(torch._dynamo.utils, "graph_break_reasons", ()))


def _failures() -> list[Any]:
    """Frames that Dynamo gave up on and left to eager."""
    metrics: list[Any] = getattr(torch._dynamo.utils, "get_compilation_metrics", list)()
    return [entry for entry in metrics if getattr(entry, "fail_reason", None)]
