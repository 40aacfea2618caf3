"""One recorded call of a model becomes its graphs, and, where it is a single graph, a call past Dynamo.

Comes in: a model (a module or a function) and the arguments to capture it with. Goes out: `Captured`, whose `call`
behaves as the model does and runs the captured graphs: through `torch.compile`, or, if the whole call is one graph and
changes no Python state, through a `FlatCaller`, which takes the user's tensors straight to the graph and its results
straight into the user's structure, without guards.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config as functorch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.exc import TorchDynamoException, Unsupported

from stages.capture.aot import NotStatic
from stages.capture.breaks import BreakLog, GraphBreak, break_of, break_of_model
from stages.capture.caller import FlatCaller, make_flat_caller
from stages.capture.config import CaptureConfig
from stages.capture.recorder import Recorder, Slot
from stages.capture.signature import NotFlat, Signature
from stages.capture.state import Snapshot
from stages.ir.errors import UserError, in_class_of
from stages.ir.graph import Graph

Context = Callable[[], AbstractContextManager[Any]]

# Dynamo keeps its break reasons for the process; two recordings at once would read each other's.
_ONE_RECORDING = threading.RLock()

# A recording is wanted however often the same code was compiled before, and with its backward graph.
_LIMITS = {"recompile_limit": 1 << 20, "accumulated_recompile_limit": 1 << 20}
_EAGERLY = {"force_non_lazy_backward_lowering": True}


class _Untouched(Exception):
    """Dynamo ran the model without compiling any of it."""


def _codes_of(model: Callable[..., Any]) -> list[types.CodeType]:
    """The code of the function that Dynamo compiles of `model`."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    code = getattr(inspect.unwrap(function), "__code__", None)
    return [code] if isinstance(code, types.CodeType) else []


@dataclass
class Captured:
    """A captured model.

    graphs  the AOT graphs, and `slots` their callables, in the order of capture
    breaks  where Dynamo could not go on; empty for one whole graph
    call    the model's own signature and results; a `FlatCaller` where the call is one graph, past Dynamo
    notes   what the user should know: why the call goes through Dynamo, what runs in eager
    eager   the parts of the model that run in eager: for one that Dynamo gave up its place, for a graph that was left
            as Dynamo made it what it has
    """

    graphs: list[Graph]
    slots: list[Slot]
    breaks: list[GraphBreak]
    call: Callable[..., Any]
    notes: list[str] = field(default_factory=list)
    eager: list[str] = field(default_factory=list)
    _recorder: Recorder | None = None

    def when_new(self, compile_slot: Callable[[Slot], None]) -> None:
        """Call `compile_slot` with each slot that appears later: where `call` goes through Dynamo, a new shape of the
        arguments makes new graphs. Without this they run as they are."""
        if self._recorder is not None:
            self._recorder.late = compile_slot


def run(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    config: CaptureConfig,
    context: Context = contextlib.nullcontext,
) -> Captured:
    """Call `model(*args, **kwargs)` once under `context()` and capture it; grad mode is the caller's.

    What the call changed (buffers, arguments, random generators) is put back. Raises `UserError`, naming file, line,
    code and reason, for a graph break or a failure of capture if `config.fullgraph`, and always if the model itself
    raises on these arguments; the error is then of the model's class, too.
    """
    with _ONE_RECORDING:
        try:
            return _Recording(model, args, kwargs, config, context).whole()
        except _Stopped as stopped:
            if config.fullgraph:
                raise stopped.for_user() from stopped.__cause__
            first = stopped
        return _Recording(model, args, kwargs, config, context).in_parts(first)


class _Stopped(Exception):
    """Capture of a whole graph came to `place`: a graph break, or a failure of Dynamo or AOTAutograd."""

    def __init__(self, place: GraphBreak, is_break: bool) -> None:
        super().__init__(str(place))
        self.place = place
        self.is_break = is_break

    def for_user(self) -> UserError:
        if self.is_break:
            return UserError(
                f"graph break at {self.place}",
                "Change the model so that the whole call can be traced, or set capture.fullgraph=false.",
            )
        return UserError(
            f"capture failed at {self.place}", "Set capture.fullgraph=false to run this part of the model in eager."
        )


def _stopped(error: TorchDynamoException, refused: Exception | None) -> _Stopped:
    """What Dynamo's exception says; `refused` is the cause if it was the compiler of a graph that failed."""
    if isinstance(refused, NotStatic):
        origin = refused.origin
        return _Stopped(GraphBreak(origin.file, origin.line, origin.code, str(refused)), is_break=True)
    return _Stopped(break_of(error), is_break=isinstance(error, Unsupported))


