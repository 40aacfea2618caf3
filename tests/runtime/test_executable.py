"""Calls of a program on the CPU: values, what is allocated, kept and freed, modes of torch, threads, errors."""

import dataclasses
import gc
import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stages import buffers, runtime
from stages.buffers import BuffersConfig
from stages.ir.errors import ConfigError
from stages.ir.kernel import IRError
from stages.ir.program import Extern, Geometry, TensorRef
from stages.ir.program import verify as verify_program
from stages.runtime import InputMismatch, RuntimeConfig, StepError
from tests.buffers.programs import CPU, add_kernel, launch, program, scale_kernel, whole
from tests.runtime.doubles import compiled
from tests.runtime.models import assert_same, eager_mlp, mlp

aten = torch.ops.aten


def ready(made, config=None, functions=None):
    """The executable of a program and its kernels' doubles."""
    double = compiled(made, functions)
    return runtime.run(made, double, config or RuntimeConfig()), double


def plan(made):
    verify_program(made)
    return buffers.run(made, BuffersConfig("best"))


def inputs_of(seed, weight):
    return [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)), weight]


def test_values_are_eager_ones_call_after_call():
    made, (weight, constant) = mlp()
    verify_program(made)
    run, _ = ready(made)
    kept = []
    for seed in range(3):
        x, _ = inputs_of(seed, weight)
        kept.append((run([x, weight]), eager_mlp(x, weight, constant)))
    for got, wanted in kept:  # compared at the end: no call may have written over what another returned
        assert_same(got, wanted)
        assert got[5].stride() == (1, 4)


def test_a_returned_view_of_an_input_is_one():
    made, (weight, _) = mlp()
    x, _ = inputs_of(0, weight)
    got = ready(made)[0]([x, weight])
    assert got[4].data_ptr() == x[1:3].data_ptr()


