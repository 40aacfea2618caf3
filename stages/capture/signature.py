"""How the arguments of a flat call are taken apart: once compiled from a recorded call, then run at each call.

Comes in: the arguments of the recorded call. Goes out: a function from the arguments of a later call to its tensors,
in one flat order, which raises `SignatureMismatch` where anything the graph was specialised to is different. Tuples,
lists, dicts, named tuples and dataclasses (Hugging Face's `ModelOutput` among them) are walked; numbers, strings and
None are part of the signature and have to be equal.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from stages.ir.errors import UserError

Reader = Callable[[Any, list[torch.Tensor]], None]

# Values without parts that cannot change: equal ones are interchangeable.
ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    enum.Enum,
    slice,
    range,
    type(Ellipsis),
)
# Values that stand for themselves: only the same one is interchangeable.
SELVES = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class SignatureMismatch(UserError):
    """The flat call was made for other arguments, modes or weights than it is given."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, "Call it as it was captured, or capture the model again (`optimize`) for this use of it."
        )


class NotFlat(Exception):
    """A recorded call that the flat path cannot repeat; the message says why."""


def is_plain_tensor(value: Any) -> bool:
    """A tensor without a subclass's own behaviour."""
    return type(value) is torch.Tensor or isinstance(value, torch.nn.Parameter)


