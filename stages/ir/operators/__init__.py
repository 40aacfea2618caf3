"""Operators of our own, registered with torch's dispatcher as `torch.ops.torchweld.*`: steps of a program call them as
they call torch's. Importing this package registers them."""

from __future__ import annotations

from stages.ir.operators.attention import OPERATOR, attention, suits

__all__ = ["OPERATOR", "attention", "suits"]
