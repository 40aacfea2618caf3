"""The judge, by hand: what is a difference, and what rounding alone may do."""

import torch

from scripts.fuzzing.case import Case, Input, Setting, Step, Storage
from scripts.fuzzing.judge import judge
from tests.fuzzing.cases import case_of, dense

NAN, INF = float("nan"), float("inf")
SQUARE = dense([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3))


def kinds(case, call):
    return sorted({difference.kind for difference in judge(case, call)})


def test_eager_itself_is_right():
    case = case_of([SQUARE], [("torch.softmax({0}, 1)", (0,)), ("{0} * 3", (1,))])
    assert kinds(case, case.function()) == []


def test_values():
    case = case_of([SQUARE], [("torch.tanh({0})", (0,))])
    assert kinds(case, lambda x: (torch.tanh(x) * (1 + 1e-7),)) == []
    assert kinds(case, lambda x: (torch.tanh(x) * (1 + 1e-5),)) == ["value"]
    assert kinds(case, lambda x: (torch.tanh(x).index_fill(0, torch.tensor(1), 0.5),)) == ["value"]


def test_a_half_type_is_rounded_once():
    case = case_of([dense([0.1, 0.7, 1.3], dtype=torch.bfloat16)], [("{0} * 1.1", (0,))])
    assert kinds(case, lambda x: ((x.float() * 1.1).bfloat16(),)) == []
    assert kinds(case, lambda x: ((x.float() * 1.15).bfloat16(),)) == ["value"]


def test_moved_elements_are_exact():
    case = case_of([SQUARE], [Step("{0}.flip((0,))", (0,))])
    assert kinds(case, lambda x: (x.flip((0,)) * (1 + 1e-5),)) == ["value"]
    assert kinds(case, lambda x: (x.clone(),)) == ["value"]


def test_whole_numbers_are_exact():
    case = case_of([dense([2**40, 3, -5], dtype=torch.int64)], [Step("{0} * 3", (0,))])
    assert kinds(case, lambda x: (x * 3 + (x == 3),)) == ["value"]


def test_type_shape_and_strides():
    case = case_of([SQUARE], [Step("{0} + 1", (0,))])
    assert kinds(case, lambda x: ((x + 1).double(),)) == ["dtype"]
    assert kinds(case, lambda x: ((x + 1)[None],)) == ["shape"]
    assert kinds(case, lambda x: ((x + 1).t().contiguous().t(),)) == ["strides"]
    assert kinds(case, lambda x: (x + 1, x + 1)) == ["structure"]


def test_strides_that_cannot_be_told_apart_do_not_count():
    case = case_of([dense([1.0, 2.0], (1, 2))], [Step("{0} + 1", (0,))])
    assert kinds(case, lambda x: ((x + 1).as_strided((1, 2), (77, 1)),)) == []


def test_aliases_and_mutations():
    view = case_of([SQUARE], [Step("{0}[1:]", (0,))])
    assert kinds(view, lambda x: (x[1:].clone(),)) == ["alias"]
    copy = case_of([SQUARE], [Step("{0}[1:].clone()", (0,))])
    assert kinds(copy, lambda x: (x[1:],)) == ["alias"]
    writes = case_of([SQUARE], [Step("{0}.mul_(2)", (0,), mutates=True), Step("{0} + 1", (1,))])
    assert kinds(writes, lambda x: (x * 2 + 1,)) == ["mutation"]
    assert kinds(writes, lambda x: (x.mul_(2) + 1,)) == []


def test_an_input_that_is_written_otherwise_is_a_value():
    writes = case_of([SQUARE], [Step("{0}.mul_(2)", (0,), mutates=True), Step("torch.zeros_like({0})", (1,))])
    assert kinds(writes, lambda x: (torch.zeros_like(x.mul_(3)),)) == ["value"]


def test_nan_infinity_and_the_sign_of_zero():
    case = case_of([dense([NAN, INF, -0.0, 1.0])], [("{0} * 1", (0,))])
    assert kinds(case, lambda x: (x.nan_to_num(0.0, INF),)) == ["pattern"]
    assert kinds(case, lambda x: (x.clamp(max=9.0),)) == ["pattern"]
    assert kinds(case, lambda x: (x + 0.0,)) == ["sign of zero"]


def test_exceptions():
    index = Step("torch.index_select({0}, 0, torch.tensor([7]))", (0,))
    wrong = case_of([SQUARE], [index])

    def other(x):
        raise TypeError("no")

    assert kinds(wrong, lambda x: (x,)) == ["no error"]
    assert kinds(wrong, other) == ["other error"]
    assert kinds(wrong, wrong.function()) == []
    assert kinds(case_of([SQUARE], [("{0} + 1", (0,))]), other) == ["error"]


