"""Models described layer by layer in `suite.yaml`: architectures that no library at hand has.

A description is a list of one-key mappings, applied in turn. Arguments are a list, whose last item can be a mapping of
keywords, or such a mapping; a word among them is looked up in the entry's `config`. A key is

    a class of torch.nn             Conv2d: [3, 64, 7, {bias: false}]
    a function of `FUNCTIONS`       permute: [0, 2, 1]
    Repeat     `body` `times` times, with weights of their own
    Residual   the shortcut of x (x itself if none is given) plus the body of x
    Concat     x and the body of x, joined along dimension 1
    Branches   one body for each input, or all bodies on a single input; joined along `dim` (-1)
    First      the first of the outputs of what is inside
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.config import ModelConfig
from stages.ir.errors import UserError, choose

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "normalize": nn.functional.normalize,
    "permute": torch.Tensor.permute,
    "select": torch.Tensor.select,
    "squeeze": torch.Tensor.squeeze,
    "unflatten": torch.Tensor.unflatten,
}


class Stack(nn.ModuleList):
    """Its modules one after the other; the first takes all arguments."""

    def forward(self, *values: Any) -> Any:
        for module in self:
            values = (module(*values),)
        return values[0]


class Branches(nn.Module):
    """One body for each input, or all bodies on a single input; joined along `dim`."""

    def __init__(self, bodies: Sequence[nn.Module], dim: int) -> None:
        super().__init__()
        self.bodies, self.dim = nn.ModuleList(bodies), dim

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        values = values * len(self.bodies) if len(values) == 1 else values
        return torch.cat([body(value) for body, value in zip(self.bodies, values)], self.dim)


class Residual(nn.Module):
    """`shortcut(x) + body(x)`."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.add(self.shortcut(value), self.body(value))


class First(nn.Module):
    """The first of the outputs of `body`."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *values: Any) -> Any:
        return self.body(*values)[0]


class Function(nn.Module):
    """A function of `FUNCTIONS` with its further arguments."""

    def __init__(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = FUNCTIONS[name], tuple(args), dict(kwargs)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.function(value, *self.args, **self.kwargs)


def find(config: ModelConfig) -> Sequence[Any]:
    """The description of the entry that `config.architecture` names. Raises `UserError` where it has none."""
    from pipeline.models.suite import entry_of

    entry = entry_of(config.architecture)
    if not entry.layers:
        raise UserError(f"model.architecture: '{entry.name}' is not described by layers", f"model=suite/{entry.name}")
    return entry.layers


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """The model, and what its weights are."""
    return stack(find(config), config.config), f"random, seed {seed}"


def stack(items: Sequence[Mapping[str, Any]], names: Mapping[str, Any]) -> Stack:
    """The modules of a description; `names` are the words that its arguments may be."""
    return Stack([_module(name, given, names) for item in items for name, given in item.items()])


def _module(name: str, given: Any, names: Mapping[str, Any]) -> nn.Module:
    if name == "Repeat":
        return Stack([stack(given["body"], names) for _ in range(given["times"])])
    if name == "Branches":
        return Branches([stack(body, names) for body in given["bodies"]], given.get("dim", -1))
    if name == "Residual":
        parts = given if isinstance(given, Mapping) else {"body": given}
        return Residual(stack(parts["body"], names), stack(parts.get("shortcut", ()), names))
    if name == "Concat":
        return Branches([Stack(), stack(given, names)], 1)
    if name == "First":
        return First(stack(given, names))
    args, kwargs = _arguments(given, names)
    if name[0].isupper():
        module: nn.Module = getattr(nn, name)(*args, **kwargs)
        return module
    return Function(choose("layers", name, FUNCTIONS), args, kwargs)


def _arguments(given: Any, names: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    args = [given] if isinstance(given, Mapping) else list(given)
    kwargs = args.pop() if args and isinstance(args[-1], Mapping) else {}

    def known(value: Any) -> Any:
        return names.get(value, value) if isinstance(value, str) else value

    return [known(value) for value in args], {key: known(value) for key, value in kwargs.items()}
