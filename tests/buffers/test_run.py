"""Plans of programs: live ranges and sharing by hand, random programs run in the memory that was planned for them."""

import dataclasses
import random
import xml.etree.ElementTree as xml

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import buffers
from stages.buffers import BuffersConfig
from stages.buffers.live_ranges import LiveRange, live_ranges
from stages.buffers.picture import picture
from stages.buffers.planners import STRATEGIES
from stages.buffers.verify import verify
from stages.ir.errors import ConfigError
from stages.ir.kernel import IRError
from stages.ir.program import Extern, Launch, TensorRef
from stages.ir.program import verify as verify_program
from tests.buffers.programs import add_kernel, launch, program, scale_kernel, shift_kernel, whole


def chain():
    """x -> a -> b -> c -> out, every kernel able to work in place; d is written by an extern, twice."""
    steps = [
        launch(scale_kernel(16, 2.0), "x", "a"),
        launch(shift_kernel(4, 4), "a", "b"),
        Extern(print, (whole("b", 16),), {}, (whole("d", 8),)),
        launch(scale_kernel(16, 3.0), "b", "c"),
        Extern(print, (whole("d", 8),), {}, (TensorRef("d", (4,), (2,)),)),
        launch(add_kernel(16), "c", "x", "out"),
    ]
    roles = [("x", "user", 16), *((name, "arena", 16) for name in "abc"), ("d", "arena", 8), ("out", "output", 16)]
    return program(roles, steps, [whole("out", 16)])


def test_live_ranges_by_hand():
    assert live_ranges(chain()) == {
        "a": LiveRange(0, 1, 64),
        "b": LiveRange(1, 3, 64),
        "d": LiveRange(2, 4, 32),
        "c": LiveRange(3, 5, 64),
    }


def test_a_returned_intermediate_lives_to_the_end():
    base = chain()
    returned = dataclasses.replace(base, outputs=(whole("a", 16),))
    assert live_ranges(returned)["a"] == LiveRange(0, len(base.steps), 64)


@pytest.mark.parametrize(
    ("strategy", "size"),
    [("none", 256), ("inplace", 128), ("greedy_by_size", 128), ("greedy_by_breadth", 128), ("best", 128)],
)
def test_a_chain_needs_one_buffer_in_place(strategy, size):
    """a, b, c in one place and d, 32 bytes rounded up to 64, beside them; apart, four times 64."""
    plan = buffers.run(chain(), BuffersConfig(strategy)).plan
    assert (plan.size, plan.lower_bound, plan.unshared, plan.strategy) == (size, 128, 256, strategy)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (launch(add_kernel(16), "a", "a", "b"), "the input is passed twice"),
        (launch(add_kernel(16, flipped=True), "x", "a", "b"), "the input is read at other positions"),
        (Extern(print, (whole("a", 16),), {}, (whole("b", 16),)), "an operator promises nothing"),
    ],
)
def test_no_sharing_in_place_where(step, reason):
    steps = [launch(scale_kernel(16, 2.0), "x", "a"), step, launch(scale_kernel(16, 2.0), "b", "out")]
    roles = [("x", "user", 16), ("a", "arena", 16), ("b", "arena", 16), ("out", "output", 16)]
    planned = buffers.run(program(roles, steps, [whole("out", 16)]), BuffersConfig("best"))
    assert planned.plan.size == 128, reason


def test_no_sharing_in_place_with_an_input_that_is_read_again():
    steps = [
        launch(scale_kernel(16, 2.0), "x", "a"),
        launch(scale_kernel(16, 2.0), "a", "b"),
        launch(add_kernel(16), "a", "b", "out"),
    ]
    roles = [("x", "user", 16), ("a", "arena", 16), ("b", "arena", 16), ("out", "output", 16)]
    assert buffers.run(program(roles, steps, [whole("out", 16)]), BuffersConfig("inplace")).plan.size == 128


