"""Operations of the library that become kernels: what is put before the judge, and what follows from its verdicts."""

from __future__ import annotations

import pytest
import torch

from stages.fusion import run
from stages.fusion.explain import explain
from stages.ir.contest import Contest, Verdict
from stages.ir.errors import ConfigError
from stages.ir.matmul import matmul_of
from stages.ir.program import Extern, Launch
from stages.ir.schedule import Schedule
from tests.fusion.helpers import compare, config, graph_of
from tests.lowering.samples import randn

CHOSEN = Schedule(tile_m=64, tile_n=32, tile_k=128)


class Judge:
    """Decides by `wins(contest)`, and keeps what it was shown."""

    def __init__(self, wins=lambda contest: True):
        self.wins, self.shown = wins, []

    def __call__(self, contests):
        self.shown.append(list(contests))
        return [Verdict(CHOSEN if self.wins(contest) else None, "1 µs against 2 µs") for contest in contests]


def templated(function, judge, *inputs, **changes):
    """The program of `function` with templates tried on the CPU, and checked against eager by the interpreter."""
    template = {"name": "t", "operators": ["mm", "addmm", "bmm", "baddbmm"], "devices": ["cpu"]}
    template |= {"types": ["float32", "bfloat16"], "producers": ["pointwise"], "consumers": ["pointwise"], **changes}
    program = run(graph_of(function, *inputs), config(templates=[template], library_epilogues=[]), judge)
    compare(program, function, inputs)
    return program


def kernels(contest: Contest) -> list[str]:
    """The library's side: operations by name, and kernels."""
    return [step.kernel.name if isinstance(step, Launch) else str(step.target) for step in contest.library]


def linear_gelu(x, w, b):
    return torch.nn.functional.gelu(torch.addmm(b, x, w))


INPUTS = (randn(6, 8), randn(8, 10, seed=1), randn(10, seed=2))


def test_a_product_takes_its_epilogue_along():
    judge = Judge()
    program = templated(linear_gelu, judge, *INPUTS)
    (launch,) = program.steps
    assert launch.schedule == CHOSEN and matmul_of(launch.kernel) is not None
    assert launch.kernel.name == "addmm_gelu_0"
    ((contest,),) = judge.shown
    assert kernels(contest) == ["aten.addmm.out", "gelu_0"]
    assert contest.template.kernel.hash == launch.kernel.hash
    (decision,) = [decision for decision in program.decisions if decision.fused]
    assert decision.bytes_saved == 2 * 6 * 10 * 4, "the product is neither written nor read"


def test_a_bias_that_is_added_after_a_product_goes_along_and_counts_against_the_library():
    """What the rewrite `peel_linear_bias` makes of a linear layer."""

    def peeled(x, w, b):
        return torch.nn.functional.gelu(torch.mm(x, w) + b)

    judge = Judge(lambda contest: len(contest.library) == 2)
    (launch,) = templated(peeled, judge, *INPUTS).steps
    assert launch.schedule == CHOSEN and launch.kernel.name == "mm_add_gelu_0"
    assert [kernels(contest) for (contest,) in judge.shown] == [["aten.mm.out", "add_gelu_0"]]
    judge = Judge(lambda contest: False)
    templated(peeled, judge, *INPUTS)
    assert [kernels(contest) for (contest,) in judge.shown] == [["aten.mm.out", "add_gelu_0"], ["aten.mm.out"]]


def test_a_product_that_loses_stays_with_the_library_and_says_so():
    judge = Judge(lambda contest: False)
    program = templated(linear_gelu, judge, *INPUTS)
    assert [type(step) for step in program.steps] == [Extern, Launch]
    assert [len(shown) for shown in judge.shown] == [1, 1], "first with its epilogue, then alone"
    assert "left to torch's library: 1 µs against 2 µs" in explain(program)


def test_alone_it_may_win_where_its_epilogue_does_not_fit():
    judge = Judge(lambda contest: len(contest.library) == 1)
    program = templated(linear_gelu, judge, *INPUTS)
    assert [step.kernel.name for step in program.steps] == ["addmm_0", "gelu_1"]
    assert program.steps[1].schedule is None


