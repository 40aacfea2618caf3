"""All cases, by name, and how a test runs one; a module of its own so that a child process can import it."""

from __future__ import annotations

import torch

from tests.codegen_triton import operators, structures
from tests.codegen_triton.checking import check, schedules_of

CASES = {**operators.CASES, **structures.CASES}


def run(name: str, device: str) -> None:
    """Check one case under all its schedules."""
    case = CASES[name]()
    for schedule in schedules_of(case.kernel):
        check(case, schedule, torch.device(device))
