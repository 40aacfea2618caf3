"""All cases, by name."""

from __future__ import annotations

from tests.semantics import floats, integers, programs, tensors

CASES = {
    f"{module.__name__.rpartition('.')[2]}: {name}": case
    for module in (floats, integers, tensors, programs)
    for name, case in module.CASES.items()
}