def test_without_a_judge_nothing_is_tried():
    program = templated(linear_gelu, None, *INPUTS)
    assert isinstance(program.steps[0], Extern)


def test_equal_layers_are_judged_once():
    def layers(x, w, b):
        for _ in range(3):
            x = torch.relu(torch.addmm(b, x, w))
        return x

    judge = Judge()
    program = templated(layers, judge, randn(6, 8), randn(8, 8, seed=1), randn(8, seed=2))
    assert [len(shown) for shown in judge.shown] == [2], (
        "the first reads the user's input, the others what was computed"
    )
    assert len(program.steps) == 3 and len({step.kernel.hash for step in program.steps}) == 1


def test_a_producer_of_one_operand_is_computed_in_the_loads():
    def scaled(x, w):
        return torch.mm(x * 2 + 1, w)

    program = templated(scaled, Judge(), *INPUTS[:2])
    assert [step.kernel.name for step in program.steps] == ["mul_add_mm_0"]


def test_a_producer_that_others_read_stays():
    def both(x, w):
        y = x * 2 + 1
        return torch.mm(y, w), y

    program = templated(both, Judge(), *INPUTS[:2])
    assert [matmul_of(step.kernel) is not None for step in program.steps] == [False, True]


def test_a_residual_and_a_second_reader():
    def residual(x, w, r):
        y = torch.mm(x, w)
        return y + r, y.cumsum(1)

    program = templated(residual, Judge(), randn(6, 8), randn(8, 10, seed=1), randn(6, 10, seed=2))
    product = next(step for step in program.steps if matmul_of(step.kernel) is not None)
    assert len(product.kernel.outputs) == 2, "another operation reads the product itself"


def test_batches_scales_and_strided_operands():
    def attend(q, k, mask):
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), beta=2, alpha=0.5)
        return torch.bmm(scores * 3, k)

    program = templated(attend, Judge(), randn(2, 5, 4), randn(2, 7, 4, seed=1), randn(2, 5, 7, seed=2))
    assert all(isinstance(step, Launch) and step.schedule == CHOSEN for step in program.steps)


def test_a_reduction_is_no_epilogue():
    def softmax(x, w):
        return torch.softmax(torch.mm(x, w), 1)

    judge = Judge()
    program = templated(softmax, judge, *INPUTS[:2])
    assert [len(contest.library) for (contest,) in judge.shown] == [1]
    assert len(program.steps) == 2


def test_a_vector_is_no_product_and_says_so():
    program = templated(torch.mm, Judge(), randn(1, 8), randn(8, 10))
    assert isinstance(program.steps[0], Extern)
    assert any("product with a vector" in decision.reason for decision in program.decisions)


def test_half_operands_are_rounded_before_they_are_multiplied():
    def scaled(x, w):
        return torch.mm(x * 3.14159, w)

    inputs = [tensor.to(torch.bfloat16) for tensor in INPUTS[:2]]
    program = templated(scaled, Judge(), *inputs)
    product = matmul_of(program.steps[0].kernel)
    assert product is not None and product.first.dtype.torch is torch.bfloat16


def test_a_type_that_the_template_does_not_name_is_left_alone():
    program = templated(torch.mm, Judge(), *INPUTS[:2], types=["bfloat16"])
    assert isinstance(program.steps[0], Extern)
    assert any("it multiplies float32; template 't' takes bfloat16" in each.reason for each in program.decisions)


def test_products_in_tf32_are_left_to_the_library():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        program = templated(torch.mm, Judge(), *INPUTS[:2])
    finally:
        torch.set_float32_matmul_precision(before)
    assert isinstance(program.steps[0], Extern)
    assert any("TF32" in decision.reason for decision in program.decisions)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"operators": ["conv"]}, "operators"),
        ({"types": ["float64"]}, "types"),
        ({"devices": ["tpu"]}, "devices"),
        ({"consumers": ["reduction"]}, "t]"),
    ],
)
def test_bad_templates_are_named(values, key):
    with pytest.raises(ConfigError) as caught:
        config(templates=[{"name": "t", "operators": ["mm"], **values}])
    assert key in caught.value.key
