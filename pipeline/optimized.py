"""`optimize(model, inputs, overrides)`: a model compiled from a user's own code.

    fast = optimize(model, (x,), overrides=("precision=amp",))
    y = fast(x)
    print(fast.explain())

Comes in: a module or function of tensors and the inputs of one call. Goes out: `Optimized`, called like the model. Each
signature (structure, shapes, dtypes, strides, devices, plain values) gets a program of its own when it is first seen,
and in fp32 so does each `torch.autocast` of the user's around the call. Everything runs under `torch.no_grad` and in
evaluation mode; the model itself is not changed.

A weight that is replaced or changed in place is noticed at the next call, as far as torch counts the change: one
written through `weight.data` or NumPy is not. What Python holds beside tensors (numbers, hooks, `forward` itself) is
read when a signature is compiled and not again; `torch.compile(model, backend="torchweld")` guards those.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from pipeline.compile import Compilation, Session, compile_model, evaluating
from pipeline.device import require_device
from pipeline.explain import explain
from pipeline.precision import ambient_autocast
from pipeline.stages import service
from pipeline.validation import validate
from stages.capture.signature import SignatureMismatch
from stages.ir.errors import UserError
from stages.ir.program import Program
from stages.runtime.errors import StaleProgram

_is_training = operator.itemgetter("training")
Call = tuple[tuple[Any, ...], dict[str, Any]]


def optimize(model: Callable[..., Any], inputs: Any, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Optimized:
    """Compile `model` for calls with inputs like `inputs`.

    model       a `torch.nn.Module` or a function of tensors
    inputs      a tensor, a tuple or list of positional arguments, or a dict of keyword arguments
    overrides   of the config, as on the command line: ("precision=amp", "fusion=none"), or {"precision": "amp"}

    Raises `UserError` (`pipeline.UserError`) on a config that is not valid, and where the model cannot be compiled.
    """
    from pipeline.configure import session_of

    if not callable(model):
        raise UserError(f"optimize: a {type(model).__name__} is no model", "pass a module or a function of tensors")
    optimized = Optimized(model, session_of(overrides))
    args, kwargs = as_call(inputs)
    optimized.compile(*args, **kwargs)
    return optimized


def as_call(inputs: Any) -> Call:
    """Positional and keyword arguments from what `optimize` was given."""
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def signature(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a program is compiled for: equal for calls that one program serves."""
    named = [(name, _traits(kwargs[name])) for name in sorted(kwargs)]
    return (*map(_traits, args), *named)


def _traits(value: Any) -> Any:
    if type(value) is torch.Tensor:  # mostly; flattening takes twenty times as long
        return _trait(value)
    leaves, structure = _pytree.tree_flatten(value)
    return (structure, *map(_trait, leaves))


def _trait(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.device
    # 1, 1.0 and True are equal but not the same argument; 0.0 and -0.0 neither.
    return type(leaf), repr(leaf) if isinstance(leaf, float) else leaf


class Optimized:
    """A compiled model. `model` is the one that was given; it keeps its weights, and a change of them is noticed."""

    def __init__(self, model: Callable[..., Any], session: Session) -> None:
        self.model = model
        self.session = session
        self._products = partial(service("products"), session.config.precision)  # looked up once: it runs at each call
        self._compiled: dict[tuple[Any, ...], tuple[Compilation, Call]] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives. Compiles first if no program fits these inputs, or weights changed beyond it."""
        compilation = self.compile(*args, **kwargs)
        try:
            return self._run(compilation, args, kwargs)
        except (StaleProgram, SignatureMismatch):
            with self._lock:
                self._compiled.pop(self._key(args, kwargs), None)
            return self._run(self.compile(*args, **kwargs), args, kwargs)

    def _run(self, compilation: Compilation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.no_grad(), self._products():
            if not any(map(_is_training, compilation.attributes)):
                return compilation.call(*args, **kwargs)
            with evaluating(compilation.model):
                return compilation.call(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Compilation:
        """The program for these inputs, compiled now if there is none yet."""
        key = self._key(args, kwargs)
        found = self._compiled.get(key)
        if found is None:
            with self._lock:
                found = self._compiled.get(key)
                if found is None:
                    require_device(self.session.config.device, (args, kwargs))
                    found = (compile_model(self.model, args, kwargs, self.session), (args, kwargs))
                    self._compiled[key] = found
        return found[0]

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The signature, and in fp32, where the user's own autocast counts, that."""
        ambient = ambient_autocast() if self.session.config.precision.mode == "fp32" else ()
        return (*signature(args, kwargs), *ambient)

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """One for each signature, in the order they were first seen."""
        return tuple(compilation for compilation, _ in self._compiled.values())

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of all signatures: one for each, or several where Dynamo split the model."""
        return tuple(program for compilation in self.compilations for program in compilation.programs)

    def explain(self) -> str:
        """What was fused and what was not, with reasons and source lines; see `pipeline.explain`."""
        return "\n".join(explain(compilation.units) for compilation in self.compilations)

    def validate(self) -> tuple[Any, ...]:
        """A `stages.validate.Validation` for each signature, on the inputs that it was compiled with."""
        return tuple(validate(self, self.model, [call], self.session) for _, call in self._compiled.values())
