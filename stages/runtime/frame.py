"""The memory of one call in flight, and the program's steps bound to it as a flat list of actions.

Comes in: a program with a plan, its built kernels and its constants. Goes out: something that runs the steps.

A buffer's memory is *static* (the arena, constants, and outputs where the caller wants that): kernels and arguments of
operators are bound to it once. Or it is a `Slot`, filled at each call: user inputs, weights, fresh outputs, results of
operators. An action takes nothing and returns nothing: allocate an output, launch a kernel, call an operator, free a
temporary. Nothing is looked up by name while they run.

Frames are not thread-safe: a call has a frame to itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import length_hint
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.ir.kernel import IRError
from stages.ir.memory import write
from stages.ir.program import BufferSpec, Extern, Launch, Program, TensorRef, tensor_refs
from stages.ir.schedule import Schedule
from stages.runtime.errors import step_error
from stages.runtime.inputs import called_inputs, geometry_of
from stages.runtime.slots import Bound, Slot
from stages.runtime.views import aligned, alignment_of, flat_ref, is_whole, view, viewer

Action = Callable[[], Any]
Hook = Callable[[int, Launch | Extern, tuple[Tensor | None, ...]], None]


class Bindable(Protocol):
    """A built kernel."""

    def bind(self, tensors: Sequence[Tensor]) -> Bound: ...


class Compiled(Protocol):
    """The built kernels of a program, by (kernel hash, schedule of the launch)."""

    @property
    def kernels(self) -> Mapping[tuple[str, Schedule | None], Bindable]: ...


class Frame:
    """One arena and the steps bound to it.

    static_outputs   outputs lie in memory of the frame, the same at every call
    copy_outputs     what `outputs` returns is the caller's own. The last kernels, if all they make is outputs, are not
                     run by `execute` but by `outputs`, into new memory; other outputs are copied out of the frame's
    """

    def __init__(
        self,
        program: Program,
        compiled: Compiled,
        constants: dict[str, Tensor],
        static_outputs: bool,
        copy_outputs: bool,
    ) -> None:
        self.program = program
        self._copy_outputs = copy_outputs
        self._tail = _tail(program) if copy_outputs else len(program.steps)
        self._fresh = {name for step in program.steps[self._tail :] for name in step.writes}
        self._alignment = alignment_of(program.device)
        self._positions = {name: position for position, name in enumerate(called_inputs(program))}
        touched = [name for step in program.steps for name in (*step.reads, *step.writes)]
        self._used = dict.fromkeys([*touched, *(ref.buffer for ref in tensor_refs(program.outputs))])
        self._epoch = -1
        self._copied_weights: list[tuple[Slot, int]] = []
        # Memory made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self.static = self._static_memory(constants, static_outputs)
            slots = [program.buffers[name] for name in self._used if name not in self.static]
            self._slots = {spec.name: self._slot(spec) for spec in slots if spec.over is None}
            self._slots |= {spec.name: self._slots[spec.over] for spec in slots if spec.over is not None}
            self._actions: list[Action] = []
            self._bounds: list[tuple[int, int, int]] = []  # of each step: begin, end, end with what it frees
            self._checked: list[tuple[int, Bound]] = []  # steps whose kernels check an index
            self._bind_steps(compiled)
            self._returns = [self._return(output) for output in program.outputs]
        kinds = {entry.name: entry.kind for entry in program.inputs}
        passed = [(self._slots[name], place) for name, place in self._positions.items() if name in self._slots]
        self._users = [(slot, place) for slot, place in passed if kinds[slot.spec.name] == "user"]
        self._weights = [(slot, place) for slot, place in passed if kinds[slot.spec.name] == "weight"]

    # ---- a call -----------------------------------------------------------------------------

    def load(self, inputs: Sequence[Tensor], epoch: int) -> None:
        """Bind the steps to the tensors of a call; weights only where `epoch` (of `Weights.observe`) is another."""
        for slot, place in self._users:
            slot.put(aligned(inputs[place], self._alignment))
        if epoch != self._epoch:
            with torch.inference_mode(False), torch.no_grad():
                for slot, place in self._weights:
                    # A tensor of our own keeps the memory alive where the owner gives the weight another.
                    slot.put(aligned(inputs[place], self._alignment).detach())
            self._copied_weights = [
                (slot, place) for slot, place in self._weights if slot.now.data_ptr() != inputs[place].data_ptr()
            ]
            self._epoch = epoch
        else:
            self.copy_weights(inputs)

    @property
    def copies_weights(self) -> bool:
        """Whether some weights cannot be read where they are, so that each call copies them."""
        return bool(self._copied_weights)

    def copy_weights(self, inputs: Sequence[Tensor]) -> None:
        """Copy anew the weights that kernels cannot read where they are (see `views.aligned`)."""
        for slot, place in self._copied_weights:
            write(slot.now, inputs[place])

    def execute(self) -> None:
        """Run all steps, or all but those that `outputs` runs. Raises `StepError` naming the one that failed."""
        self._run(0, self._body)

    def check_indices(self) -> None:
        """Raise `StepError` where a kernel of a run before met an index out of range, if that is known by now.

        Kernels ask by themselves when they are called; a CUDA graph launches them without.
        """
        for number, bound in self._checked:
            try:
                bound.check_index()
            except IndexError as error:
                raise step_error(self.program, number, error) from error

    def step(self, number: int, hook: Hook | None) -> None:
        """Run step `number`, and `hook` on what it gave before that is freed."""
        begin, end, freed = self._bounds[number]
        self._run(begin, end)
        if hook is not None:
            hook(number, self.program.steps[number], self._given(number))
        self._run(end, freed)

    def outputs(self, inputs: Sequence[Tensor]) -> list[Any]:
        """What the call returns, after all steps; views of inputs are of the caller's own `inputs`."""
        if not self._fresh:
            return [give(inputs) for give in self._returns]
        self._run(self._body, len(self._actions))
        given = [give(inputs) for give in self._returns]
        for name in self._fresh:
            self._slots[name].clear()
        return given

    def release(self, keep_results: bool = False) -> None:
        """Let go of the caller's memory, and of results unless a CUDA graph will write them again.

        Weights stay bound: their owner keeps them anyway.
        """
        for slot in self._slots.values():
            if slot.spec.role == "user" or (slot.spec.role != "weight" and not keep_results):
                slot.clear()

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """What the frame keeps between calls: the arena, and outputs that stay in place."""
        outputs = (base for name, base in self.static.items() if self.program.buffers[name].role == "output")
        return (self._arena, *outputs)

    def _run(self, begin: int, end: int) -> None:
        whole = begin == 0 and end == len(self._actions)
        rest = iter(self._actions if whole else self._actions[begin:end])
        try:
            for action in rest:
                action()
        except Exception as error:
            position = end - length_hint(rest) - 1
            number = next(number for number, bound in enumerate(self._bounds) if position < bound[2])
            raise step_error(self.program, number, error) from error

    def _given(self, number: int) -> tuple[Tensor | None, ...]:
        step = self.program.steps[number]
        if isinstance(step, Launch):
            return tuple(self._now(flat_ref(self.program.buffers[name])) for name in step.writes)
        return tuple(None if ref is None else self._now(ref) for ref in step.outputs)

    def _now(self, ref: TensorRef) -> Tensor:
        static = self.static.get(ref.buffer)
        return view(self._slots[ref.buffer].now if static is None else static, ref)

    # ---- memory -----------------------------------------------------------------------------

    def _static_memory(self, constants: dict[str, Tensor], static_outputs: bool) -> dict[str, Tensor]:
        """A base for each buffer that stays where it is."""
        plan = self.program.plan
        self._arena = torch.empty(plan.size if plan else 0, dtype=torch.uint8, device=self.program.device)
        bases = {name: constants[name] for name, spec in self.program.buffers.items() if spec.role == "constant"}
        for name in self._used:
            spec = self.program.buffers[name]
            if spec.role == "arena":
                if spec.offset is None:
                    raise IRError(f"program: arena buffer '{name}' has no offset; the buffers stage gives it one")
                bases[name] = self._arena[spec.offset : spec.offset + spec.nbytes].view(spec.dtype)
            elif spec.role == "output" and static_outputs and name not in self._fresh:
                bases[name] = self._allocate(spec)
        return bases

    def _output_layout(self, spec: BufferSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides to allocate an output with: those it is returned with if that is all of it."""
        refs = {ref for ref in tensor_refs(self.program.outputs) if ref.buffer == spec.name}
        if len(refs) == 1:
            (ref,) = refs
            reach = 1 + sum((size - 1) * stride for size, stride in zip(ref.shape, ref.strides, strict=True))
            if is_whole(ref, ref.shape, ref.strides) and (0 if 0 in ref.shape else reach) == spec.size:
                return ref.shape, ref.strides
        return (spec.size,), (1,)

    def _allocate(self, spec: BufferSpec) -> Tensor:
        shape, strides = self._output_layout(spec)
        return torch.empty_strided(shape, strides, dtype=spec.dtype, device=self.program.device)

    def _slot(self, spec: BufferSpec) -> Slot:
        if spec.role in ("user", "weight"):
            geometry = geometry_of(self.program, spec.name)
            return Slot(spec, geometry.shape, geometry.strides, self._alignment)
        if spec.role == "output":
            return Slot(spec, *self._output_layout(spec), self._alignment)
        makers = [step for step in self.program.externs if not step.out and spec.name in step.writes]
        if not makers:
            raise IRError(f"program: '{spec.name}' has role 'extern', and no operator makes it")
        made = next(ref for ref in makers[0].outputs if ref is not None and ref.buffer == spec.name)
        return Slot(spec, made.shape, made.strides, self._alignment)

    # ---- binding ----------------------------------------------------------------------------

    def _bind_steps(self, compiled: Compiled) -> None:
        """Fill the list of actions."""
        steps = self.program.steps
        first = {name: n for n, step in reversed(list(enumerate(steps))) for name in (*step.reads, *step.writes)}
        last = {name: n for n, step in enumerate(steps) for name in (*step.reads, *step.writes)}
        # What the program returns is alive after the last step.
        last |= {ref.buffer: len(steps) for ref in tensor_refs(self.program.outputs)}
        fresh = [(first[name], s) for name, s in self._slots.items() if s.spec.role == "output" and name in first]
        ends: dict[Slot, int] = {}  # of results of operators: the last step that uses the memory
        for name, slot in self._slots.items():
            if slot.spec.role == "extern":
                ends[slot] = max(ends.get(slot, -1), last.get(name, -1))
        freed = [(end, slot) for slot, end in ends.items() if end < self._tail]
        for number, step in enumerate(steps):
            begin = len(self._actions)
            self._actions += [self._allocation(slot) for at, slot in fresh if at == number]
            if isinstance(step, Launch):
                bound = self._launch(step, compiled)
                self._checked += [(number, bound)] if step.kernel.checks_index else []
                self._actions.append(bound)
            else:
                self._actions.append(self._extern(step))
            end = len(self._actions)
            self._actions += [slot.clear for at, slot in freed if at == number]
            self._bounds.append((begin, end, len(self._actions)))
        self._body = self._bounds[self._tail][0] if self._tail < len(steps) else len(self._actions)

    def _allocation(self, slot: Slot) -> Action:
        make = partial(torch.empty_strided, slot.shape, slot.strides, dtype=slot.spec.dtype, device=self.program.device)
        return lambda: slot.put(make())

    def _launch(self, step: Launch, compiled: Compiled) -> Bound:
        kernel = compiled.kernels.get((step.kernel.hash, step.schedule))
        if kernel is None:
            raise IRError(f"kernel '{step.kernel.name}' ({step.kernel.hash}) with {step.schedule} was not compiled")
        bound = kernel.bind([self._memory_to_bind(name) for name in step.buffers])
        for position, name in enumerate(step.buffers):
            if name in self._slots:
                self._slots[name].add_launch(bound, position)
        return bound

    def _memory_to_bind(self, name: str) -> Tensor:
        """The memory of buffer `name`; for a slot some of its size, which the first `put` replaces."""
        if name in self.static:
            return self.static[name]
        spec = self.program.buffers[name]
        return torch.empty(spec.size, dtype=spec.dtype, device=self.program.device)

    def _extern(self, step: Extern) -> Action:
        args: list[Any] = [None] * len(step.args)
        kwargs: dict[str, Any] = {}
        for place, value in enumerate(step.args):
            self._fill(args, place, value)
        for name, value in step.kwargs.items():
            self._fill(kwargs, name, value)
        if step.out:
            for name, ref in zip(_out_names(step), step.outputs, strict=True):
                if ref is None:
                    raise IRError(f"extern {step.target}: the out-variant needs a buffer for '{name}'")
                self._fill(kwargs, name, ref)
        refs = step.refs if not step.out else (*step.refs, *(ref for ref in step.outputs if ref))
        static = all(ref.buffer in self.static for ref in refs)
        target = step.target
        call = partial(target, *args, **kwargs) if static else lambda: target(*args, **kwargs)
        return call if step.out else self._delivery(step, call)

    def _fill(self, container: Any, key: Any, value: Any) -> None:
        """Make `container[key]` be `value` with its `TensorRef`s as tensors, now or at each call."""
        if isinstance(value, TensorRef):
            if value.buffer in self.static:
                container[key] = view(self.static[value.buffer], value)
            else:
                self._slots[value.buffer].add_view(container, key, value)
        elif isinstance(value, (list, tuple)) and next(tensor_refs(value), None) is not None:
            container[key] = [None] * len(value)
            for place, item in enumerate(value):
                self._fill(container[key], place, item)
        elif isinstance(value, dict):
            container[key] = {}
            for name, item in value.items():
                self._fill(container[key], name, item)
        else:
            container[key] = value

    def _delivery(self, step: Extern, call: Action) -> Action:
        """`call`, with what it returns brought to the step's outputs."""
        sinks = [None if ref is None else self._sink(ref) for ref in step.outputs]
        if len(sinks) == 1 and sinks[0] is not None:
            only = sinks[0]

            def deliver_one() -> None:
                result = call()
                only(result if isinstance(result, Tensor) else _flatten(result)[0])

            return deliver_one

        def deliver() -> None:
            for sink, result in zip(sinks, _flatten(call()), strict=True):
                if sink is not None:
                    sink(result)

        return deliver

    def _sink(self, ref: TensorRef) -> Callable[[Tensor], Any]:
        """What takes a result: a buffer of role "extern" as it is, others a copy."""
        slot = self._slots.get(ref.buffer)
        if slot is not None and slot.spec.role == "extern":
            if not (ref.opaque or is_whole(ref, slot.shape, slot.strides)):
                raise IRError(f"program: '{ref.buffer}' takes an operator's result as it is, which is not all of it")
            return slot.take
        holder: list[Any] = [None]
        self._fill(holder, 0, ref)
        return lambda result: write(holder[0], result)

    # ---- outputs ----------------------------------------------------------------------------

    def _return(self, output: Any) -> Callable[[Sequence[Tensor]], Any]:
        """What makes one output, given the inputs of the call."""
        if not isinstance(output, TensorRef):
            return lambda inputs: output
        spec = self.program.buffers[output.buffer]
        if spec.role in ("user", "weight"):
            place = self._positions[spec.name]
            geometry = geometry_of(self.program, spec.name)
            of_input = viewer(output, geometry.shape, geometry.strides) or _itself
            return lambda inputs: of_input(inputs[place])
        written = {name for step in self.program.steps for name in step.writes}
        if spec.role == "output" and spec.name not in written:  # empty: no step had anything to write
            return lambda inputs: view(self._allocate(spec), output)
        base = self.static.get(spec.name)
        if base is None:
            slot = self._slots[spec.name]
            if self._copy_outputs and spec.name not in self._fresh:
                return lambda inputs: _copy(view(slot.now, flat_ref(spec)), output)
            of_slot = viewer(output, slot.shape, slot.strides) or _itself
            return lambda inputs: of_slot(slot.now)
        if spec.role == "output" and not self._copy_outputs:
            fixed = view(base, output)
            return lambda inputs: fixed
        if is_whole(output, base.shape, base.stride()) and base.clone().stride() == base.stride():
            return lambda inputs: base.clone()
        flat = view(base, flat_ref(spec))
        return lambda inputs: _copy(flat, output)


def _tail(program: Program) -> int:
    """From which step on all are kernels that make whole outputs, which no other step reads or writes; never the first.

    An operator keeps tensors as arguments, which a frame lets go of after a capture; a kernel keeps addresses.
    """
    touched = Counter(name for step in program.steps for name in {*step.reads, *step.writes})
    for number in range(len(program.steps) - 1, -1, -1):
        step = program.steps[number]
        made = [program.buffers[name].role == "output" and touched[name] == 1 for name in step.writes]
        if number == 0 or not isinstance(step, Launch) or not all(made):
            return number + 1
    return 0


def _itself(base: Tensor) -> Tensor:
    return base


def _copy(flat: Tensor, ref: TensorRef) -> Tensor:
    """`ref` of a copy of the buffer, which may have holes and overlaps."""
    return view(flat.clone(), ref)


def _flatten(result: Any) -> list[Any]:
    """The tensors (or None) that an operator returned, in order, out of its tuples and lists."""
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in _flatten(item)]
    return [result]


def _out_names(step: Extern) -> list[str]:
    """The names of the arguments that receive the results of an out-variant."""
    schema = getattr(step.target, "_schema", None)
    return ["out"] if schema is None else [argument.name for argument in schema.arguments if argument.is_out]