def test_offsets_are_aligned_to_the_device():
    import torch

    on_gpu = dataclasses.replace(chain(), device=torch.device("cuda"))
    planned = buffers.run(on_gpu, BuffersConfig("none"))
    assert [planned.buffers[name].offset for name in "abdc"] == [0, 256, 512, 768] and planned.plan.size == 1024


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({"b": 64, "d": 64}, "'d' at 64 and 'b' at 64 are both alive"),
        ({"b": 0, "d": 32}, "'d' is at 32, not at a multiple of 64"),
        ({"b": 0, "d": 512}, "'d' at 512 with 32 bytes reaches beyond"),
        ({"c": None}, "'c' is at None"),
    ],
)
def test_the_verifier_refuses(offsets, words):
    planned = buffers.run(chain(), BuffersConfig("best"))
    moved = {
        name: dataclasses.replace(spec, offset=offsets.get(name, spec.offset)) for name, spec in planned.buffers.items()
    }
    with pytest.raises(IRError, match=words):
        verify(dataclasses.replace(planned, buffers=moved), 64)


# ---- random programs, run in their arena ----------------------------------------------------

KINDS = {
    "add": lambda size: add_kernel(size),
    "flip": lambda size: add_kernel(size, flipped=True),
    "scale": lambda size: scale_kernel(size, 0.5),
    "shift": lambda size: shift_kernel(size // 4, 4),
}
ARITY = {"add": 2, "flip": 2, "scale": 1, "shift": 1}


@st.composite
def random_programs(draw):
    roles, steps, sizes = [("x", "user", 16), ("y", "user", 64)], [], {16: ["x"], 64: ["y"]}
    for number in range(draw(st.integers(1, 14))):
        size = draw(st.sampled_from((16, 64)))
        kind = draw(st.sampled_from(sorted(KINDS)))
        sources = [draw(st.sampled_from(sizes[size])) for _ in range(ARITY[kind])]
        kernel = KINDS[kind](size)
        # One buffer passed for both inputs of a kernel: two parameters, one memory.
        steps.append(launch(kernel, *sources, f"b{number}", line=number))
        roles.append((f"b{number}", "arena", size))
        sizes[size].append(f"b{number}")
    last = roles[-1]
    roles.append(("out", "output", last[2]))
    steps.append(launch(scale_kernel(last[2], 1.0), last[0], "out"))
    returned = [whole("out", last[2])]
    if draw(st.booleans()) and len(roles) > 4:
        returned.append(whole("b0", roles[2][2]))
    return program(roles, steps, returned)


def execute(made, memory, order):
    """Run the launches of `made` position by position, in random order of the parallel positions.

    memory: name -> numpy vector, which may share bytes with others.
    """
    for step in made.steps:
        assert isinstance(step, Launch)
        kernel = step.kernel
        tensors = dict(zip((b.name for b in kernel.buffers), (memory[name] for name in step.buffers)))
        first, out = tensors["in0"], tensors["out0"]
        second = tensors.get("in1")
        positions = list(range(kernel.rows))
        order.shuffle(positions)
        for i in positions:
            if kernel.name == "shift":
                row = slice(4 * i, 4 * i + 4)
                out[row] = first[row] - first[row].max()
            elif kernel.name == "scale":
                out[i] = first[i] * np.float32(kernel.stores[0].value.args[1].value)
            else:
                flipped = second is not None and kernel.hash == add_kernel(len(out), flipped=True).hash
                out[i] = first[i] + second[len(out) - 1 - i if flipped else i]


@settings(max_examples=60, deadline=None)
@given(random_programs(), st.sampled_from(sorted(STRATEGIES)), st.integers(0, 99))
def test_a_random_program_gives_the_same_in_its_arena(made, strategy, seed):
    verify_program(made)
    planned = buffers.run(made, BuffersConfig(strategy))
    plan = planned.plan
    assert plan.lower_bound <= plan.size <= plan.unshared
    inputs = {name: np.random.default_rng(seed).normal(size=made.buffers[name].size).astype("f") for name in "xy"}
    apart = {name: inputs.get(name, np.full(spec.size, np.nan, "f")) for name, spec in made.buffers.items()}
    arena = np.full(plan.size, 255, np.uint8)
    shared = {
        name: apart[name].copy()
        if spec.role != "arena"
        else arena[spec.offset : spec.offset + spec.nbytes].view(np.float32)
        for name, spec in planned.buffers.items()
    }
    execute(planned, shared, random.Random(seed))
    execute(made, apart, random.Random(seed + 1))
    for ref in made.outputs:
        np.testing.assert_array_equal(shared[ref.buffer], apart[ref.buffer])


# ---- what a person sees -----------------------------------------------------------------------


def test_the_picture_shows_each_buffer_where_it_lies():
    planned = buffers.run(chain(), BuffersConfig("none"))
    root = xml.fromstring(picture(planned.plan, width=500, height=280))
    space = "{http://www.w3.org/2000/svg}"
    boxes = {
        group.find(f"{space}title").text.split(":")[0]: group.find(f"{space}rect") for group in root.iter(f"{space}g")
    }
    assert set(boxes) == {"a", "b", "c", "d"}
    # Six steps over 400 pixels; a is alive in steps 0 and 1, b in 1 to 3. Four times 64 bytes over 200 pixels: a is
    # the lowest quarter, from 186 to 236; b the next.
    assert [float(boxes["a"].get(key)) for key in ("x", "y", "width", "height")] == [84, 186, 133.3, 50]
    assert [float(boxes["b"].get(key)) for key in ("x", "y", "width")] == [150.7, 136, 200]


def test_a_program_without_intermediates_has_an_empty_plan_and_a_picture():
    made = program([("x", "user", 4), ("out", "output", 4)], [launch(scale_kernel(4, 1.0), "x", "out")], [])
    plan = buffers.run(made, BuffersConfig("best")).plan
    assert (plan.size, plan.lower_bound, plan.unshared, plan.placements) == (0, 0, 0, ())
    xml.fromstring(picture(plan))


def test_an_unknown_strategy_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"buffers\.strategy: there is no 'greedy_by_sizes'\n.*'greedy_by_size'"):
        BuffersConfig("greedy_by_sizes")


