"""What a graph may not hold as it is: tokens of effects (checks in linear algebra), views beyond their inputs."""

from __future__ import annotations

import pytest
import torch

from pipeline.backend import torchweld
from stages.ir.errors import UserError


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend=torchweld, fullgraph=True, dynamic=False)


SOLVABLE = torch.eye(3) * 2 + torch.ones(3, 3)
SINGULAR = torch.ones(3, 3)


def test_a_checked_solution_is_eagers():
    def function(a, b):
        return torch.linalg.solve(a, b) + 1, torch.linalg.inv(a)

    for mine, eager in zip(compiled(function)(SOLVABLE, torch.ones(3)), function(SOLVABLE, torch.ones(3)), strict=True):
        assert torch.equal(mine, eager)


def test_a_failed_check_is_an_error_though_nobody_reads_a_result_of_it():
    def function(a, b):
        return torch.linalg.solve(a, b)

    run = compiled(function)
    run(SOLVABLE, torch.ones(3))
    with pytest.raises((UserError, RuntimeError), match="singular"):
        run(SINGULAR, torch.ones(3))


def test_a_view_that_reaches_outside_of_its_input_runs_in_eager():
    def function(x):
        return torch.as_strided(x, (2, 2), (1, 2), 0) + 1

    x = torch.arange(20.0)[10:]
    with pytest.warns(UserWarning, match="reaches memory around an input"):
        mine = compiled(function)(x)
    assert torch.equal(mine, function(x))
