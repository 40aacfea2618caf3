"""The generator: one case for one seed, every family of steps, and programs that print as they run."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch

from scripts.fuzzing.draw import Draw, NoOperand
from scripts.fuzzing.generate import generate
from scripts.fuzzing.operations import PROPOSALS

MANY = range(150)


@pytest.fixture(scope="module")
def cases():
    return [generate(5, number) for number in MANY]


def same(one, two):
    """Equal tensors, bit for bit, in values, type and layout."""
    assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())
    assert torch.equal(one.isnan(), two.isnan())
    assert torch.equal(one.nan_to_num(0), two.nan_to_num(0))
    if one.is_floating_point():
        assert torch.equal(torch.signbit(one), torch.signbit(two))


def test_a_seed_gives_the_same_case_whatever_was_generated_before(cases):
    for number in reversed(MANY[::10]):
        assert generate(5, number).text() == cases[number].text()
    assert generate(6, 0).text() != cases[0].text()


def test_cases_run_in_eager_unless_the_last_step_raises_on_values(cases):
    for case in cases:
        try:
            values = case.run(case.tensors())
        except (IndexError, RuntimeError):
            case_before = case.run.__func__(type(case)(case.storages, case.inputs, case.steps[:-1], ()), case.tensors())
            assert len(case_before) == len(case.inputs) + len(case.steps) - 1
            continue
        assert all(isinstance(value, torch.Tensor) for value in values)


def test_printed_programs_give_what_the_steps_give(cases):
    for case in cases:
        scope = {"__name__": "printed"}
        exec(case.text(), scope)
        for mine, printed in zip(case.tensors(), scope["inputs"](), strict=True):
            same(mine, printed)
        with torch.no_grad():
            try:
                values = case.run(case.tensors())
            except (IndexError, RuntimeError) as error:
                with pytest.raises(type(error)):
                    scope["program"](*scope["inputs"]())
                continue
            outputs = scope["program"](*scope["inputs"]())
        for number, printed in zip(case.outputs, outputs, strict=True):
            same(values[number], printed)


def test_a_printed_program_runs_by_itself(tmp_path, cases):
    case = next(case for case in cases if len(case.steps) == 2 and case.setting.schedule is None)
    path = tmp_path / "program.py"
    path.write_text(case.text())
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("eager\n")
    assert "torchweld\n" in done.stdout


def test_what_the_fuzzer_draws_is_varied(cases):
    """Each of these is among 150 cases, or a whole kind of fault would go unseen."""
    seen = collections.Counter()
    for case in cases:
        seen.update(str(storage.dtype) for storage in case.storages)
        seen[f"fusion={case.setting.fusion}"] += 1
        seen["mutation"] += any(step.mutates for step in case.steps)
        seen["shared input"] += len(case.storages) < len(case.inputs)
        seen["0-dim"] += any(each.shape == () for each in case.inputs)
        seen["empty"] += any(0 in each.shape for each in case.inputs)
        seen["expanded"] += any(0 in each.strides and each.shape for each in case.inputs)
        seen["several outputs"] += len(case.outputs) > 1
        seen["NaN"] += any(value != value for storage in case.storages for value in storage.values)
        seen["schedule"] += case.setting.schedule is not None
    dtypes = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
    settings = ("none", "default", "aggressive")
    wanted = {f"torch.{dtype}" for dtype in dtypes} | {f"fusion={name}" for name in settings}
    wanted |= {"mutation", "shared input", "0-dim", "empty", "expanded", "several outputs", "NaN", "schedule"}
    assert not {name for name in wanted if not seen[name]}


def test_every_proposal_is_taken_up_by_eager_at_some_time():
    from random import Random

    from scripts.fuzzing.draw import Draw, NoOperand
    from scripts.fuzzing.generate import _tried

    pools = [[torch.randn(shape), torch.randn(shape), torch.ones(shape).bool(), torch.arange(6).reshape(2, 3)]
             for shape in ((4, 4), (2, 4, 4), (1, 2, 4, 4), (4,))]  # fmt: skip
    for pool in pools:
        pool += [torch.randn(4), torch.randn(4), torch.randn(2, 2, 2, 2)]
    for propose in PROPOSALS:
        taken = False
        for attempt in range(300):
            draw = Draw(Random(attempt), [tensor.clone() for tensor in pools[attempt % 4]], False, False)
            try:
                result, _ = _tried(propose(draw), draw.values)
            except NoOperand:
                continue
            taken |= result is not None
        assert taken, propose.__name__


def test_what_is_written_to_distinct_places_has_distinct_indices():
    """Of two values for one place, either may stay on CUDA."""
    draw = Draw(Random(1), [torch.zeros(4)], special=False, faulty=False)
    for _ in range(50):
        found = re.search(r"\[(.*?)\]", draw.indices([3], 4, distinct=True)).group(1).split(", ")
        assert len(set(found)) == 3
    with pytest.raises(NoOperand):
        draw.indices([5], 4, distinct=True)
