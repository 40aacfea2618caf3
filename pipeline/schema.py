"""Plain values (of YAML or the command line) as the frozen dataclasses of the schema, or an error that names the key.

Comes in: nested dicts, lists, strings and numbers. Goes out: an instance of a dataclass whose annotations say what each
key may hold. Nothing is guessed: an unknown key, a missing one and a value of the wrong type are `ConfigError`s. A
whole number passes as a float; nothing else changes its type.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stages.ir.errors import ConfigError, nearest

_Record = TypeVar("_Record")

_LISTS = (tuple, list, Sequence)
_DICTS = (dict, Mapping)
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def read(kind: type[_Record], values: Any, key: str) -> _Record:
    """The dataclass `kind` made of `values`; `key` is its dotted name ("" at the top) and stands in every error."""
    if not isinstance(values, Mapping):
        raise ConfigError(key, f"wants keys and values, not {_shown(values)}")
    hints = get_type_hints(kind)
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ConfigError(_join(key, str(name)), "there is no such key", nearest(str(name), known))
    given: dict[str, Any] = {}
    for name, field in known.items():
        if name in values:
            given[name] = _value(hints[name], values[name], _join(key, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(_join(key, name), "is missing", "give it a value")
    return kind(**given)


def describe(hint: Any) -> str:
    """What a value of type `hint` looks like, for people: `a whole number or null`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in _LISTS:
        return f"a list, each {describe(args[0])}"
    if origin in _DICTS or hint is dict or is_dataclass(hint):
        return "keys and values"
    return "null" if hint is type(None) else _WORDS.get(hint, "a value")


def _value(hint: Any, value: Any, key: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _union(args, value, key)
    if origin is Literal:
        if value not in args or isinstance(value, bool) is not any(isinstance(arg, bool) for arg in args):
            raise ConfigError(key, f"there is no '{value}'", nearest(str(value), map(str, args)))
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return read(hint, value, key)
    if origin in _LISTS:
        if not isinstance(value, (list, tuple)):
            raise _wrong(hint, value, key)
        items = [_value(args[0], item, f"{key}[{place}]") for place, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin in _DICTS or hint is dict:
        if not isinstance(value, Mapping):
            raise _wrong(hint, value, key)
        inner = args[1] if args else Any
        return {str(name): _value(inner, item, _join(key, str(name))) for name, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(hint, value, key)
    return value


def _union(choices: tuple[Any, ...], value: Any, key: str) -> Any:
    """`value` as the first of `choices` that takes it. An error below `key`, or of a name, is the one to show."""
    if value is None and type(None) in choices:
        return None
    for choice in choices:
        try:
            return _value(choice, value, key)
        except ConfigError as error:
            if error.key != key or get_origin(choice) is Literal:
                raise
    raise _wrong(Union[choices], value, key)  # noqa: UP007


def _wrong(hint: Any, value: Any, key: str) -> ConfigError:
    return ConfigError(key, f"wants {describe(hint)}, not {_shown(value)}")


def _shown(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
