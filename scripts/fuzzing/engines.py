"""A batch of cases becomes callables. The kernels of all cases are built in one go, since a C++ compiler takes longer
over its first kernel than over the next fifty.

Comes in: cases and an `Engine`. Goes out: for each case a `Candidate`: something to call, or the error of compiling it.

    aot           AOTAutograd traces the program, then every stage as in `torch.compile`: printed, built, run
    interpreted   the same, but kernels run in the IR's interpreter: no printer, no compiler
    dynamo        `torch.compile(program, backend="torchweld")`, one case at a time
    triton        as `aot`, with kernels printed for Triton and run by Triton's interpreter (TRITON_INTERPRET=1)
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pipeline.backend import torchweld
from pipeline.compile import Session
from pipeline.configure import session_of
from scripts.fuzzing.case import Case, Setting
from scripts.fuzzing.graph import as_from_dynamo
from stages import buffers, codegen, fusion, precision, rewrite, runtime
from stages.capture.aot import LeftToEager, compile_aot, static_tracing
from stages.codegen.config import CodegenConfig
from stages.ir.graph import Graph
from stages.ir.interpret import interpret_flat
from stages.ir.kernel import Kernel
from stages.ir.kernel import verify as verify_kernel
from stages.ir.program import Launch, Program
from stages.ir.program import verify as verify_program
from stages.ir.schedule import Schedule, default_schedule

Call = Callable[..., Any]
ENGINES = ("aot", "interpreted", "dynamo", "triton")


@dataclass(frozen=True)
class Candidate:
    """`call(*inputs)` returns the tuple of outputs; None where `error` says why compiling failed."""

    call: Call | None
    error: Exception | None = None


@dataclass
class _Traced:
    """A case on its way: its planned programs, each with the callable that AOTAutograd was given for it."""

    call: Call
    programs: list[tuple[Program, _Late]]
    session: Session


class _Late:
    """What AOTAutograd is given in place of a compiled graph, until that is built."""

    _boxed_call = True

    def __init__(self) -> None:
        self.target: Call | None = None

    def __call__(self, arguments: list[Any]) -> Any:
        assert self.target is not None
        return self.target(arguments)


@lru_cache(maxsize=64)
def _session(*overrides: str) -> Session:
    return session_of(overrides)


@lru_cache(maxsize=256)
def session_for(setting: Setting, device: str) -> Session:
    """The session of a setting, put together of few: composing a config takes longer than compiling a case."""
    common = (f"device={device}", "runtime=steps")
    emulate = f"fusion.emulate_precision_casts={str(setting.emulate_precision_casts).lower()}"
    parts = {
        "fusion": _session(*common, f"fusion={setting.fusion}", emulate).config.fusion,
        "buffers": _session(*common, f"buffers={setting.buffers}").config.buffers,
        "rewrite": _session(*common, f"rewrite={setting.rewrite}").config.rewrite,
    }
    return Session(replace(_session(*common).config, **parts))


def compile_cases(cases: Sequence[Case], engine: str, device: str = "cpu") -> list[Candidate]:
    """A candidate for each of `cases`. An error of one does not touch the others."""
    if engine == "dynamo":
        return [Candidate(_through_dynamo(case, device)) for case in cases]
    traced = [_attempt(lambda case=case: _trace(case, device)) for case in cases]  # type: ignore[misc]
    whole = [found for found in traced if isinstance(found, _Traced)]
    try:
        _build(whole, engine, device)
    except Exception:
        # One kernel that cannot be built fails the whole translation unit: find out whose it is.
        for position, found in enumerate(traced):
            if isinstance(found, _Traced):
                built = _attempt(lambda found=found: _build([found], engine, device))  # type: ignore[misc]
                traced[position] = built if isinstance(built, Exception) else found
    return [Candidate(found.call) if isinstance(found, _Traced) else Candidate(None, found) for found in traced]


def _attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the exception that it raised."""
    try:
        return work()
    except Exception as error:
        return error


def _through_dynamo(case: Case, device: str) -> Call:
    torch._dynamo.reset()
    options = {**case.setting.options, "runtime": "steps"}
    compiled: Call = torch.compile(case.function(), backend=torchweld, dynamic=False, options=options)
    return compiled


