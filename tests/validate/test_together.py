"""Outputs of few numbers: luck passes, faults do not. Errors are made by hand, so the float64 result is known."""

import pytest
import torch

from stages.validate import Floor, ValidateConfig, run
from stages.validate.observe import observe
from stages.validate.reference import Reference

CONFIG = ValidateConfig(floors={"fp32": Floor(0.0, 0.0)})
ERROR = 1e-4
COUNT = CONFIG.few_sets


def inputs_of(number):
    return (torch.tensor([float(number)]),), {}


def exact(size):
    def call(number):
        generator = torch.Generator().manual_seed(int(number))
        return torch.randn(size, generator=generator, dtype=torch.float64)

    return call


def rounding(size, trial, who, times=lambda number: 1.0):
    """The exact result with normal errors of ERROR, `times` as large in each set."""

    def call(number):
        generator = torch.Generator().manual_seed(1000 * trial + 2 * int(number) + who)
        error = ERROR * times(int(number)) * torch.randn(size, generator=generator, dtype=torch.float64)
        return (exact(size)(number) + error).float()

    return call


def validate(size, trial, times=lambda number: 1.0, more=inputs_of, candidate=None):
    def reference(sets):
        return Reference(tuple(observe(exact(size), each, {}, 0) for each in sets))

    sets = [inputs_of(number) for number in range(CONFIG.input_sets)]
    candidate = candidate or rounding(size, trial, 1, times)
    return run(candidate, rounding(size, trial, 0), reference, sets, CONFIG, more=more)


@pytest.mark.parametrize("size", [(1, 1), (2,), (3,)])
def test_equal_errors_pass_over_many_sets_though_a_set_fails(size):
    by_set = [validate(size, trial, more=None) for trial in range(20)]
    assert not all(result.passed for result in by_set)
    results = [validate(size, trial) for trial in range(20)]
    assert all(result.passed for result in results), [result.reasons for result in results if not result.passed]
    judged = next(result for result, alone in zip(results, by_set, strict=True) if not alone.passed)
    assert judged.input_sets == COUNT and "few numbers" in judged.notes[-1]
    assert [(check.input_set, check.shape) for check in judged.checks] == [(None, (COUNT, *size))]
    # Where every set passes, three are enough.
    assert all(result.input_sets == 3 for result, alone in zip(results, by_set, strict=True) if alone.passed)


@pytest.mark.parametrize("size", [(1, 1), (2,), (16,)])
def test_ten_times_eagers_error_fails(size):
    results = [validate(size, trial, lambda number: 10.0) for trial in range(20)]
    assert not any(result.passed for result in results)
    assert "all 16 input sets, output: relative error" in results[0].reasons[0]


@pytest.mark.parametrize("size", [(2,), (16,)])
def test_a_fault_in_one_set_fails(size):
    results = [validate(size, trial, lambda number: 50.0 if number == 1 else 1.0) for trial in range(20)]
    assert not any(result.passed for result in results)


def test_a_fault_in_a_set_of_small_values_is_not_hidden_by_large_ones():
    """Values from 1e-12 to 1e18; the small ones are wrong by half."""

    def scaled(call):
        return lambda number: call(number) * 100.0 ** (int(number) % 16 - 6)

    def half_wrong(number):
        value = scaled(rounding((1,), 0, 1))(number)
        return torch.where(value.abs() < 1e-3, value * 1.5, value)

    def reference(sets):
        return Reference(tuple(observe(scaled(exact((1,))), each, {}, 0) for each in sets))

    sets = [inputs_of(number) for number in range(CONFIG.input_sets)]
    result = run(half_wrong, scaled(rounding((1,), 0, 0)), reference, sets, CONFIG, more=inputs_of)
    assert not result.passed and result.input_sets == COUNT
    assert "all 16 input sets" in result.reasons[0]


def test_an_output_of_many_numbers_is_judged_set_by_set():
    result = validate((1000,), 0, lambda number: 2.5 if number == 1 else 0.5)
    assert not result.passed and result.input_sets == 3
    assert result.reasons[0].startswith("input set 1, output: relative error")


def test_what_is_wrong_otherwise_is_wrong_in_one_set():
    def nan_in(number):
        value = rounding((2,), 0, 1, lambda number: 10.0)(number)
        return value * torch.nan if int(number) == 1 else value

    result = validate((2,), 0, candidate=nan_in)
    assert not result.passed and any("input set 1, output: NaN at 2 elements" in reason for reason in result.reasons)


def test_the_sets_that_are_added_are_judged_in_every_respect():
    def wide_in(number):
        value = rounding((2,), 0, 1, lambda number: 10.0)(number)
        return value.double() if int(number) == 9 else value

    reasons = validate((2,), 0, candidate=wide_in).reasons
    assert any("input set 9, output: it is float64, eager gives float32" in reason for reason in reasons)
