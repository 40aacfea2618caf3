"""Operations that torch runs. Comes in: a unit, and where its arguments and results lie. Goes out: an `Extern` step.

An operator whose out-variant writes straight into the tensor it is given (a table, below) writes into the arena; every
other one returns memory of its own. Out-variants that torch generates from the functional operator are not in the
table: they allocate and copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stages.fusion.lowering.storage import tensor_of
from stages.fusion.memory import lies_on
from stages.fusion.units import Unit
from stages.ir.errors import UserError
from stages.ir.graph import Origin, origin_of, values_of
from stages.ir.memory import overlaps
from stages.ir.program import Extern, TensorRef

# Operator -> overload of its out-variant, for operators with a kernel of their own for it on the CPU and on CUDA.
_PLAIN_OUT = (
    "mm addmm bmm baddbmm addmv addbmm addr _addmm_activation _int_mm cat index_select gather take cumsum cumprod "
    "tril triu max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d adaptive_max_pool2d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d reflection_pad1d reflection_pad2d replication_pad2d "
    "linalg_vector_norm _softmax _log_softmax scatter_add index_add index_copy im2col col2im renorm"
)
_OUT_NAMES = {
    **dict.fromkeys(_PLAIN_OUT.split(), "out"),
    "topk": "values",
    "sort.stable": "values_stable",
    "kthvalue": "values",
    "median.dim": "dim_values",
    "index.Tensor": "Tensor_out",
    "scatter.src": "src_out",
    "scatter.value": "value_out",
    "scatter_reduce.two": "two_out",
    "searchsorted.Tensor": "Tensor_out",
    "bucketize.Tensor": "Tensor_out",
}


def _out_variants() -> dict[Callable[..., Any], OpOverload]:
    found: dict[Callable[..., Any], OpOverload] = {}
    for name, out in _OUT_NAMES.items():
        packet, _, overload = name.partition(".")
        entry = getattr(torch.ops.aten, packet)
        found[getattr(entry, overload or "default")] = getattr(entry, out)
    return found


OUT_VARIANTS = _out_variants()


def out_variant(node: fx.Node, device: torch.device) -> OpOverload | None:
    """The out-variant to call for `node`; None if it has none, or its results do not lie plainly on `device`."""
    results = values_of(node)
    plain = all(
        isinstance(result, torch.Tensor)
        and lies_on(result, device)
        and result.numel() > 0
        and not overlaps(tuple(result.shape), result.stride())
        for result in results
    )
    return OUT_VARIANTS.get(node.target) if plain and callable(node.target) else None


def shares_storage(node: fx.Node) -> bool:
    """Whether a result of `node` lies in the memory of an argument (as another type): it is then copied."""
    inputs = [tensor for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None]
    given = {tensor.untyped_storage()._cdata for tensor in inputs}
    results = (value for value in values_of(node) if isinstance(value, torch.Tensor))
    return any(result.untyped_storage()._cdata in given for result in results)


def result_nodes(node: fx.Node) -> dict[int, fx.Node]:
    """The node that stands for each returned tensor that somebody uses, by its position in what `node` returns."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return {0: node}
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}  # type: ignore[arg-type]


def extern_of(
    unit: Unit,
    place: Callable[[fx.Node], TensorRef],
    results: tuple[TensorRef | None, ...],
    out: OpOverload | None,
    origins: tuple[Origin, ...],
) -> Extern:
    """The step that runs `unit`.

    place     where the tensor of a node lies
    results   where each returned value is to lie; None for one that is no tensor or that nobody uses
    out       the out-variant to call, or None for the operator itself
    """
    node = unit.node
    args = _arguments(node, node.args, place)
    kwargs = _arguments(node, node.kwargs, place)
    target = node.target if out is None else out
    if not callable(target):
        raise TypeError(f"{node.name} calls {target!r}")
    return Extern(target, args, kwargs, results, out is not None, origins, unit.label, unit.reason)


def _arguments(node: fx.Node, arguments: Any, place: Callable[[fx.Node], TensorRef]) -> Any:
    """`arguments` with each node replaced by where its tensor lies, by its number, or by the attribute it names."""

    def convert(source: fx.Node) -> Any:
        tensor = tensor_of(source)
        if source.op == "get_attr":
            return tensor if tensor is not None else _attribute(source)
        if tensor is None:
            return source.meta.get("val")
        if tensor.is_conj() or tensor.is_neg():
            raise UserError(
                f"{origin_of(node)}: {node.target} reads a conjugate view, which no step of a program can hold",
                "Make it a tensor of its own in the model: x.conj().resolve_conj(), or torch.conj_physical(x).",
            )
        return place(source)

    return fx.node.map_arg(_plain(arguments), convert)


def _plain(arguments: Any) -> Any:
    """FX's immutable containers as plain ones."""
    if isinstance(arguments, tuple):
        return tuple(map(_plain, arguments))
    if isinstance(arguments, list):
        return list(map(_plain, arguments))
    if isinstance(arguments, dict):
        return {name: _plain(item) for name, item in arguments.items()}
    return arguments


def _attribute(node: fx.Node) -> Any:
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name)
    return found
