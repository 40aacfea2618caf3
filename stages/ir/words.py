"""Words for people, the same in every stage."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `2 kernels`, `no kernels`; `plural` where it is not the noun with an s."""
    return f"{count or 'no'} {noun if count == 1 else plural or noun + 's'}"