@pytest.mark.parametrize(
    "mode",
    [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["grad", "no_grad", "inference_mode", "autocast"],
)
def test_every_mode_gives_the_same(mode):
    made, (weight, constant) = mlp()
    weight.requires_grad_()
    run, _ = ready(made)
    x, _ = inputs_of(1, weight)
    wanted = eager_mlp(x, weight.detach(), constant)
    for _ in range(2):
        with mode():
            assert_same(run([x, weight]), wanted)
        with torch.no_grad():
            assert_same(run([x, weight]), wanted)


def test_built_in_inference_mode_it_runs_outside():
    with torch.inference_mode():
        made, (weight, constant) = mlp()
        run, _ = ready(made)
        x, _ = inputs_of(1, weight)
    assert_same(run([x, weight]), eager_mlp(x, weight, constant))


class Allocations(TorchDispatchMode):
    """Counts the operators that make new memory."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [
            t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, torch.Tensor)
        ]
        known = {
            t.untyped_storage().data_ptr() for t in [*args, *(kwargs or {}).values()] if isinstance(t, torch.Tensor)
        }
        if any(t.untyped_storage().data_ptr() not in known for t in tensors):
            self.made.append(str(function))
        return result


def test_only_outputs_and_results_of_operators_are_allocated():
    made, (weight, _) = mlp()
    # Kernels that write but allocate nothing, as built ones do.
    run, _ = ready(made, functions={"shift": lambda x, out: out.zero_()})
    inputs = inputs_of(0, weight)
    run(inputs)
    with torch.no_grad(), Allocations() as counted:
        run(inputs)
    assert sorted(counted.made) == sorted(["aten.empty_strided.default"] * 3 + ["aten.sort.default", "aten.add.Tensor"])


def test_only_changed_addresses_are_bound_again():
    made, (weight, _) = mlp()
    run, double = ready(made, RuntimeConfig(outputs="static"))
    x, _ = inputs_of(0, weight)
    run([x, weight])
    bound = {
        name: double.of(kernel).bound[0] for name, kernel in [("add", add_kernel(32)), ("scale", scale_kernel(32, 2.0))]
    }
    before = list(bound["add"].rebound)
    run([x, weight])
    assert bound["add"].rebound == before and bound["scale"].rebound == []
    other = x.clone()
    run([other, weight])
    assert bound["add"].rebound == [*before, 1] and bound["scale"].rebound == []


def test_nothing_of_the_caller_is_kept_and_temporaries_are_freed_after_their_last_use():
    alive = []

    def make(x):
        result = x * 2
        alive.append(weakref.ref(result))
        return result

    def look(x):
        alive.append(alive[0]() is None)
        return x + 1

    steps = [
        Extern(make, (whole("x", 4),), {}, (whole("t", 4),)),
        Extern(aten.add.out, (whole("t", 4), 1), {}, (whole("a", 4),), out=True),
        Extern(look, (whole("a", 4),), {}, (whole("o", 4),)),
    ]
    roles = [("x", "user", 4), ("t", "extern", 4), ("a", "arena", 4), ("o", "output", 4)]
    run, _ = ready(plan(program(roles, steps, [whole("o", 4)])))
    x = torch.arange(4.0)
    (result,) = run([x])
    assert result.tolist() == [2, 4, 6, 8]
    assert alive[1] is True
    gone = [weakref.ref(x), weakref.ref(result)]
    del x, result
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def written_over():
    """2 (x @ x) * 3 + x, returned beside 2 (x @ x) of another product; the kernels write over the products' results."""
    x = whole("x", 4, 4)
    steps = [
        Extern(aten.mm.default, (x, x), {}, (whole("a", 4, 4),)),
        launch(scale_kernel(16, 2.0), "a", "b"),
        launch(scale_kernel(16, 3.0), "b", "c"),
        Extern(aten.mm.default, (x, whole("c", 4, 4)), {}, (whole("d", 4, 4),)),
        launch(scale_kernel(16, 2.0), "d", "e"),
        launch(add_kernel(16), "c", "x", "out"),
    ]
    roles = [("x", "user", 16), ("out", "output", 16)]
    roles += [(name, "extern" if name in "ad" else "arena", 16) for name in "abcde"]
    made = program(roles, steps, [whole("out", 4, 4), TensorRef("e", (4, 4), (1, 4))])
    shape = dataclasses.replace(made.geometry["x"], shape=(4, 4), strides=(4, 1))
    return plan(dataclasses.replace(made, geometry={"x": shape}))


def test_kernels_write_over_results_of_operators_call_after_call():
    made = written_over()
    assert [made.buffers[name].over for name in "abcde"] == [None, "a", "a", None, "d"]
    run, _ = ready(made)
    kept = []
    for seed in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        before = x.clone()
        kept.append((run([x]), [6 * (x @ x) + x, 2 * (x @ (6 * (x @ x))).T]))
        assert torch.equal(x, before)
    for got, wanted in kept:
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_memory_that_is_written_over_is_freed_after_its_last_use():
    """Of the two results the first is gone when the call ends and the second is the caller's."""
    made = written_over()
    alive = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function is aten.mm.default:
                alive.append(weakref.ref(result))
            return result

    run, double = ready(made)
    with torch.no_grad(), Watched():
        result = run([torch.ones(4, 4)])
    for kernel in double.kernels.values():  # built kernels keep addresses, no tensors
        for bound in kernel.bound:
            bound.tensors.clear()
    gc.collect()
    assert alive[0]() is None and alive[1]() is not None
    del result
    gc.collect()
    assert alive[1]() is None


def test_static_outputs_are_the_same_memory():
    made, (weight, constant) = mlp()
    run, _ = ready(made, RuntimeConfig(outputs="static"))
    first = run(inputs_of(0, weight))
    second = run(inputs_of(1, weight))
    assert first[0].data_ptr() == second[0].data_ptr()
    assert_same(second, eager_mlp(inputs_of(1, weight)[0], weight, constant))


def test_constants_and_intermediates_are_returned_as_copies():
    steps = [launch(scale_kernel(4, 2.0), "x", "a")]
    roles = [("x", "user", 4), ("c", "constant", 4), ("a", "arena", 4)]
    constant = torch.arange(4.0)
    outputs = [whole("a", 4), TensorRef("c", (3, 4), (0, 1)), whole("c", 2, 2)]
    run, _ = ready(plan(program(roles, steps, outputs, {"c": constant})))
    for factor in (1.0, 2.0):
        a, wide, square = run([torch.full((4,), factor)])
        assert a.tolist() == [2 * factor] * 4
        assert wide.tolist() == [[0, 1, 2, 3]] * 3 and square.tolist() == [[0, 1], [2, 3]]
        for tensor in (a, wide, square):
            tensor.fill_(-1)
    assert constant.tolist() == [0, 1, 2, 3]


def test_views_of_other_types_and_of_tensors_inside_a_storage():
    """`x` begins in the middle of a storage; its float32 memory is read as int32; operators get lists of tensors."""
    steps = [
        Extern(
            aten.add.Tensor,
            (TensorRef("x", (2, 2), (4, 2), 0, torch.int32), 1),
            {},
            (TensorRef("n", (2, 2), (2, 1)),),
        ),
        Extern(aten.cat.out, ([whole("x", 8), whole("c", 2)], 0), {}, (whole("o", 10),), out=True),
        Extern(
            lambda pair, named: pair[0] + named["y"],
            (),
            {"pair": (whole("c", 2), 3), "named": {"y": whole("c", 2)}},
            (whole("p", 2),),
        ),
    ]
    roles = [("x", "user", 8), ("c", "constant", 2), ("n", "extern", 4), ("o", "output", 10), ("p", "extern", 2)]
    made = program(roles, steps, [whole("n", 2, 2), whole("o", 10), whole("p", 2)], {"c": torch.tensor([8.0, 9.0])[:]})
    made.buffers["n"] = dataclasses.replace(made.buffers["n"], dtype=torch.int32)
    run, _ = ready(plan(made))
    x = torch.arange(20.0)[5:13]
    n, o, p = run([x])
    assert torch.equal(n, x.view(torch.int32)[::2].view(2, 2) + 1)
    assert o.tolist() == [*range(5, 13), 8, 9] and p.tolist() == [16, 18]


def test_a_result_of_other_strides_than_at_capture_is_laid_out_anew():
    steps = [
        Extern(lambda x: (x.view(2, 3) + 0).t().contiguous().t(), (whole("x", 6),), {}, (whole("t", 2, 3),)),
        launch(scale_kernel(6, 1.0), "t", "o"),
    ]
    roles = [("x", "user", 6), ("t", "extern", 6), ("o", "output", 6)]
    run, _ = ready(plan(program(roles, steps, [whole("o", 2, 3)])))
    assert run([torch.arange(6.0)])[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_two_outputs_in_one_buffer_and_an_empty_one():
    steps = [launch(scale_kernel(8, 1.0), "x", "o")]
    roles = [("x", "user", 8), ("o", "output", 8), ("e", "output", 0)]
    made = program(
        roles, steps, [TensorRef("o", (4,), (2,)), TensorRef("o", (4,), (2,), 1), TensorRef("e", (0, 3), (3, 1))]
    )
    run, _ = ready(buffers.run(made, BuffersConfig("best")))
    even, odd, nothing = run([torch.arange(8.0)])
    assert even.tolist() == [0, 2, 4, 6] and odd.tolist() == [1, 3, 5, 7] and nothing.shape == (0, 3)
    assert even.untyped_storage().data_ptr() == odd.untyped_storage().data_ptr()


# ---- threads --------------------------------------------------------------------------------


def test_concurrent_calls_have_memory_of_their_own():
    made, (weight, constant) = mlp()
    inside, most, lock = [0], [0], threading.Lock()
    meet = threading.Barrier(4, timeout=30)

    def scale(x, out):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        meet.wait()  # all four are between two steps
        torch.mul(x, 2.0, out=out)
        with lock:
            inside[0] -= 1

    run, double = ready(made, functions={"scale": scale})
    results: dict[int, list] = {}

    def call(seed):
        for round in range(3):
            results[seed + 10 * round] = run(inputs_of(seed + 10 * round, weight))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] == 4 and len(results) == 12
    for seed, got in results.items():
        assert_same(got, eager_mlp(inputs_of(seed, weight)[0], weight, constant))
    assert len(double.of(scale_kernel(32, 2.0)).bound) == 4  # one frame for each call in flight, and no more


# ---- step by step ---------------------------------------------------------------------------


def test_run_steps_shows_what_each_step_gave():
    made, (weight, constant) = mlp()
    run, _ = ready(made)
    x, _ = inputs_of(3, weight)
    seen = {}
    got = run.run_steps(
        [x, weight],
        hook=lambda number, step, outputs: seen.update({number: [None if t is None else t.clone() for t in outputs]}),
    )
    assert_same(got, eager_mlp(x, weight, constant))
    doubled = 2 * (x @ weight.T)
    assert list(seen) == list(range(7))
    torch.testing.assert_close(seen[0][0], x @ weight.T)
    torch.testing.assert_close(seen[1][0], doubled.view(-1))
    assert seen[3][1] is None and torch.equal(seen[3][0], got[1])
    torch.testing.assert_close(seen[6][0], got[0][:, ::2] + 1)


def test_run_steps_stops_where_told():
    made, (weight, _) = mlp()
    run, double = ready(made)
    seen = []
    assert run.run_steps(inputs_of(0, weight), until=2, hook=lambda number, step, outputs: seen.append(number)) == []
    assert seen == [0, 1]
    assert double.of(add_kernel(32)).bound[0].launches == 0


# ---- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda x: x[:3], r"float32\[3, 8\]"),
        (lambda x: x.double(), r"float64\[4, 8\]"),
        (lambda x: x.t().contiguous().t(), r"float32\[4, 8\] with strides \[1, 4\]"),
        (lambda x: x.to("meta"), "on meta"),
        (lambda x: x.to_sparse(), "layout torch.sparse_coo"),
        (lambda x: 3.5, "a float"),
    ],
)
def test_a_misfit_names_the_input(value, words):
    made, (weight, _) = mlp()
    run, _ = ready(made)
    with pytest.raises(
        InputMismatch, match=rf"input 'model\.x' \(number 0\) is .*{words}.*made for float32\[4, 8\] with"
    ):
        run([value(torch.zeros(4, 8)), weight])


