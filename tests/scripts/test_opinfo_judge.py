"""The judge of scripts/opinfo, by results made by hand: what it lets pass, and what it does not."""

from __future__ import annotations

import math
import re

import pytest
import torch

from scripts.operators.judge import differences

ONE = torch.ones(3)
EPS = torch.finfo(torch.float32).eps


def judged(got, eager, truth=None, **options):
    return differences(got, eager, lambda: eager if truth is None else truth, **options)


@pytest.mark.parametrize(
    ("got", "eager", "words"),
    [
        (ONE.double(), ONE, "dtype is torch.float64, eager's is torch.float32"),
        (ONE[:2], ONE, r"shape is \(2,\), eager's is \(3,\)"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), r"strides are \(3, 1\), eager's are \(1, 2\)"),
        (1, 1.0, "a int, eager gives a float"),
        ((ONE,), [ONE], "it gives .* eager"),
        ((ONE, ONE), (ONE, ONE[:1]), "output 1: its shape"),
        (3, 4, "it is 3, eager gives 4"),
    ],
)
def test_another_layout_differs(got, eager, words):
    (reason,) = judged(got, eager)
    assert re.search(words, reason)


def test_what_nobody_wrote_has_a_layout_and_no_values():
    assert judged((ONE, ONE), (ONE, ONE * 2), unwritten=(1,)) == []
    assert len(judged((ONE * 2, ONE), (ONE, ONE * 2), unwritten=(1,))) == 1
    assert len(judged((ONE, ONE[:1]), (ONE, ONE * 2), unwritten=(1,))) == 1


def test_strides_that_no_index_can_tell_apart_agree():
    got, eager = torch.ones(1, 3), torch.ones(3, 1).t()
    assert got.stride() != eager.stride()
    assert not judged(got, eager)
    assert not judged(torch.empty(0, 3), torch.empty(3, 0).t())


def test_whole_numbers_and_bools_are_equal_or_differ():
    assert not judged(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert "1 of 2 elements, first [1]: 3, eager 2" in judged(torch.tensor([1, 3]), torch.tensor([1, 2]))[0]
    assert judged(torch.tensor([True]), torch.tensor([False]))


def test_a_whole_number_may_be_the_one_that_float64_gives():
    """Where eager's rounding decides a comparison or a floor the other way."""
    assert not judged(torch.tensor([3]), torch.tensor([2]), torch.tensor([3]))


def test_a_float_may_be_off_by_the_floor_and_no_more():
    assert not judged(ONE * (1 + 4 * EPS), ONE)
    assert "off by 6 ulp of the 4 allowed" in judged(ONE * (1 + 6 * EPS), ONE)[0]
    assert not judged(ONE.bfloat16() * (1 + 2**-7), ONE.bfloat16())
    assert judged(ONE.bfloat16() * (1 + 2**-6), ONE.bfloat16())


def test_a_float_may_be_off_by_twice_what_eager_is():
    truth = ONE.double() * (1 + 10 * EPS)  # eager is off by 10 units
    assert not judged(ONE * (1 - 12 * EPS), ONE, truth)  # 22 of 20 + 4
    assert judged(ONE * (1 - 16 * EPS), ONE, truth)


def test_each_element_counts_in_its_own_unit():
    eager = torch.tensor([1e6, 1e-6])
    assert judged(eager + torch.tensor([0.0, 1e-9]), eager)


def test_in_float64_the_unit_is_the_largest_numbers():
    """Eager itself is the reference then, and has cancelled numbers of that size on the way to the small ones."""
    eager = torch.tensor([-10.0, -1e-4], dtype=torch.float64)
    assert not judged(eager + torch.tensor([0.0, 4e-16], dtype=torch.float64), eager)
    assert judged(eager + torch.tensor([0.0, 1e-14], dtype=torch.float64), eager)


def test_what_the_rounding_of_the_inputs_would_do_is_no_fault():
    near = [torch.tensor([1.0 + 50 * EPS], dtype=torch.float64)]
    got, eager = torch.tensor([1 + 60 * EPS]), torch.tensor([1.0])
    assert judged(got, eager)
    assert not judged(got, eager, spread=lambda: near)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values_are_eagers(special):
    eager = torch.tensor([special, 1.0])
    assert not judged(eager.clone(), eager)
    assert "special values" in judged(torch.tensor([7.0, 1.0]), eager)[0]
    assert "special values" in judged(eager, torch.tensor([7.0, 1.0]))[0]


def test_the_sign_of_a_zero_counts():
    assert judged(torch.tensor([-0.0]), torch.tensor([0.0]))
    assert judged(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_half_type_that_overflows_in_eager_alone_is_no_fault():
    eager, truth = torch.tensor([math.inf]).half(), torch.tensor([100.0], dtype=torch.float64)
    assert not judged(torch.tensor([100.0]).half(), eager, truth)
    assert judged(torch.tensor([math.nan]).half(), eager, truth)


def test_complex_numbers_are_judged_by_their_distance():
    eager = torch.tensor([1e4 + 1e-4j])
    assert not judged(torch.tensor([1e4 + 2e-4j]), eager)
    assert judged(torch.tensor([1.0001e4 + 1e-4j]), eager)
    assert judged(torch.tensor([complex(math.nan, 0)]), eager)


def test_a_conjugate_view_is_its_value():
    value = torch.tensor([1 + 2j])
    assert not judged(torch.tensor([1 - 2j]), value.conj())


def test_values_of_random_numbers_do_not_count_and_their_layout_does():
    assert not judged(ONE * 2, ONE, values=False)
    assert judged(ONE[:2], ONE, values=False)


def test_without_a_float64_result_eager_is_the_measure():
    def refuse():
        raise NotImplementedError

    assert not differences(ONE * (1 + 4 * EPS), ONE, refuse)
    assert differences(ONE * (1 + 6 * EPS), ONE, refuse)