class _Recording:
    """One attempt: the recorded call, and what is made of it."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        config: CaptureConfig,
        context: Context,
    ) -> None:
        self.model, self.args, self.kwargs, self.config, self.context = model, args, kwargs, config, context
        self.not_flat = ""
        self.signature: Signature | None = None
        try:
            self.signature = Signature(args, kwargs, gradients=torch.is_grad_enabled())
        except NotFlat as reason:
            self.not_flat = str(reason)

    def whole(self) -> Captured:
        """The capture of a call that is one graph, or none. Raises `_Stopped` if it is more."""
        _, recorder, result, snapshot = self._call(fullgraph=True)
        call = self._flat(recorder, result, snapshot)
        snapshot.put_back()
        if isinstance(call, str):
            note = f"calls go through Dynamo's guards: {call}"
            # One that changes at every call would reach Dynamo's limit, which for a whole graph is an error: in parts,
            # with the same code, what is beyond the limit runs in eager.
            guarded = torch.compile(self.model, backend=recorder, dynamic=False)
            return self._captured(recorder, self._under_context(guarded), notes=[note])
        return self._captured(recorder, call)

    def in_parts(self, first: _Stopped) -> Captured:
        """The capture of a call in which Dynamo stopped at `first`."""
        log = BreakLog()
        # Anything but an operation that cannot be traced is a failure, which Dynamo raises unless told not to.
        suppress = {} if first.is_break else {"suppress_errors": True}
        compiled, recorder, _, snapshot = self._call(fullgraph=False, **suppress)
        snapshot.put_back()
        # What stops a whole graph need not stop a part: Dynamo may break before it (for a whole graph it keeps numbers
        # that are known only at run time, until the model branches on one), or trace the part otherwise.
        breaks = log.breaks() or [first.place] * first.is_break
        failures = log.failures() or ([] if breaks or recorder.eager else [first.place])
        return self._captured(recorder, self._under_context(compiled, **suppress), breaks, failures)

    def _captured(
        self,
        recorder: Recorder,
        call: Callable[..., Any],
        breaks: Sequence[GraphBreak] = (),
        failures: Sequence[GraphBreak] = (),
        notes: Sequence[str] = (),
    ) -> Captured:
        slots = recorder.slots
        recorder.stop(for_good=isinstance(call, FlatCaller))
        said = [*notes, *(f"capture failed, and this part runs in eager: {place}" for place in failures)]
        if not slots:
            said.append("no graph was captured: the model runs in eager")
        said += [f"a graph runs in eager, since {reason}" for reason in recorder.eager]
        eager = [*map(str, failures), *recorder.eager]
        return Captured([slot.graph for slot in slots], slots, list(breaks), call, said, eager, recorder)

    def _call(self, fullgraph: bool, **settings: Any) -> tuple[Callable[..., Any], Recorder, Any, Snapshot]:
        """The compiled model, what recorded its call, the result, and the state before.

        Code that was compiled too often before, by anyone in the process, Dynamo leaves alone from then on. Where it
        made nothing of the model it is told to forget what it knows of that code, and asked once more.
        """
        try:
            made = self._recorded(fullgraph, **settings)
            if made[1].slots or not (codes := _codes_of(self.model)):
                return made
            made[-1].put_back()
        except _Untouched:
            codes = _codes_of(self.model)
        for code in codes:
            reset_code(code)
        try:
            return self._recorded(fullgraph, **settings)
        except _Untouched as untouched:
            raise UserError(
                f"capture found nothing to compile: {untouched}", "Leave the model as it is, or see TORCH_LOGS=dynamo."
            ) from untouched

    def _recorded(self, fullgraph: bool, **settings: Any) -> tuple[Callable[..., Any], Recorder, Any, Snapshot]:
        leaves, containers = (self.signature.leaves, self.signature.containers) if self.signature else ([], [])
        if self.signature is None:
            leaves = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, torch.Tensor)]
        recorder = Recorder(self.config.sizes_kept, strict=fullgraph)
        # torch.compile marks the module with an attribute, which is no state of the model's: the snapshot comes after.
        compiled = torch.compile(self.model, backend=recorder, fullgraph=fullgraph, dynamic=False)
        snapshot = recorder.snapshot = Snapshot(self.model, leaves, containers)
        try:
            with (
                _settings(torch._dynamo.config, **_LIMITS, **settings),
                _settings(functorch, **_EAGERLY),
                self.context(),
            ):
                result = compiled(*self.args, **self.kwargs)
        except TorchDynamoException as error:
            snapshot.put_back()
            raise _stopped(error, recorder.refused) from error
        except Exception as error:
            snapshot.put_back()
            if isinstance(error, RuntimeError) and "found no compiled frames" in str(error):
                raise _Untouched(str(error).splitlines()[0]) from error
            place = break_of_model(error)
            raise in_class_of(
                self._error_of_eager(snapshot) or error,
                f"the model fails on these arguments, at {place}",
                "Check their values, shapes, dtypes and devices.",
            ) from error
        return compiled, recorder, result, snapshot

    def _error_of_eager(self, snapshot: Snapshot) -> Exception | None:
        """What the model itself raises on these arguments: operators that AOTAutograd took apart raise otherwise."""
        try:
            with torch.no_grad(), self.context():
                self.model(*self.args, **self.kwargs)
        except Exception as error:
            return error
        finally:
            snapshot.put_back()
        return None

    def _flat(self, recorder: Recorder, result: Any, snapshot: Snapshot) -> FlatCaller | str:
        """The flat caller of a recorded call, or why there is none."""
        if self.signature is None:
            return self.not_flat
        if len(recorder.calls) != 1:
            return f"the call runs {len(recorder.calls)} graphs"
        changed = snapshot.changed()
        if changed:
            return f"the call changes Python state ({', '.join(changed[:4])})"
        try:
            return make_flat_caller(self.model, self.signature, recorder.calls[0], recorder.slots, result)
        except NotFlat as reason:
            return str(reason)

    def _under_context(self, compiled: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        """`compiled` under the context it was captured in: Dynamo guards the autocast state."""
        context = self.context

        def call(*args: Any, **kwargs: Any) -> Any:
            with context(), _settings(torch._dynamo.config, **settings) if settings else contextlib.nullcontext():
                return compiled(*args, **kwargs)

        return call


def _settings(config: Any, **wanted: Any) -> AbstractContextManager[Any]:
    """Settings of a config module of torch, for this thread; names that this torch lacks are left out."""
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})