def over_a_product(returned="c", other="b"):
    """x @ x -> a, by an operator; a * 2 -> b, b * 3 -> c, in place; then out = c + other."""
    x = whole("x", 4, 4)
    steps = [
        Extern(torch.ops.aten.mm.default, (x, x), {}, (whole("a", 4, 4),)),
        launch(scale_kernel(16, 2.0), "a", "b"),
        launch(scale_kernel(16, 3.0), "b", "c"),
        launch(add_kernel(16), "c", other, "out"),
    ]
    roles = [("x", "user", 16), ("a", "extern", 16), ("b", "arena", 16), ("c", "arena", 16), ("out", "output", 16)]
    return program(roles, steps, [whole("out", 16)] + ([whole(returned, 16)] if returned != "c" else []))


def test_kernels_write_over_an_operators_result():
    planned = buffers.run(over_a_product(other="x"), BuffersConfig())
    assert {name: planned.buffers[name].over for name in "abc"} == {"a": None, "b": "a", "c": "a"}
    assert (planned.plan.size, planned.plan.unshared) == (0, 128)
    apart = buffers.run(over_a_product(other="x"), BuffersConfig("none"))
    assert all(spec.over is None for spec in apart.buffers.values())


def test_a_result_that_is_read_later_or_returned_is_kept():
    assert buffers.run(over_a_product(other="a"), BuffersConfig()).buffers["b"].over is None
    assert buffers.run(over_a_product(returned="a", other="x"), BuffersConfig()).buffers["b"].over is None
    kept = buffers.run(over_a_product(other="b"), BuffersConfig())
    assert (kept.buffers["b"].over, kept.buffers["c"].over) == ("a", None)


def test_an_operator_that_may_return_its_argument_is_not_written_over():
    base = over_a_product(other="x")
    dropout = Extern(
        torch.ops.aten.native_dropout.default, (whole("x", 4, 4), 0.5, False), {}, (whole("a", 4, 4), None)
    )
    assert (
        buffers.run(dataclasses.replace(base, steps=(dropout, *base.steps[1:])), BuffersConfig()).buffers["b"].over
        is None
    )


def test_a_buffer_over_a_result_that_is_still_read_is_refused():
    base = buffers.run(over_a_product(other="a"), BuffersConfig())
    wrong = {**base.buffers, "b": dataclasses.replace(base.buffers["b"], role="extern", offset=None, over="a")}
    with pytest.raises(IRError, match="'b' takes the memory of 'a', which is still read"):
        verify(dataclasses.replace(base, buffers=wrong), 64)
