"""Takes out of an AOTAutograd graph what only costs.

Comes in: a functional FX graph of ATen calls, changed in place. Goes out: the tensors that were written as literals in
the model's code, which become placeholders at the end of the graph, by name.

Functionalisation leaves aliases (`detach`, `alias`), views that change nothing, copies that nothing can tell from
their source, and dead nodes. All are dropped here, once, so that no later stage has to know them. Views that set a bit
(`conj`) become the operation itself.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from stages.ir.kernel import IRError
from stages.ir.memory import laid_out

aten = torch.ops.aten

# The result shares its input's storage. Where shape, strides and offset are equal too, it is the input.
_ALIASES = {
    aten.alias.default,
    aten.detach.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.slice.Tensor,
    aten.squeeze.dims,
    aten.as_strided.default,
}

# The result is a copy. With equal layout and type it is the input, unless the caller could tell them apart.
_COPIES = {aten.clone.default, aten.lift_fresh_copy.default, aten._to_copy.default}


def clean(module: fx.GraphModule, distinct: bool) -> dict[str, torch.Tensor]:
    """Simplify `module.graph` in place; the tensors of literals by the name of their new placeholder.

    With `distinct`, outputs that are different tensors stay so even where one is a mere alias of another or of an
    input: the caller gets them as they are. A training graph's outputs pass through AOTAutograd, which makes aliases.
    Raises `IRError` if an operator that writes to its arguments is left: everything after this stage relies on values
    that do not change.
    """
    constants = _lift_constants(module)
    _name_casts_alike(module.graph)
    _compute_conjugates(module.graph)
    _drop_copies_and_aliases(module.graph, distinct)
    module.graph.eliminate_dead_code()
    for name in [name for name in constants if not _node(module.graph, name).users]:
        module.graph.erase_node(_node(module.graph, name))
        del constants[name]
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise IRError(f"capture: {node.target} writes to its arguments; functionalisation should have replaced it")
    used = {str(node.target).partition(".")[0] for node in module.graph.nodes if node.op in ("get_attr", "call_module")}
    # Branches of `cond` have submodules of their own: `delete_all_unused_submodules` would take those away.
    for name in [name for name, _ in module.named_children() if name not in used]:
        delattr(module, name)
    module.recompile()
    return constants


def _name_casts_alike(graph: fx.Graph) -> None:
    """torch casts by an operator of its own where it keeps a Python float as a tensor; all else by `_to_copy`."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        value, dtype = node.args
        node.target, node.args, node.kwargs = aten._to_copy.default, (value,), {"dtype": dtype}


# A view that only sets a bit, and the operator that computes what the bit means.
_BIT_VIEWS = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}


def _compute_conjugates(graph: fx.Graph) -> None:
    """Conjugate and negative views become tensors: the memory of a program has no place for their bit.

    Inputs that have it are copied by the runtime (`runtime.views.aligned`).
    """
    found = [node for node in graph.nodes if node.target in _BIT_VIEWS]
    for node in found:
        node.target = _BIT_VIEWS[node.target]
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if _has_bit(value):
            old_storage = _storage(node)
            with value.fake_mode:
                node.meta["val"] = without_bit(value)
            _now_views_of(node, old_storage, list(node.users))
    for node in found:
        old_storage, source = _storage(node), node.args[0].meta["val"]
        with source.fake_mode:
            node.meta["val"] = node.target(source)
        _now_views_of(node, old_storage, list(node.users))


def _has_bit(value: Any) -> bool:
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return strided and (value.is_conj() or value.is_neg())


def without_bit(value: Any) -> Any:
    """`value`, or for a conjugate or negative view the same numbers with the same strides in memory of their own."""
    if not _has_bit(value):
        return value
    return laid_out(value, value.stride())


def _node(graph: fx.Graph, name: str) -> fx.Node:
    return next(node for node in graph.nodes if node.name == name)


def _lift_constants(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Replace each `get_attr` of a tensor by a placeholder after the last one."""
    constants: dict[str, torch.Tensor] = {}
    by_target: dict[str, fx.Node] = {}
    graph = module.graph
    last = next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        value = operator.attrgetter(node.target)(module)
        if not isinstance(value, torch.Tensor):
            continue
        if node.target not in by_target:
            with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
                placeholder = graph.placeholder(f"constant_{len(constants)}")
            placeholder.meta = dict(node.meta)
            by_target[node.target] = last = placeholder
            constants[placeholder.name] = without_bit(value.detach())
        node.replace_all_uses_with(by_target[node.target])
        graph.erase_node(node)
    for target in by_target:
        delattr(module, target)
    return constants


def _drop_copies_and_aliases(graph: fx.Graph, distinct: bool) -> None:
    output = next(iter(reversed(graph.nodes)))
    given = {_storage(node) for node in graph.nodes if node.op == "placeholder"}
    # Storages that the caller gets, and may write to: two of them, or one of them and an input's, may not become one.
    returned = {_storage(node) for node in output.all_input_nodes}
    for node in list(graph.nodes):
        alias = node.target in _ALIASES
        source = _source(node)
        if source is None or not _same_layout(source, node, offset=alias):
            continue
        if alias:
            seen = source.op == "placeholder" or output in source.users
            if distinct and seen and output in node.users:
                continue
        elif _storage(node) in returned:
            if _storage(source) in returned | given:
                continue
            returned.add(_storage(source))
        users = list(node.users)
        node.replace_all_uses_with(source)
        graph.erase_node(node)
        if not alias:
            _now_views_of(source, _storage(node), users)


def _source(node: fx.Node) -> fx.Node | None:
    """The value that `node` may be equal to: what it aliases or copies, or what it writes over all of a tensor."""
    source: Any = None
    if node.target in _ALIASES or node.target in _COPIES:
        source = node.args[0]
    elif node.target is aten.slice_scatter.default:
        written: Any = node.args[1]
        source = written if written.meta["val"].shape == node.meta["val"].shape else None
    return source if isinstance(source, fx.Node) else None


def _now_views_of(source: fx.Node, old_storage: Any, users: list[fx.Node]) -> None:
    """Compute `val` anew of the views among `users`, which lay in a copy's storage, and of views of them."""
    for user in users:
        if user.op != "call_function" or _storage(user) != old_storage:
            continue
        args, kwargs = map_arg((user.args, user.kwargs), lambda node: node.meta["val"])
        target: Any = user.target
        with source.meta["val"].fake_mode:
            user.meta["val"] = target(*args, **kwargs)
        _now_views_of(source, old_storage, list(user.users))


def _storage(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.untyped_storage()._cdata
    return node


def _same_layout(first: fx.Node, second: fx.Node, offset: bool) -> bool:
    """Whether two tensors over the same numbers are the same tensor, with `offset` also the same place in storage."""
    facts = []
    for node in (first, second):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        place = value.storage_offset() if offset else 0
        facts.append((value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg(), place))
    return facts[0] == facts[1]
