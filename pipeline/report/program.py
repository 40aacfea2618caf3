"""From a compiled `Program` to its `ProgramRecord`: what each step is, where it is from, what it moves and computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import PurePath
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from pipeline.report.record import DecisionRecord, PlanRecord, ProgramRecord, StepRecord
from stages.ir.expr import Cast, Op, Select, walk
from stages.ir.graph import Origin
from stages.ir.kernel import Kernel, traffic
from stages.ir.program import Extern, Launch, Program, Step, TensorRef


def record_program(program: Program, name: str, step_ms: Sequence[float | None] = (), svg: str = "") -> ProgramRecord:
    """`program` for the report.

    step_ms   milliseconds of each step by itself, in order; empty where they were not measured
    svg       the picture of the memory plan
    """
    times = list(step_ms) or [None] * len(program.steps)
    steps = tuple(
        _step(program, index, step, time) for index, (step, time) in enumerate(zip(program.steps, times, strict=True))
    )
    plan = program.plan
    return ProgramRecord(
        name=name,
        steps=steps,
        decisions=tuple(
            DecisionRecord(d.producer, d.consumer, d.fused, d.rule, d.reason, _place(d.origin), d.bytes_saved)
            for d in program.decisions
        ),
        plan=PlanRecord(plan.size, plan.lower_bound, plan.unshared, plan.strategy, svg) if plan is not None else None,
        traffic_bytes=sum(step.bytes_moved for step in steps),
        traffic_unfused_bytes=program.traffic_unfused,
        notes=program.notes,
    )


def _step(program: Program, index: int, step: Step, median_ms: float | None) -> StepRecord:
    origin = step.origins[0] if step.origins else Origin()
    if isinstance(step, Launch):
        operations = sum(isinstance(node, (Op, Cast, Select)) for node in step.kernel.nodes)
        reason = f"{operations} operations in one pass"
        kind, label, kernel = "launch", step.label or step.kernel.name, step.kernel.hash
        moved, flop = sum(traffic(step.kernel)), kernel_flop(step.kernel)
    else:
        kind, label, kernel, reason = "extern", step.label or str(step.target), "", step.reason
        moved, flop = extern_bytes(program, step), extern_flop(step)
    return StepRecord(
        index=index,
        kind=kind,
        label=label,
        origin=_place(origin),
        code=origin.code,
        module=origin.module,
        reason=reason,
        kernel=kernel,
        bytes_moved=moved,
        flop=flop,
        dtype=_dtype(program, step),
        median_ms=median_ms,
    )


def _place(origin: Origin) -> str:
    """`file:line` with the last two parts of the path: enough to find it, short enough to read."""
    return f"{'/'.join(PurePath(origin.file).parts[-2:])}:{origin.line}" if origin.file else ""


def _dtype(program: Program, step: Step) -> str:
    """The narrowest float that the step reads, which is what a product of it would run in; else that of its result."""
    types = [program.buffers[name].dtype for name in (*step.reads, *step.writes)]
    floats = [dtype for dtype in types if dtype.is_floating_point]
    chosen = min(floats, key=lambda dtype: dtype.itemsize) if floats else types[-1]
    return str(chosen).removeprefix("torch.")


def kernel_flop(kernel: Kernel) -> int:
    """Floating-point operations of one launch: each operator once for every position at which it is evaluated."""
    inner = set(kernel.inner)
    along_row: set[int] = {id(node) for reduction in kernel.reduces for node in walk(reduction)}
    along_row |= {id(node) for store in kernel.stores if store.inner for node in walk(store.value)}
    total = sum(kernel.rows * kernel.row_size for reduction in kernel.reduces if reduction.dtype.is_float)
    for node in kernel.nodes:
        if isinstance(node, Op) and node.dtype.is_float:
            total += kernel.rows * (kernel.row_size if inner and id(node) in along_row else 1)
    return total


def extern_bytes(program: Program, step: Extern) -> int:
    """Bytes that the step's tensors hold, each view once: what it reads and writes at the least."""
    outputs = [ref for ref in step.outputs if ref is not None]
    views = dict.fromkeys((*step.refs, *outputs))
    return sum(_elements(ref) * (ref.dtype or program.buffers[ref.buffer].dtype).itemsize for ref in views)


def _elements(ref: TensorRef) -> int:
    """Elements that a view reaches; a dimension of stride 0 repeats one. A packed weight has no strides: all of it."""
    if ref.opaque:
        return prod(ref.shape)
    return prod(size for size, stride in zip(ref.shape, ref.strides, strict=True) if stride != 0 or size == 0)


def extern_flop(step: Extern) -> int:
    """Operations by the formulas of `torch.utils.flop_counter` and `_PRODUCTS`; 0 for an operator that has none."""
    args, kwargs = (_on_meta(value) for value in (step.args, step.kwargs))
    outputs = [ref for ref in step.outputs if ref is not None]
    if not outputs:
        return 0
    out = _on_meta(outputs[0])
    schema = getattr(step.target, "_schema", None)
    formula = flop_registry.get(getattr(step.target, "overloadpacket", step.target))
    try:
        if schema is not None and schema.name in _PRODUCTS:
            return _PRODUCTS[schema.name](args, out)
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AssertionError, AttributeError, IndexError):
        return 0  # a form of the operator that the formula does not know; the report says "not counted"


def _on_meta(value: Any) -> Any:
    """`value` with every `TensorRef` as a tensor of its shape without memory, as the formulas want it."""
    if isinstance(value, TensorRef):
        return torch.empty(value.shape, device="meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_on_meta(item) for item in value)
    if isinstance(value, dict):
        return {key: _on_meta(item) for key, item in value.items()}
    return value


def _linear_flop(args: Any, out: torch.Tensor) -> int:
    return 2 * out.numel() * int(args[0].shape[-1])


def _convolution_flop(args: Any, out: torch.Tensor) -> int:
    """The weight is [out channels, in channels / groups, *kernel]."""
    return 2 * out.numel() * prod(args[1].shape[1:])


def _attention_flop(args: Any, out: torch.Tensor) -> int:
    """Two products over [batch, heads, queries, keys]: with the keys, and with the values."""
    query, key, value = (argument.shape for argument in args[:3])
    return 2 * prod(query[:-1]) * int(key[-2]) * (int(query[-1]) + int(value[-1]))


# Products that torch's flop counter has no formula for.
_PRODUCTS: dict[str, Callable[[Any, torch.Tensor], int]] = {
    "aten::linear": _linear_flop,
    "mkl::_mkl_linear": _linear_flop,
    "mkldnn::_linear_pointwise": _linear_flop,
    "mkldnn::_convolution_pointwise": _convolution_flop,
    "aten::mkldnn_convolution": _convolution_flop,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention_flop,
}