def test_a_wrong_number_of_inputs_is_an_error():
    made, (weight, _) = mlp()
    with pytest.raises(InputMismatch, match="takes 2 inputs, not 1"):
        ready(made)[0]([weight])


def test_strides_of_dimensions_of_one_do_not_matter():
    roles = [("x", "user", 4), ("o", "output", 4)]
    made = program(
        roles,
        [launch(scale_kernel(4, 3.0), "x", "o")],
        [whole("o", 4)],
        geometry={"x": Geometry((1, 4), (4, 1), torch.float32, CPU)},
    )
    run, _ = ready(plan(made))
    assert run([torch.ones(8).as_strided((1, 4), (99, 1))])[0].tolist() == [3.0] * 4


def test_lazy_negation_is_carried_out_for_kernels():
    roles = [("x", "user", 3), ("o", "output", 3)]
    steps = [launch(scale_kernel(3, 3.0), "x", "o")]
    imaginary = {"x": Geometry((2,), (2,), torch.float32, CPU)}
    run, _ = ready(plan(program(roles, steps, [TensorRef("o", (2,), (2,))], geometry=imaginary)))
    x = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert x.is_neg()  # its memory holds 2 and 4
    assert run([x])[0].tolist() == [-6, -12]


def test_an_error_names_step_kernel_and_line():
    made, (weight, _) = mlp()

    def fail(x, out):
        raise IndexError("index 9 is out of range")

    run, _ = ready(made, functions={"shift": fail})
    with pytest.raises(StepError, match=r"step 2, kernel shift \(model\.py:3: x\): index 9 is out of range") as caught:
        run(inputs_of(0, weight))
    assert isinstance(caught.value, IndexError) and isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(StepError, match="step 2, kernel shift"):
        run.run_steps(inputs_of(0, weight))


