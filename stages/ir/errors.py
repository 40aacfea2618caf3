"""Errors meant for the person at the keyboard: what is wrong, where, and the mend. `run.py` prints them and exits 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# More valid names than this are not listed: whoever misspelt one wants the nearest.
_LISTED = 60


class UserError(Exception):
    """Something the user can mend. The message says what is wrong and where; `mend` says what to do."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(f"{message}\n  {mend}" if mend else message)
        self.mend = mend

    def __str__(self) -> str:
        # A class of Python's mixed in by `in_class_of` may print its argument in another way (KeyError does).
        return str(self.args[0])


def in_class_of(cause: BaseException, message: str, mend: str = "", kind: type[UserError] = UserError) -> UserError:
    """A `kind` that is of the class of `cause` as well, so that `except IndexError` catches it as it catches eager's.

    Where the class of `cause` cannot be mixed in or made of one message, plain `kind`.
    """
    try:
        return _mixed(kind, type(cause))(message, mend)
    except TypeError:
        return kind(message, mend)


def _mixed(kind: type[UserError], theirs: type[BaseException]) -> type[UserError]:
    if issubclass(kind, theirs):
        return kind
    if (kind, theirs) not in _MIXED:
        name = f"{kind.__name__}Of{theirs.__name__}"
        _MIXED[kind, theirs] = type(name, (kind, theirs), {"__module__": kind.__module__})
    return _MIXED[kind, theirs]


_MIXED: dict[tuple[type[UserError], type[BaseException]], type[UserError]] = {}


class ConfigError(UserError):
    """A key or value of the config that is not valid; `key` is its full dotted name."""

    def __init__(self, key: str, message: str, mend: str = "") -> None:
        super().__init__(f"{key}: {message}", mend)
        self.key = key


def require(holds: bool, key: str, message: str, mend: str = "") -> None:
    """Raise `ConfigError(key, message, mend)` unless `holds`."""
    if not holds:
        raise ConfigError(key, message, mend)


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'amp'? Valid: amp, bf16, ...` for a name that is not among `valid`."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean '{close[0]}'? " if close else ""
    if len(names) > _LISTED:
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.3)
        return f"{guess}Of {len(names)} valid ones the nearest are: {', '.join(near or names[:5])}."
    return f"{guess}Valid: {', '.join(names)}."


def choose(key: str, value: str, valid: Iterable[str]) -> str:
    """`value` if it is among `valid`, else `ConfigError` with the nearest one."""
    names = list(valid)
    if value not in names:
        raise ConfigError(key, f"there is no '{value}'", nearest(value, names))
    return value
