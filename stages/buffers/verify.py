"""Whether a program's arena is sound: a check of the result that knows nothing of how it was planned.

Comes in: a program with offsets. It is replayed step by step against the bytes of the arena: each buffer occupies its
bytes from the step that first touches it to the one that last does, and nobody else may hold them then.
"""

from __future__ import annotations

from stages.ir.kernel import IRError, in_place
from stages.ir.program import BufferSpec, Launch, Program, Step, tensor_refs


def verify(program: Program, alignment: int) -> None:
    """Raise `IRError` unless every arena buffer that is used lies inside the arena, aligned, apart from all others
    alive with it; an output may lie exactly over an input in the one step where their lives meet, if the kernel
    allows that and neither is passed to it twice. The same holds of buffers over an operator's result."""
    ending: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        ending.update(dict.fromkeys((*step.reads, *step.writes), number))
    ending.update({ref.buffer: len(program.steps) for ref in tensor_refs(program.outputs)})
    alive: dict[str, BufferSpec] = {}
    for number, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            spec = program.buffers[name]
            if spec.role != "arena" or name in alive:
                continue
            _inside(program, spec, alignment)
            for other in alive.values():
                if _overlap(spec, other) and not _allowed(step, number, ending, spec, other):
                    raise IRError(
                        f"arena: step {number} ({step.label}): '{spec.name}' at {spec.offset} and '{other.name}' at "
                        f"{other.offset} are both alive and share memory"
                    )
            alive[name] = spec
        for name in [name for name in alive if ending[name] == number]:
            del alive[name]
    _verify_over(program, ending)


def _verify_over(program: Program, ending: dict[str, int]) -> None:
    """Raise `IRError` unless each buffer over an operator's result begins in the step that reads it last."""
    steps = list(enumerate(program.steps))
    beginning = {name: number for number, step in reversed(steps) for name in (*step.reads, *step.writes)}
    for spec in program.buffers.values():
        if spec.over is None or spec.name not in beginning:
            continue
        begin = beginning[spec.name]
        there = [other for other in program.buffers.values() if spec.over in (other.name, other.over)]
        before = [other for other in there if beginning.get(other.name, begin) < begin]
        late = [other for other in before if ending[other.name] > begin]
        reads = [other for other in before if ending[other.name] == begin]
        if late or len(reads) != 1 or not _allowed(program.steps[begin], begin, ending, spec, reads[0]):
            raise IRError(f"step {begin}: '{spec.name}' takes the memory of '{spec.over}', which is still read")


def _inside(program: Program, spec: BufferSpec, alignment: int) -> None:
    if spec.offset is None or spec.offset < 0 or spec.offset % alignment:
        raise IRError(f"arena: '{spec.name}' is at {spec.offset}, not at a multiple of {alignment}")
    if program.plan is None or spec.offset + spec.nbytes > program.plan.size:
        raise IRError(f"arena: '{spec.name}' at {spec.offset} with {spec.nbytes} bytes reaches beyond the arena's end")


def _overlap(one: BufferSpec, other: BufferSpec) -> bool:
    assert one.offset is not None and other.offset is not None
    if not (one.nbytes and other.nbytes):
        return False
    return one.offset < other.offset + other.nbytes and other.offset < one.offset + one.nbytes


def _allowed(step: Step, number: int, ending: dict[str, int], target: BufferSpec, source: BufferSpec) -> bool:
    """Whether `target`, whose life begins with this step, may lie over `source`."""
    if not isinstance(step, Launch) or ending[source.name] != number or target.offset != source.offset:
        return False
    names = [name for name in step.buffers if name in (source.name, target.name)]
    if sorted(names) != sorted((source.name, target.name)):
        return False
    positions = dict(zip(step.kernel.buffers, step.buffers, strict=True))
    return any(
        positions[formal_source] == source.name and positions[formal_target] == target.name
        for formal_source, formal_target in in_place(step.kernel)
    )
