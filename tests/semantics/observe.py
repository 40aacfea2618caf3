"""What one can tell of a call: its result, what it did to its arguments, what shares memory, what it raised.

Comes in: something to call and its arguments. Goes out: an `Outcome`; `difference` says in words where two differ.
Values are compared as bits, so the sign of zero counts; a NaN is equal to any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True)
class Likeness:
    """How near is near enough: to the last bit, or a few roundings; and whether the sign of zero counts."""

    exact: bool = True
    signed_zeros: bool = True


@dataclass(frozen=True)
class Outcome:
    """leaves    tensors and plain values of the result, by path, copied
    arguments the tensors among the arguments after the call, copied
    sharing   groups of tensors, named by path, that lie in one storage, with what each has of it
    error     what was raised, or None
    """

    leaves: dict[str, Any]
    arguments: list[Tensor]
    sharing: set[frozenset[str]]
    same: set[frozenset[str]]
    error: BaseException | None = None


def observe(call: Callable[..., Any], args: Sequence[Any]) -> Outcome:
    """Call and look."""
    given = [leaf for leaf in _pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    try:
        result = call(*args)
    except Exception as error:
        return Outcome({}, [copied(tensor) for tensor in given], set(), set(), error)
    paths, _ = _pytree.tree_flatten_with_path(result)
    leaves = {_pytree.keystr(path): leaf for path, leaf in paths}
    named = {f"argument {number}": tensor for number, tensor in enumerate(given)}
    named.update({f"result{path}": leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)})
    sharing, same = _alike(named, _storage), _alike(named, id)
    copies = {path: copied(leaf) if isinstance(leaf, Tensor) else leaf for path, leaf in leaves.items()}
    return Outcome(copies, [copied(tensor) for tensor in given], sharing, same)


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides; overlapping memory is copied as it is."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return tensor.clone()
    base = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage().clone())  # type: ignore[call-overload]
    copy = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    copy = copy.conj() if tensor.is_conj() else copy
    return copy._neg_view() if tensor.is_neg() else copy


def _storage(tensor: Tensor) -> Any:
    # Empty tensors have no memory to share.
    if tensor.layout is not torch.strided or not tensor.untyped_storage().nbytes():
        return id(tensor)
    return tensor.untyped_storage()._cdata


def _alike(named: dict[str, Tensor], key: Callable[[Tensor], Any]) -> set[frozenset[str]]:
    groups: dict[Any, list[str]] = {}
    for name, tensor in named.items():
        groups.setdefault(key(tensor), []).append(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def difference(ours: Outcome, eager: Outcome, likeness: Likeness) -> str:
    """Where `ours` is not what eager gives; empty where it is."""
    if eager.error is not None or ours.error is not None:
        return _errors(ours.error, eager.error) or _arguments(ours, eager, likeness)
    if list(ours.leaves) != list(eager.leaves):
        return f"the result has {list(ours.leaves)}, eager's {list(eager.leaves)}"
    found = [
        f"{path}: {text}"
        for path, theirs in eager.leaves.items()
        if (text := unlike(ours.leaves[path], theirs, likeness))
    ]
    if ours.sharing != eager.sharing:
        found.append(f"memory is shared by {_names(ours.sharing)}, in eager by {_names(eager.sharing)}")
    if ours.same != eager.same:
        found.append(f"one object are {_names(ours.same)}, in eager {_names(eager.same)}")
    return "\n".join([*found, *filter(None, [_arguments(ours, eager, likeness)])])


def _names(groups: set[frozenset[str]]) -> str:
    return str(sorted(sorted(group) for group in groups))


def _errors(ours: BaseException | None, eager: BaseException | None) -> str:
    if ours is None:
        return f"nothing is raised, in eager {type(eager).__name__}: {eager}"
    if eager is None:
        return f"raises {type(ours).__name__}: {ours}"
    if isinstance(ours, torch._dynamo.exc.BackendCompilerFailed):  # of our making
        ours = ours.inner_exception
    # What Dynamo itself raises while it traces is the same for every backend.
    if isinstance(ours, (type(eager), torch._dynamo.exc.TorchDynamoException)):
        return ""
    return f"raises {type(ours).__name__} ({ours}), eager {type(eager).__name__} ({eager})"


def _arguments(ours: Outcome, eager: Outcome, likeness: Likeness) -> str:
    found = [
        f"argument {number} afterwards: {text}"
        for number, (mine, theirs) in enumerate(zip(ours.arguments, eager.arguments, strict=True))
        if (text := unlike(mine, theirs, likeness))
    ]
    return "\n".join(found)


def unlike(mine: Any, theirs: Any, likeness: Likeness) -> str:
    """How a value differs from eager's; empty where it does not."""
    if not isinstance(theirs, Tensor) or not isinstance(mine, Tensor):
        same = type(mine) is type(theirs) and (mine == theirs or (mine != mine and theirs != theirs))
        return "" if same else f"{mine!r} is not {theirs!r}"
    facts = ("dtype", "shape", "layout", "device", "requires_grad")
    for fact in facts:
        if getattr(mine, fact) != getattr(theirs, fact):
            return f"{fact} {getattr(mine, fact)} is not {getattr(theirs, fact)}"
    if theirs.layout is not torch.strided:
        return unlike(mine.to_dense(), theirs.to_dense(), likeness)
    if theirs.numel() and mine.stride() != theirs.stride():
        return f"strides {mine.stride()} are not {theirs.stride()}"
    if (mine.is_conj(), mine.is_neg()) != (theirs.is_conj(), theirs.is_neg()):
        return "the conjugate or negative bit differs"
    mine, theirs = mine.resolve_conj().resolve_neg(), theirs.resolve_conj().resolve_neg()
    if theirs.is_complex():
        return unlike(torch.view_as_real(mine), torch.view_as_real(theirs), likeness)
    wrong = _wrong(mine, theirs, likeness)
    if not bool(wrong.any()):
        return ""
    return f"{mine[wrong][:6].tolist()} is not {theirs[wrong][:6].tolist()}, {int(wrong.sum())} of {wrong.numel()}"


def _wrong(mine: Tensor, theirs: Tensor, likeness: Likeness) -> Tensor:
    """Where two tensors of one dtype and shape differ."""
    if not theirs.dtype.is_floating_point:
        return mine != theirs
    both_nan = mine.isnan() & theirs.isnan()
    if likeness.exact:
        same = mine == theirs
    else:
        eps = torch.finfo(theirs.dtype).eps
        same = torch.isclose(mine.double(), theirs.double(), rtol=4 * eps, atol=1e-6)
    if likeness.signed_zeros:
        same &= (mine != 0) | (theirs != 0) | (mine.signbit() == theirs.signbit())
    return ~(same | both_nan)
