"""The reference: the model in float64, run by eager on every input set, and dropped before anything is compared.

Comes in: the model and the input sets. Goes out: a `Reference` with one `Observation` a set. Parameters, buffers and
floating inputs are float64 (complex ones complex128), whole numbers stay as they are. Only one float64 copy of the
model is ever alive, and only inside `float64_reference`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from stages.ir.errors import UserError
from stages.validate.observe import InputSet, Observation, leaves_of, observe
from stages.validate.widened import IN_FLOAT64


@dataclass(frozen=True)
class Reference:
    """What the float64 model gave for each input set, and what to know of it."""

    observations: tuple[Observation, ...]
    notes: tuple[str, ...] = ()


def raised(dtype: torch.dtype) -> torch.dtype:
    """The widest type of the same kind: float64, complex128, or the type itself."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def raise_inputs(inputs: InputSet, device: torch.device) -> InputSet:
    """A copy of `inputs` on `device` with every floating tensor in float64; tensors that shared memory still do."""
    bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    swapped: dict[int, Any] = {}
    for _, leaf in leaves_of(inputs, "input"):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            key = (leaf.untyped_storage().data_ptr(), leaf.dtype)
            if key not in bases:
                flat = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(leaf.untyped_storage())
                bases[key] = flat.to(device, raised(leaf.dtype), copy=True)
            swapped[id(leaf)] = bases[key].as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
        elif isinstance(leaf, torch.Tensor):
            swapped[id(leaf)] = leaf.detach().to(device, raised(leaf.dtype), copy=True)
    # deepcopy takes a tensor from its memo wherever it meets it, in any kind of container.
    return copy.deepcopy(inputs, swapped)


def raise_model(model: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A copy of `model` on `device` in float64. A plain function holds no parameters and is returned as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    swapped: dict[int, Any] = {}
    for parameter in model.parameters():
        wide = parameter.detach().to(device, raised(parameter.dtype), copy=True)
        swapped[id(parameter)] = torch.nn.Parameter(wide, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        swapped[id(buffer)] = buffer.detach().to(device, raised(buffer.dtype), copy=True)
    try:
        return copy.deepcopy(model, swapped)
    except Exception as error:
        raise UserError(
            f"the float64 reference wants a copy of {type(model).__name__}, and copying it failed: {error}",
            "Make the model work with copy.deepcopy, or leave the stage 'validate' out.",
        ) from error


class _WidestWins(TorchDispatchMode):
    """Runs an operator that is given float64 beside narrower floats in float64, and counts the model's own casts.

    What torch has in narrower floats only is computed by `widened.IN_FLOAT64`.
    Models hold plain tensors that are no buffers, and build float32 tables on the way; matrix products refuse such a
    mix. Where the model's code itself casts float64 down, it is left to: the reference is then as eager gives it.
    A number that torch refuses to put into a narrower float, since it is beyond its range, becomes the largest that
    there is: models take such numbers from their values' type (`torch.finfo(scores.dtype).min`), which is float64 here,
    and put them into tensors that they make in float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.casts_down = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        floats = {
            leaf.dtype
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
        }
        if torch.float64 in floats and len(floats) > 1 and not func._schema.is_mutable:
            args, kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
        target = kwargs.get("dtype")
        if torch.float64 in floats and isinstance(target, torch.dtype) and target.is_floating_point:
            self.casts_down += target is not torch.float64
        if torch.float64 in floats:
            func = IN_FLOAT64.get(func, func)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            narrow = _narrowest(args, kwargs)
            args, kwargs = tree_map_only(float, partial(_saturated, dtype=narrow), (args, kwargs))
            return func(*args, **kwargs)


def _narrowest(args: Any, kwargs: Any) -> torch.dtype:
    """The floating type that a call's numbers are put into: that of its tensors, or of the tensor that it makes."""
    leaves = tree_leaves((args, kwargs))
    types = [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    floats = [item for item in types if isinstance(item, torch.dtype) and item.is_floating_point]
    return min(floats, key=lambda dtype: torch.finfo(dtype).max, default=torch.get_default_dtype())


def _saturated(number: float, dtype: torch.dtype) -> float:
    """`number`, or the largest of `dtype` on its side where it is finite and beyond."""
    limit = torch.finfo(dtype).max
    return min(max(number, -limit), limit) if isfinite(number) else number


class _ConvolutionsToo(TorchFunctionMode):
    """As `_WidestWins`, for what compares the types of its arguments before any operator is dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CONVOLUTIONS:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if len({tensor.dtype for tensor in tensors}) > 1 and any(x.dtype is torch.float64 for x in tensors):
                args, kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
        return func(*args, **kwargs)


_CONVOLUTIONS = frozenset(
    (
        *(torch.conv1d, torch.conv2d, torch.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
    )
)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(raised(tensor.dtype))


def float64_reference(
    model: Callable[..., Any], input_sets: Sequence[InputSet], device: torch.device, seed: int = 0
) -> Reference:
    """`model` in float64 under `no_grad` on each of `input_sets`.

    model        a module (copied) or a function of tensors
    input_sets   (args, kwargs) of each call, in the types of the run
    device       where the float64 copy lives; the outputs come back on the CPU
    seed         as `ValidateConfig.seed`
    Raises `UserError` where the model cannot be copied or does not run in float64.
    """
    wide = raise_model(model, device)
    state: Mapping[str, torch.Tensor] = dict(wide.named_buffers()) if isinstance(wide, torch.nn.Module) else {}
    mode = _WidestWins()
    observations = []
    try:
        with torch.no_grad(), _ConvolutionsToo(), mode:
            for number, inputs in enumerate(input_sets):
                observations.append(observe(wide, raise_inputs(inputs, device), state, seed + number))
    except RuntimeError as error:
        raise UserError(
            f"the model does not run in float64: {str(error).splitlines()[0]}",
            "Move that operator out of the model, or leave the stage 'validate' out.",
        ) from error
    notes: tuple[str, ...] = ()
    if mode.casts_down:
        notes = (
            f"the model's own code casts to narrower floats {mode.casts_down} times: there the reference does too",
        )
    return Reference(tuple(observations), notes)