# ---- where rounding decides -----------------------------------------------------------------------------------------


def cancelling():
    """Sums of large numbers that cancel: float32 keeps two digits of the result."""
    values = [1e6 + 0.37, -1e6, 3.1, 1e6, -1e6 + 0.11, 0.7]
    return case_of([dense(values)], [("{0} * 1.1", (0,)), ("{0}.sum()", (1,))])


def test_cancellation_is_no_false_alarm():
    case = cancelling()
    assert kinds(case, lambda x: ((x.double() * 1.1).sum().float(),)) == []
    assert kinds(case, lambda x: ((x * 1.1).flip((0,)).cumsum(0)[-1],)) == []


def test_cancellation_hides_no_fault_of_the_size_of_the_operands():
    assert kinds(cancelling(), lambda x: ((x[:5] * 1.1).sum() + 5,)) == ["value"]
    assert kinds(cancelling(), lambda x: (x.abs().sum() * 1.1,)) == ["value"]


def test_a_normalised_constant_row_is_all_rounding():
    case = case_of([dense([0.1] * 7, (1, 7))], [("{0} * 3.3", (0,)), ("F.layer_norm({0}, (7,), eps=0.0)", (1,))])
    assert "value" not in kinds(case, lambda x: (torch.nn.functional.layer_norm(x.double() * 3.3, (7,)).float(),))


def test_a_comparison_of_equal_roundings_may_go_either_way():
    steps = [("{0} * 0.1", (0,)), ("{0} / 10", (0,)), Step("{0} == {1}", (1, 2))]
    case = case_of([dense([3.0, 7.0])], steps)
    assert kinds(case, lambda x: (torch.tensor([True, False]),)) == []
    exact = case_of([dense([3.0, 7.0])], [Step("{0} == 3", (0,))])
    assert kinds(exact, lambda x: (torch.tensor([True, True]),)) == ["value"]


def test_a_half_type_may_overflow_later_than_eager():
    steps = [("{0} * 300", (0,)), ("{0} / 300", (1,))]
    case = case_of([dense([300.0], dtype=torch.float16)], steps)
    assert kinds(case, lambda x: (x.clone(),)) == []
    assert kinds(case, lambda x: (x * NAN,)) == ["pattern"]


def test_a_fault_in_one_of_many_elements_is_seen():
    values = [0.01 * number for number in range(512)]
    case = case_of([dense(values)], [("torch.exp({0})", (0,)), ("{0} - 1", (1,))])

    def one_off(x):
        result = torch.exp(x) - 1
        result[500] += 1e-2
        return (result,)

    assert kinds(case, one_off) == ["value"]
    assert kinds(case, lambda x: (torch.expm1(x),)) == []


def test_shared_memory_of_inputs_is_kept_for_the_reference():
    storage = Storage(torch.float32, (1.0, 2.0, 3.0))
    inputs = (Input(0, (2,), (1,)), Input(0, (2,), (1,), 1))
    steps = (Step("{0}.mul_(1.1)", (0,), rounds=True, mutates=True), Step("{0} * 3.3", (1,), rounds=True))
    case = Case((storage,), inputs, steps, (3,), Setting())
    assert kinds(case, case.function()) == []
    assert kinds(case, lambda x, y: (y * 3.3 + 0 * x.mul_(1.1),)) == ["value"]


def test_eager_may_multiply_and_add_at_once():
    """Its result then has an error of its own last place; that of a product rounded first, of the product's."""
    values = [dense([1.1234567]), dense([1.7654321]), dense([-1.1234567 * 1.7654321])]
    case = case_of(values, [("torch.addcmul({2}, {0}, {1})", (0, 1, 2))])
    assert kinds(case, lambda a, b, c: (c + a * b,)) == []
    assert kinds(case, lambda a, b, c: ((c.double() + a.double() * b.double()).float(),)) == []
    assert kinds(case, lambda a, b, c: (c + a * b * (1 + 1e-5),)) == ["value"]


def test_in_float64_eagers_own_rounding_is_no_truth():
    """The deviation of equal numbers is 0; eager's mean of them is off by a rounding, and so is its deviation."""
    equal = Case((Storage(torch.float64, (0.3719,)),), (Input(0, (33,), (0,)),), (Step("{0}.std()", (0,), True),), (1,))
    assert equal.function()(*equal.tensors())[0] > 0
    assert kinds(equal, lambda x: (torch.zeros((), dtype=torch.float64),)) == []
    assert kinds(equal, lambda x: (torch.full((), 1e-14, dtype=torch.float64),)) == ["value"]