def test_an_operator_that_fails_or_gives_another_shape_is_named():
    roles = [("x", "user", 4), ("t", "extern", 4)]
    wrong = program(
        roles, [Extern(aten.mm.default, (whole("x", 4), whole("x", 4)), {}, (whole("t", 4),))], [whole("t", 4)]
    )
    with pytest.raises(StepError, match=r"step 0, operator aten\.mm\.default"):
        ready(plan(wrong))[0]([torch.ones(4)])
    short = program(roles, [Extern(aten.nonzero.default, (whole("x", 4),), {}, (whole("t", 4, 1),))], [whole("t", 4)])
    with pytest.raises(StepError, match=r"gave shape \[2, 1\], at capture it was \[4, 1\]"):
        ready(plan(short))[0]([torch.tensor([0.0, 1, 0, 1])])


def test_out_of_memory_is_still_torchs_error():
    made, (weight, _) = mlp()

    def fail(x, out):
        raise torch.OutOfMemoryError("no more")

    with pytest.raises(torch.OutOfMemoryError, match="step 2, kernel shift"):
        ready(made, functions={"shift": fail})[0](inputs_of(0, weight))


def test_a_call_after_a_failed_one_is_right():
    made, (weight, constant) = mlp()
    broken = [True]

    def sometimes(x, out):
        if broken[0]:
            raise RuntimeError("not now")
        out.copy_((x.view(4, 8) - x.view(4, 8).amax(1, keepdim=True)).view(-1))

    run, _ = ready(made, functions={"shift": sometimes})
    x, _ = inputs_of(0, weight)
    with pytest.raises(StepError):
        run([x, weight])
    broken[0] = False
    assert_same(run([x, weight]), eager_mlp(x, weight, constant))


