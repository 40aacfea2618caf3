"""Which groups are made, which are refused and why, and the bytes, counted by hand."""

import torch
from torch.nn import functional as F

from stages.fusion import run
from stages.fusion.config import Rule
from stages.fusion.cost import program_traffic
from stages.fusion.explain import explain
from tests.fusion.helpers import check, compare, config, fused, graph_of

FLOAT = 4


def reasons(program):
    return {(each.producer, each.consumer): each.reason for each in program.decisions if not each.fused}


def test_bytes_of_a_chain_by_hand():
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    program = check(lambda x, y: torch.relu(x * 2 + y), x, y)
    # mul: 1 read, 1 written; add: 2 and 1; relu: 1 and 1; fused: x and y read, the result written.
    assert program.traffic_unfused == 7 * 24 * FLOAT
    assert program_traffic(program) == 3 * 24 * FLOAT
    saved = [each.bytes_saved for each in program.decisions if each.fused]
    assert sum(saved) == 4 * 24 * FLOAT


def test_bytes_of_a_product_count_its_tensors():
    program = check(lambda x, w: (x @ w).relu(), torch.randn(3, 4), torch.randn(4, 5))
    assert program_traffic(program) == (3 * 4 + 4 * 5 + 15 + 15 + 15) * FLOAT == program.traffic_unfused


def test_without_fusion_every_operation_is_a_launch_and_costs_the_same():
    program = check(lambda x: torch.full((4, 6), 2.0) * x.view(4, 6).t().t() + x, torch.randn(4, 6), name="none")
    assert [launch.label for launch in program.launches] == ["full", "mul", "add"]
    assert program_traffic(program) == program.traffic_unfused


def test_a_group_never_has_a_path_through_an_extern():
    program = check(lambda x, w: (lambda a: a + a @ w)(x.exp()), torch.randn(4, 4), torch.randn(4, 4))
    assert [step.label for step in program.steps] == ["exp", "mm", "add"]
    assert reasons(program) == {("exp", "add"): "mm would have to run between them"}


def test_a_group_never_has_a_path_through_another_group():
    def function(x, w):
        a = x.exp()
        return (a @ w).tanh() * a.sum(0) + a

    program = check(function, torch.randn(4, 4), torch.randn(4, 4))
    written = set()
    for step in program.steps:
        assert all(name in written or program.buffers[name].role == "user" for name in step.reads)
        written.update(step.writes)


def test_reductions_of_different_rows_stay_apart():
    program = check(lambda x: x.sum(1).exp().sum(0), torch.randn(4, 6))
    assert len(program.launches) == 2
    (reason,) = reasons(program).values()
    assert "they reduce different rows: a reduction over 4 rows of 6, a reduction over 1 rows of 4" in reason


def test_rows_of_one_size_in_other_places_are_refused_by_lowering():
    program = check(lambda x: x.softmax(1).sum(0), torch.randn(5, 5))
    assert len(program.launches) == 2
    (reason,) = reasons(program).values()
    assert "softmax" in reason


def test_a_cheap_value_with_many_readers_is_computed_in_each():
    def function(x, mask):
        bias = (mask * 2).reshape(1, 1, 6)
        first = (x + bias).softmax(-1)
        return (first @ first.transpose(1, 2) + bias).softmax(-1)

    program = check(function, torch.randn(2, 6, 6), torch.randn(6))
    assert len(program.launches) == 2
    assert sum(each.reason.startswith("computed in place") for each in program.decisions) == 2
    assert all("mul" in launch.label for launch in program.launches)


def test_an_expensive_value_with_many_readers_is_stored_once():
    def function(x, table):
        angle = table.sin().cos().exp().tanh().reshape(1, 1, 6)
        first = (x * angle).softmax(-1)
        return (first @ first.transpose(1, 2) * angle).softmax(-1)

    program = check(function, torch.randn(2, 6, 6), torch.randn(6))
    assert sum("sin" in launch.label for launch in program.launches) == 1
    assert any("operations would be computed again" in reason for reason in reasons(program).values())


def test_several_readers_in_one_group_share_one_store():
    program = check(lambda x, w: (lambda a: (a @ w, a * 2, a.sum(-1)))(x + 1), torch.randn(4, 6), torch.randn(6, 3))
    (launch,) = program.launches
    assert len(launch.writes) == 3
    assert program_traffic(program) == (24 + 24 + 24 + 4) * FLOAT + (24 + 18 + 12) * FLOAT