class Signature:
    """Reads the tensors out of `(args, kwargs)`; see the head of this file.

    gradients   whether `requires_grad` of tensors is part of the signature: the graph was captured in grad mode
    leaves      the tensors of the recorded call, in the order in which `read` gives them
    containers  every list, dict and object that was walked, for those who watch whether the model changes them
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool) -> None:
        self._gradients = gradients
        self.containers: list[Any] = []
        self.leaves: list[torch.Tensor] = []
        self._positional = tuple(self._reader(value, f"argument {number}") for number, value in enumerate(args))
        self._keyword = tuple((name, self._reader(value, f"argument '{name}'")) for name, value in kwargs.items())
        self.read(args, kwargs, self.leaves)

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """The tensors of a call, in the recorded order.

        Raises `SignatureMismatch` naming the first argument whose structure, scalar, shape, dtype, strides or device
        differs.
        """
        leaves = [] if leaves is None else leaves
        if len(args) != len(self._positional) or len(kwargs) != len(self._keyword):
            raise self._wrong_names(args, kwargs)
        for reader, value in zip(self._positional, args):
            reader(value, leaves)
        for name, reader in self._keyword:
            if name not in kwargs:
                raise self._wrong_names(args, kwargs)
            reader(kwargs[name], leaves)
        return leaves

    def alias_check(self, by_storage: bool) -> Callable[[list[torch.Tensor]], None] | None:
        """A function that raises `SignatureMismatch` unless the same leaves are one tensor as in the recorded call.

        Dynamo passes a tensor given twice to the graph once. Where the graph writes to arguments (`by_storage`), the
        same have to share storage, too. None where no call can differ.
        """
        recorded = _first_alike(self.leaves, by_storage)
        if not by_storage and recorded == list(range(len(recorded))):
            return None

        def check(leaves: list[torch.Tensor]) -> None:
            if _first_alike(leaves, by_storage) != recorded:
                raise SignatureMismatch("other arguments are one tensor, or share storage, than at capture")

        return check

    def _wrong_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SignatureMismatch:
        names = ", ".join(name for name, _ in self._keyword) or "none"
        return SignatureMismatch(
            f"captured with {len(self._positional)} positional arguments and keywords ({names}), "
            f"called with {len(args)} and ({', '.join(kwargs) or 'none'})"
        )

    def _reader(self, value: Any, path: str) -> Reader:
        if is_plain_tensor(value):
            return _tensor_reader(value, path, self._gradients)
        if isinstance(value, ATOMS):
            return _atom_reader(value, path)
        if isinstance(value, SELVES):
            return _self_reader(value, path)
        self.containers.append(value)
        if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            parts = [self._reader(part, f"{path}[{number}]") for number, part in enumerate(value)]
            return _sequence_reader(value, parts, path)
        if type(value) in (dict, OrderedDict) or (isinstance(value, dict) and dataclasses.is_dataclass(value)):
            items = [(key, self._reader(part, f"{path}[{key!r}]")) for key, part in value.items()]
            return _mapping_reader(value, items, path)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            fields = [(name, self._reader(getattr(value, name), f"{path}.{name}")) for name in names]
            return _object_reader(value, fields, path)
        raise NotFlat(f"{path} is a {type(value).__qualname__}, which cannot be taken apart into tensors")


def _first_alike(tensors: list[torch.Tensor], by_storage: bool) -> list[int]:
    """For each tensor the position of the first that is the same object, or lies in the same storage."""
    first: dict[int, int] = {}
    keys = [tensor.untyped_storage()._cdata if by_storage else id(tensor) for tensor in tensors]
    return [first.setdefault(key, number) for number, key in enumerate(keys)]


def _differs(path: str, now: str, then: str) -> SignatureMismatch:
    return SignatureMismatch(f"{path} is {now}; it was {then} when the model was captured")


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, ATOMS) else f"a {type(value).__qualname__}"
    dtype = str(value.dtype).removeprefix("torch.")
    gradient = ", requires_grad" if value.requires_grad else ""
    return f"{dtype}{list(value.shape)} with strides {list(value.stride())} on {value.device}{gradient}"


def _tensor_reader(recorded: torch.Tensor, path: str, gradients: bool) -> Reader:
    if recorded.layout is not torch.strided:
        raise NotFlat(f"{path} is a tensor of layout {recorded.layout}")
    shape, strides, dtype, device = recorded.shape, recorded.stride(), recorded.dtype, recorded.device
    gradient, then, plain = recorded.requires_grad, _describe(recorded), torch.Tensor

    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        if (
            (type(value) is not plain and not is_plain_tensor(value))
            or value.shape != shape
            or value.dtype is not dtype
            or value.stride() != strides
            or value.device != device
            or (gradients and value.requires_grad is not gradient)
        ):
            raise _differs(path, _describe(value), then)
        leaves.append(value)

    return read


def _atom_reader(recorded: Any, path: str) -> Reader:
    kind = type(recorded)

    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        # A NaN is unequal to itself, and yet the same argument.
        if type(value) is not kind or not (value == recorded or (value != value and recorded != recorded)):
            raise _differs(path, _describe(value), _describe(recorded))

    return read


def _self_reader(recorded: Any, path: str) -> Reader:
    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        if value is not recorded:
            raise _differs(path, repr(value), repr(recorded))

    return read


def _sequence_reader(recorded: Any, parts: list[Reader], path: str) -> Reader:
    kind, length = type(recorded), len(parts)

    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        if type(value) is not kind or len(value) != length:
            now = f"a {type(value).__qualname__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
            raise _differs(path, now, f"a {kind.__qualname__} of {length}")
        for reader, part in zip(parts, value):
            reader(part, leaves)

    return read


def _mapping_reader(recorded: Any, items: list[tuple[Any, Reader]], path: str) -> Reader:
    kind, keys = type(recorded), list(recorded)

    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        if type(value) is not kind or list(value) != keys:
            now = f"a {type(value).__qualname__}" + (f" with keys {list(value)}" if isinstance(value, dict) else "")
            raise _differs(path, now, f"a {kind.__qualname__} with keys {keys}")
        for key, reader in items:
            reader(value[key], leaves)

    return read


def _object_reader(recorded: Any, fields: list[tuple[str, Reader]], path: str) -> Reader:
    kind = type(recorded)

    def read(value: Any, leaves: list[torch.Tensor]) -> None:
        if type(value) is not kind:
            raise _differs(path, f"a {type(value).__qualname__}", f"a {kind.__qualname__}")
        for name, reader in fields:
            reader(getattr(value, name), leaves)

    return read