def test_incomplete_programs_are_refused_when_built():
    made, _ = mlp()
    double = compiled(made)
    unplanned = {name: dataclasses.replace(spec, offset=None) for name, spec in made.buffers.items()}
    with pytest.raises(IRError, match="arena buffer 'h' has no offset"):
        runtime.run(dataclasses.replace(made, buffers=unplanned), double, RuntimeConfig())
    with pytest.raises(IRError, match="says nothing of input 'x'"):
        runtime.run(dataclasses.replace(made, geometry={}), double, RuntimeConfig())
    double.kernels.clear()
    with pytest.raises(IRError, match=r"kernel 'scale' .* was not compiled"):
        runtime.run(made, double, RuntimeConfig())
    orphan = dataclasses.replace(made, steps=made.steps[:3] + made.steps[4:])
    with pytest.raises(IRError, match="'s' has role 'extern', and no operator makes it"):
        runtime.run(orphan, compiled(made), RuntimeConfig())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inputs": "statics"}, r"runtime\.inputs: there is no 'statics'"),
        ({"outputs": "clone"}, r"runtime\.outputs: there is no 'clone'"),
        ({"check_weights": "alway"}, r"did you mean 'always'"),
        ({"recaptures": -1}, r"runtime\.recaptures: must be at least 0, not -1"),
    ],
)
def test_bad_config_values_are_named(values, words):
    with pytest.raises(ConfigError, match=words):
        RuntimeConfig(**values)


@pytest.mark.parametrize("room", ["runtime", "buffers"])
def test_every_yaml_is_a_config(room):
    from pathlib import Path

    from omegaconf import OmegaConf

    files = sorted((Path(__file__).parents[2] / "conf" / room).glob("*.yaml"))
    assert files
    for file in files:
        values = OmegaConf.to_container(OmegaConf.load(file))
        config = {"runtime": RuntimeConfig, "buffers": BuffersConfig}[room]
        assert set(values) == {field.name for field in dataclasses.fields(config)}
        config(**values)