def test_siblings_are_fused_where_that_saves_enough():
    x = torch.randn(4, 6)
    both = lambda x: (x.exp(), x.sin())  # noqa: E731
    (launch,) = check(both, x).launches
    assert launch.kernel.name == "exp_sin_0"
    only_vertical = [rule for rule in config().rules if not rule.siblings]
    greedy = Rule("siblings", ["pointwise"], siblings=["pointwise"], min_share=0.26)
    # Apart: 4 tensors of 24 elements; together 3: a share of 0.25 is saved.
    program = run(graph_of(both, x), config(rules=[*only_vertical, greedy]))
    assert len(program.launches) == 2
    assert len(run(graph_of(both, x), config(rules=[greedy], max_ops=1)).launches) == 2


def test_siblings_with_a_path_between_them_stay_apart():
    def function(x, w):
        return x.exp(), (x.exp() @ w) * x

    program = check(function, torch.randn(4, 4), torch.randn(4, 4))
    labels = [launch.label for launch in program.launches]
    assert not any("exp" in label and "mul" in label for label in labels)


def test_limits_are_kept_and_named():
    def chain(x):
        for _ in range(9):
            x = (x + 1).relu()
        return x

    x = torch.randn(5)
    program = check(chain, x, max_ops=4)
    assert all(launch.label.count(",") < 4 for launch in program.launches) and len(program.launches) >= 5
    assert any("fusion.max_ops is 4" in reason for reason in reasons(program).values())
    tensors = [torch.randn(5) for _ in range(6)]
    program = check(lambda *t: t[0] + t[1] + t[2] + t[3] + t[4] + t[5], *tensors, max_inputs=3)
    assert all(len(launch.kernel.inputs) <= 3 for launch in program.launches)
    assert any("fusion.max_inputs is 3" in reason for reason in reasons(program).values())


def test_long_rows_are_refused_by_the_rule():
    rules = [Rule("prologue", ["reduction"], ["pointwise"], relations=["row"], max_row=10)]
    program = fused(lambda x: (x * 2).sum(1), torch.randn(2, 11), rules=rules)
    assert "a row has 11 elements; rule 'prologue' allows 10" in reasons(program).values()
    assert len(fused(lambda x: (x * 2).sum(1), torch.randn(2, 10), rules=rules).launches) == 1


def test_equal_layers_are_equal_kernels_with_names_of_their_own():
    def layers(x, w):
        for _ in range(4):
            x = F.layer_norm(x + (x @ w).relu(), (8,))
        return x

    program = check(layers, torch.randn(3, 8), torch.randn(8, 8))
    assert len({launch.kernel.hash for launch in program.launches}) == 1
    assert [launch.kernel.name for launch in program.launches] == [
        f"relu_add_layer_norm_{number}" for number in range(4)
    ]


def test_casts_between_fused_operations_round_only_if_told():
    x = torch.randn(64).bfloat16()
    chain = lambda x: (x * 1.1) * 1.3 + x  # noqa: E731
    exact = fused(chain, x, emulate_precision_casts=True)
    compare(exact, chain, [x])
    from tests.fusion.helpers import Machine

    emulated, plain = (Machine(program, [x]).run()[0] for program in (exact, fused(chain, x)))
    assert torch.equal(emulated, chain(x)) and not torch.equal(plain, chain(x))


def test_explain_names_kernels_reasons_source_lines_and_bytes():
    graph = graph_of(lambda x, w: (lambda a: a + a @ w)(x.exp() * 2), torch.randn(4, 4), torch.randn(4, 4))
    for number, node in enumerate(graph.module.graph.nodes):
        node.meta["stack_trace"] = f'  File "model.py", line {number}, in forward\n    y = {node.name}(x)'
    text = explain(run(graph, config()))
    assert "2 kernels, 1 operation left to torch" in text
    # exp, mul and add move 2, 2 and 3 tensors of 64 bytes, mm 3; exp and mul in one kernel move 2 instead of 4.
    assert "640 bytes moved with one kernel an operation, 512 as fused" in text
    assert "exp_mul_0: exp, mul (128 bytes)\n    model.py:2  y = exp(x)\n    model.py:3  y = mul(x)" in text
    assert "exp -> mul by 'pointwise chain', saves 128 bytes" in text
    assert "mul -> add: mm would have to run between them  # model.py:5" in text
    assert "aten.mm.out: a matrix product is left to torch's library  # model.py:4" in text
