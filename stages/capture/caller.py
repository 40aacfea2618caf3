"""The call past Dynamo: user's tensors to the graph, the graph's outputs to the user's structure.

Comes in: what the recorder saw of one call of one graph. Goes out: a `FlatCaller`. Which argument of the graph is which
argument of the user or weight of the model, and which output stands where in the result, is found by the identity of
tensors in the recorded call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.capture.model import modules_of, namespaces_of
from stages.capture.recorder import RecordedCall, Slot
from stages.capture.signature import NotFlat, Signature, SignatureMismatch
from stages.capture.structure import Builder, Sources, make_builder
from stages.capture.weights import Weights

Target = Callable[[list[Any]], Sequence[Any]]


class FlatCaller:
    """Calls one captured graph with the model's own signature; made by `make_flat_caller`.

    Raises `SignatureMismatch` if arguments, grad mode, training mode or weights are not those captured. An ambient
    autocast has no effect: the graph has the casts of its capture, and whoever holds it looks after the difference.
    """

    def __init__(
        self,
        signature: Signature,
        check_aliases: Callable[[list[torch.Tensor]], None] | None,
        weights: Weights,
        modes: _Modes,
        pick: Callable[[list[Any]], list[Any]],
        target: Target,
        build: Builder,
    ) -> None:
        self._signature = signature
        self._check_aliases = check_aliases
        self._weights = weights
        self._modes = modes
        self._pick = pick
        self._target = target
        self._build = build

    def weights(self) -> list[torch.Tensor]:
        """The model's tensors that the graph takes, as they are now; see `Weights.current`."""
        return self._weights.current()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._modes.check()
        leaves = self._signature.read(args, kwargs)
        if self._check_aliases is not None:
            self._check_aliases(leaves)
        weights = self._weights.current()
        inputs = self._pick(leaves + weights)
        if torch.is_autocast_enabled(self._modes.device_type):
            with torch._C._DisableAutocast():
                outputs = self._target(inputs)
        else:
            outputs = self._target(inputs)
        return self._build(outputs, leaves, weights)


class _Modes:
    """The modes that tracing read: grad mode, where a gradient could flow, and each module's training flag."""

    def __init__(self, model: Callable[..., Any], device_type: str, tensors: Sequence[torch.Tensor]) -> None:
        self.device_type = device_type
        self._gradient: bool | None = None
        if any(tensor.requires_grad for tensor in tensors):
            self._gradient = torch.is_grad_enabled()
        modules = modules_of(model)
        self._paths = list(modules)
        self._attributes = [module.__dict__ for module in modules.values()]
        self._training = [module.training for module in modules.values()]

    def check(self) -> None:
        if self._gradient is not None and torch.is_grad_enabled() is not self._gradient:
            now, then = ("on", "off") if torch.is_grad_enabled() else ("off", "on")
            raise SignatureMismatch(f"gradients are {now}; they were {then} when the model was captured")
        if list(map(_is_training, self._attributes)) != self._training:
            flags = list(map(_is_training, self._attributes))
            path = next(path for path, *pair in zip(self._paths, flags, self._training) if pair[0] != pair[1])
            path = f"module '{path}'" if path else "the model"
            raise SignatureMismatch(f"{path} is not in the training mode in which it was captured")


_is_training = operator.itemgetter("training")


def make_flat_caller(
    model: Callable[..., Any], signature: Signature, call: RecordedCall, slots: Sequence[Slot], result: Any
) -> FlatCaller:
    """The flat caller of one recorded call that gave `result`. Raises `NotFlat` with the reason if there is none."""
    leaf_numbers = {id(leaf): number for number, leaf in reversed(list(enumerate(signature.leaves)))}
    attributes = [value for space in namespaces_of(model) for _, value in space.items()]
    model_tensors = {id(value) for value in attributes if isinstance(value, torch.Tensor)}
    if model_tensors & set(leaf_numbers):
        raise NotFlat("an argument is a tensor of the model as well")
    held = [tensor for tensor in call.arguments if id(tensor) not in leaf_numbers]
    if any(id(tensor) not in model_tensors for tensor in held):
        raise NotFlat("the graph takes a tensor that is neither an argument nor an attribute of the model")

    sources = Sources(call.outputs, signature.leaves, held, model_tensors)
    build = make_builder(result, sources, [*attributes, *signature.containers])
    # A tensor changed in place may be among the graph's outputs; it is where it was.
    known = {*leaf_numbers, *model_tensors}
    if any(isinstance(value, torch.Tensor) and id(value) not in known for value in sources.outputs_unused()):
        raise NotFlat("the call stores tensors elsewhere than in its result")
    held_numbers = {id(tensor): len(signature.leaves) + number for number, tensor in enumerate(held)}
    order = [{**held_numbers, **leaf_numbers}[id(tensor)] for tensor in call.arguments]

    tensors = [*signature.leaves, *sources.weights]
    weights = Weights(model, sources.weights, gradients=torch.is_grad_enabled())
    mutates = bool(call.result.mutated(len(call.arguments)))
    return FlatCaller(
        signature,
        signature.alias_check(by_storage=mutates),
        weights,
        _Modes(model, _device_type(tensors), tensors),
        _picker(order),
        _target(call, slots),
        build,
    )


def _target(call: RecordedCall, slots: Sequence[Slot]) -> Target:
    """The slot itself where the graph's outputs are the call's, else AOTAutograd's wrapper around it.

    The wrapper writes mutations back, makes aliases and runs the backward graph.
    """
    if call.result.is_plain and len(slots) == 1:
        taken = [entry for entry in slots[0].graph.inputs if entry.kind != "constant"]
        if len(taken) == len(call.arguments):
            return slots[0]
    wrapped = call.result.call
    return lambda inputs: wrapped(*inputs)


def _device_type(tensors: Sequence[torch.Tensor]) -> str:
    return next((tensor.device.type for tensor in tensors if tensor.device.type != "cpu"), "cpu")


def _picker(order: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
    """The values at `order`, as a new list."""
    if len(order) < 2:
        return lambda values: [values[number] for number in order]
    pick = operator.itemgetter(*order)
    return lambda values: list(pick(values))