def _trace(case: Case, device: str) -> _Traced:
    session = session_for(replace(case.setting, schedule=None, threads=1), device)
    programs: list[tuple[Program, _Late]] = []

    def plan(graph: Graph) -> Call:
        late = _Late()
        programs.append((_planned(graph, session, case.setting.schedule if device == "cpu" else None), late))
        return late

    with torch.no_grad(), static_tracing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Dynamo returns no value twice from its graph.
        returned = tuple(dict.fromkeys(case.outputs))
        module = as_from_dynamo(replace(case, outputs=returned), device)
        try:
            call = compile_aot(module, case.tensors(device), plan).call
        except LeftToEager:
            call, programs = module.forward, []
    places = [returned.index(number) for number in case.outputs]

    def run(*inputs: Any) -> tuple[Any, ...]:
        results = call(*inputs)
        return tuple(results[place] for place in places)

    return _Traced(run, programs, session)


def _planned(graph: Graph, session: Session, schedule: Schedule | None) -> Program:
    """`graph` through the stages up to codegen."""
    config = session.config
    graph = rewrite.run(precision.run(graph, config.precision), config.rewrite)
    program: Program = buffers.run(fusion.run(graph, config.fusion), config.buffers)
    verify_program(program)
    for launch in program.launches:
        verify_kernel(launch.kernel)
    if schedule is None:
        return program
    steps = (replace(step, schedule=schedule) if isinstance(step, Launch) else step for step in program.steps)
    return replace(program, steps=tuple(steps))


# ---- kernels ------------------------------------------------------------------------------


def _build(traced: Sequence[_Traced], engine: str, device: str) -> None:
    """Build the kernels of all programs together, and give each program its executable."""
    programs = [entry for found in traced for entry in found.programs]
    work: dict[tuple[str, Schedule | None], tuple[Kernel, Schedule]] = {}
    place = torch.device(device)
    for program, _ in programs:
        for launch in program.launches:
            schedule = launch.schedule or codegen.default_schedule(launch.kernel, place)
            work.setdefault((launch.kernel.hash, launch.schedule), (launch.kernel, schedule))
    built = dict(zip(work, _BUILDERS[engine](list(work.values()), place), strict=True))
    for program, late in programs:
        compiled = codegen.Compiled(built, {}, 0.0, False)
        late.target = runtime.run(program, compiled, traced[0].session.config.runtime)


def _printed(work: Sequence[tuple[Kernel, Schedule]], device: torch.device) -> Sequence[Any]:
    # Loaded libraries stay valid when their files are gone.
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return codegen.compile_kernels(work, device, CodegenConfig(cache_dir=folder, debug=False))


def _interpreted(work: Sequence[tuple[Kernel, Schedule]], device: torch.device) -> Sequence[Any]:
    return [_InterpretedKernel(kernel) for kernel, _ in work]


def _triton(work: Sequence[tuple[Kernel, Schedule]], device: torch.device) -> Sequence[Any]:
    from stages.codegen import triton

    # A schedule drawn for the C++ printer says nothing to Triton, whose tiles are powers of two.
    fitted = [(kernel, default_schedule(kernel.rows, kernel.row_size, "cuda")) for kernel, _ in work]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return triton.compile_kernels(fitted, device, CodegenConfig(cache_dir=folder))


_BUILDERS: dict[str, Callable[[Sequence[tuple[Kernel, Schedule]], torch.device], Sequence[Any]]] = {
    "aot": _printed,
    "interpreted": _interpreted,
    "triton": _triton,
}


@dataclass(frozen=True)
class _InterpretedKernel:
    kernel: Kernel

    def bind(self, tensors: Sequence[Tensor]) -> _InterpretedBound:
        return _InterpretedBound(self.kernel, list(tensors))


class _InterpretedBound:
    def __init__(self, kernel: Kernel, tensors: list[Tensor]) -> None:
        self._kernel = kernel
        self._memory = [self._flat(position, tensor) for position, tensor in enumerate(tensors)]

    def _flat(self, position: int, tensor: Tensor) -> Tensor:
        return tensor.as_strided((self._kernel.buffers[position].size,), (1,))

    def __call__(self) -> None:
        interpret_flat(self._kernel, self._memory)

    def check_index(self) -> None:
        """Nothing is left to say: a launch raises its own error."""

    def rebind(self, position: int, tensor: Tensor) -> None:
        self._memory[position] = self._flat(position, tensor)
