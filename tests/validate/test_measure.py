"""Error numbers against arithmetic by hand."""

import pytest
import torch

from stages.validate.measure import errors_of, pattern_differs


def test_errors_by_hand():
    errors = errors_of(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert errors.relative_error == pytest.approx(0.5 / 5)
    assert errors.peak_error == pytest.approx(0.5 / 4)
    assert errors.absolute_error == 0.5
    # The root mean square of (3, 4) is 3.54; the unit of float32 at 4 is 2^2 * 2^-23.
    assert errors.ulp_error == pytest.approx(0.5 / (4 * 2**-23))


def test_one_ulp_is_one():
    one = torch.tensor([1.0], dtype=torch.bfloat16)
    assert errors_of(one + 2**-7, torch.ones(1, dtype=torch.float64)).ulp_error == pytest.approx(1.0)


def test_a_zero_reference_gives_absolute_errors():
    errors = errors_of(torch.tensor([0.0, 0.25]), torch.zeros(2, dtype=torch.float64))
    assert errors.relative_error == errors.peak_error == 0.25


def test_elements_that_are_not_finite_do_not_count():
    errors = errors_of(torch.tensor([1.0, torch.inf, torch.nan]), torch.ones(3, dtype=torch.float64))
    assert errors.relative_error == 0.0


def test_complex_numbers_count_by_their_parts():
    errors = errors_of(torch.tensor([3 + 4j]), torch.tensor([3 + 3j], dtype=torch.complex128))
    assert errors.absolute_error == 1.0 and errors.relative_error == pytest.approx(1 / 18**0.5)


def test_patterns():
    a = torch.tensor([torch.nan, torch.inf, 1.0])
    assert pattern_differs(a, a.clone()) == ""
    assert pattern_differs(a, torch.tensor([torch.nan, -torch.inf, 1.0])).startswith("+inf at 1 elements, eager has 0")
