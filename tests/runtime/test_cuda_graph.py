"""CUDA graphs and streams, on a GPU; what is decided without one is tested without one."""

import dataclasses
import threading

import pytest
import torch

from stages import buffers, codegen, runtime
from stages.buffers import BuffersConfig
from stages.codegen.config import CodegenConfig
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, load, var
from stages.ir.graph import GraphInput
from stages.ir.index import bounded
from stages.ir.kernel import Kernel, Store
from stages.ir.program import Extern, Geometry, Prologue, TensorRef
from stages.runtime import RuntimeConfig
from stages.runtime.cuda_graph import _is_random, why_not
from stages.runtime.errors import StepError
from stages.runtime.frame import Frame
from stages.runtime.pool import Pool
from tests.buffers.programs import CPU, launch, program, scale_kernel, whole
from tests.runtime.doubles import CompiledDouble, compiled
from tests.runtime.models import assert_same, eager_mlp, mlp

aten = torch.ops.aten
gpu = pytest.mark.gpu


def on_gpu(**config):
    device = torch.device("cuda", torch.cuda.current_device())
    made, (weight, constant) = mlp(device)
    double = compiled(made)
    return runtime.run(made, double, RuntimeConfig(**config)), weight, constant, double


def batch(seed):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).cuda()


MODES = [
    {"cuda_graph": graph, "inputs": inputs, "outputs": outputs}
    for graph in (True, False)
    for inputs in ("copy", "static")
    for outputs in ("copy", "static")
]


@gpu
@pytest.mark.parametrize("config", MODES, ids=lambda config: "-".join(map(str, config.values())))
def test_values_are_eager_ones_in_every_mode(config):
    run, weight, constant, _ = on_gpu(**config)
    kept = []
    for seed in range(4):
        got, wanted = run([batch(seed), weight]), eager_mlp(batch(seed), weight, constant)
        assert_same(got, wanted)
        kept.append((got, wanted))
    if config["outputs"] == "copy":
        for got, wanted in kept:
            assert_same(got, wanted)
    assert not [note for note in run.notes if "one by one" in note]


@gpu
def test_a_graph_is_captured_once_and_replayed():
    run, weight, constant, double = on_gpu()
    for seed in range(3):
        assert_same(run([batch(seed), weight]), eager_mlp(batch(seed), weight, constant))
    # Two warm-ups and the capture launch each kernel; replays do not pass through Python.
    assert {bound.launches for kernel in double.kernels.values() for bound in kernel.bound} == {3}
    assert run.notes == []


def with_tail(device=CPU):
    """The output y = 2 x, which another step reads, z = 3 y, and last the outputs w = 5 z and v = -z."""
    steps = [
        launch(scale_kernel(32, 2.0), "x", "y"),
        launch(scale_kernel(32, 3.0), "y", "z"),
        launch(scale_kernel(32, 5.0), "z", "w"),
        launch(scale_kernel(32, -1.0), "z", "v"),
    ]
    roles = [("x", "user", 32), ("y", "output", 32), ("z", "arena", 32), ("w", "output", 32), ("v", "output", 32)]
    made = program(roles, steps, [whole(name, 32) for name in "ywv"])
    geometry = {"x": dataclasses.replace(made.geometry["x"], device=device)}
    return buffers.run(dataclasses.replace(made, device=device, geometry=geometry), BuffersConfig("best"))


def test_the_last_kernels_write_into_new_memory_at_each_call():
    made = with_tail()
    frame = Frame(made, compiled(made), {}, static_outputs=True, copy_outputs=True)
    kept = []
    for seed in range(3):
        x = torch.randn(32, generator=torch.Generator().manual_seed(seed))
        frame.load([x], 0)
        frame.execute()
        kept.append((x, frame.outputs([x])))
    for x, outputs in kept:
        assert_same(outputs, [2 * x, 30 * x, -6 * x])
    memory = [outputs[place].data_ptr() for _, outputs in kept for place in range(3)]
    assert len(set(memory)) == 9
    assert len(frame.memory) == 2  # the arena, and the output that is copied out of the frame


def test_outputs_that_stay_in_place_are_written_with_the_rest():
    made = with_tail()
    frame = Frame(made, compiled(made), {}, static_outputs=True, copy_outputs=False)
    x = torch.ones(32)
    frame.load([x], 0)
    frame.execute()
    first = frame.outputs([x])
    assert_same(first, [2 * x, 30 * x, -6 * x])
    assert [a.data_ptr() for a in first] == [b.data_ptr() for b in frame.outputs([x])]


@gpu
@pytest.mark.parametrize("inputs", ["copy", "static"])
def test_the_last_kernels_run_after_the_graph(inputs):
    device = torch.device("cuda", torch.cuda.current_device())
    made = with_tail(device)
    double = compiled(made)
    run = runtime.run(made, double, RuntimeConfig(inputs=inputs))
    kept = []
    for seed in range(4):
        x = torch.randn(32, generator=torch.Generator().manual_seed(seed)).cuda()
        kept.append((x, run([x])))
    for x, outputs in kept:
        assert_same(outputs, [2 * x, 30 * x, -6 * x])
    assert not run.notes or inputs == "static"


@gpu
def test_static_inputs_capture_new_addresses_a_few_times_then_copy():
    run, weight, constant, double = on_gpu(inputs="static", recaptures=1)
    held = [batch(seed) for seed in range(4)]
    for x in held:
        assert_same(run([x, weight]), eager_mlp(x, weight, constant))
    # The first address, one new one, then copies: three captures of three launches.
    assert {bound.launches for kernel in double.kernels.values() for bound in kernel.bound} == {9}
    assert [note for note in run.notes if "runtime.recaptures" in note]
    held[1].copy_(batch(9))
    assert_same(run([held[1], weight]), eager_mlp(batch(9), weight, constant))


@gpu
def test_static_inputs_replay_on_new_values_at_the_same_address():
    run, weight, constant, double = on_gpu(inputs="static")
    x = batch(0)
    for seed in range(3):
        x.copy_(batch(seed))
        assert_same(run([x, weight]), eager_mlp(batch(seed), weight, constant))
    assert {bound.launches for kernel in double.kernels.values() for bound in kernel.bound} == {3}


@gpu
@pytest.mark.parametrize("inputs", ["copy", "static"])
def test_a_misaligned_input_is_copied(inputs):
    run, weight, constant, _ = on_gpu(inputs=inputs)
    storage = torch.zeros(33, device="cuda")
    x = storage[1:].view(4, 8)
    for seed in range(2):
        x.copy_(batch(seed))
        assert_same(run([x, weight]), eager_mlp(batch(seed), weight, constant))


@gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_misaligned_weight_is_read_as_it_is_now(graph):
    run, weight, constant, _ = on_gpu(cuda_graph=graph)
    other = torch.zeros(65, device="cuda")[1:].view(8, 8)
    for seed in range(3):
        other.copy_(weight * seed)
        assert_same(run([batch(seed), other]), eager_mlp(batch(seed), weight * seed, constant))


@gpu
def test_a_weight_that_moved_is_captured_anew():
    run, weight, constant, _ = on_gpu()
    run([batch(0), weight])
    other = weight + 1
    assert_same(run([batch(1), other]), eager_mlp(batch(1), other, constant))
    other.mul_(2)
    assert_same(run([batch(2), other]), eager_mlp(batch(2), other, constant))


@gpu
def test_constants_follow_a_weight_under_a_graph():
    device = torch.device("cuda", torch.cuda.current_device())
    weight = torch.ones(4, device=device)
    entry = GraphInput("w", "weight", "w", weight)
    steps = [Extern(aten.add.out, (whole("x", 4), whole("c", 4)), {}, (whole("o", 4),), out=True)]
    made = program(
        [("x", "user", 4), ("c", "constant", 4), ("o", "output", 4)], steps, [whole("o", 4)], {"c": weight * 10}
    )
    geometry = {"x": dataclasses.replace(made.geometry["x"], device=device)}
    prologue = Prologue(lambda w: (w * 10,), (entry,), ("c",))
    made = dataclasses.replace(made, device=device, geometry=geometry, prologue=prologue)
    made = buffers.run(made, BuffersConfig("best"))
    run = runtime.run(made, compiled(made), RuntimeConfig())
    x = torch.zeros(4, device=device)
    assert run([x])[0].tolist() == [10] * 4
    weight.mul_(3)
    assert run([x])[0].tolist() == [30] * 4


@gpu
def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_is_named():
    device = torch.device("cuda", torch.cuda.current_device())

    def look(x):  # reads a value on the host, which waits for the device
        return x * x.sum().item()

    steps = [
        launch(scale_kernel(4, 2.0), "x", "a"),
        Extern(look, (whole("a", 4),), {}, (whole("o", 4),)),
    ]
    made = program([("x", "user", 4), ("a", "arena", 4), ("o", "output", 4)], steps, [whole("o", 4)])
    geometry = {"x": dataclasses.replace(made.geometry["x"], device=device)}
    made = buffers.run(dataclasses.replace(made, device=device, geometry=geometry), BuffersConfig("best"))
    run = runtime.run(made, compiled(made), RuntimeConfig())
    stream = torch.cuda.current_stream()
    for factor in (1.0, 2.0):
        got = run([torch.full((4,), factor, device=device)])[0].tolist()
        assert got == [2 * factor * 8 * factor] * 4
    assert torch.cuda.current_stream() == stream
    # Neither the random generator nor later captures suffer from the one that failed.
    torch.rand(2, device=device)
    other, weight, constant, _ = on_gpu()
    assert_same(other([batch(0), weight]), eager_mlp(batch(0), weight, constant))
    assert other.notes == []
    assert len(run.notes) == 1 and "no CUDA graph" in run.notes[0] and "step 1, operator" in run.notes[0]


@gpu
@pytest.mark.parametrize("graph", [True, False])
def test_calls_on_several_streams_and_threads(graph):
    run, weight, constant, _ = on_gpu(cuda_graph=graph)
    torch.cuda.synchronize()
    wrong = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for round in range(20):
                    x = batch(seed + round)
                    assert_same(run([x, weight]), eager_mlp(x, weight, constant))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


@gpu
@pytest.mark.parametrize("graph", [True, False])
def test_one_arena_used_on_two_streams_in_turn(graph):
    run, weight, constant, double = on_gpu(cuda_graph=graph)
    inputs = [batch(seed) for seed in range(20)]
    wanted = [eager_mlp(x, weight, constant) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    got = []
    for number, x in enumerate(inputs):
        with torch.cuda.stream(streams[number % 2]):
            got.append(run([x, weight]))  # returns before the device is done
    torch.cuda.synchronize()
    for one, other in zip(got, wanted):
        assert_same(one, other)
    assert all(len(kernel.bound) == 1 for kernel in double.kernels.values())


@gpu
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_modes_of_torch(mode):
    run, weight, constant, _ = on_gpu()
    for seed in range(2):
        with mode():
            assert_same(run([batch(seed), weight]), eager_mlp(batch(seed), weight, constant))


@gpu
def test_run_steps_beside_a_graph():
    run, weight, constant, _ = on_gpu()
    run([batch(0), weight])
    seen = []
    got = run.run_steps([batch(1), weight], hook=lambda number, step, outputs: seen.append(number))
    assert_same(got, eager_mlp(batch(1), weight, constant))
    assert seen == list(range(7))


# ---- without a GPU --------------------------------------------------------------------------


def test_attention_draws_random_numbers_only_with_dropout():
    q, attention = whole("q", 1, 2, 4, 8), aten.scaled_dot_product_attention.default
    for dropout, kwargs in (((0.0,), {}), ((), {"dropout_p": 0.0}), ((), {})):
        assert not _is_random(Extern(attention, (q, q, q, None, *dropout), kwargs, (q,)))
    assert _is_random(Extern(attention, (q, q, q, None, 0.1), {}, (q,)))
    assert _is_random(Extern(aten.bernoulli.default, (q,), {}, (q,)))
    assert not _is_random(Extern(aten.sort.default, (q,), {}, (q, None)))


def test_a_program_is_no_graph_where_an_input_lies_on_the_cpu():
    made = program([("x", "user", 4), ("o", "output", 4)], [launch(scale_kernel(4, 1.0), "x", "o")], [whole("o", 4)])
    assert why_not(made) == "it runs on cpu"
    on_cuda = dataclasses.replace(made, device=torch.device("cuda", 0))
    assert "input 'model.x' is on cpu" in why_not(on_cuda)
    there = {"x": dataclasses.replace(made.geometry["x"], device=torch.device("cuda", 0))}
    assert why_not(dataclasses.replace(on_cuda, geometry=there)) is None


def test_few_steps_on_large_inputs_are_no_graph_that_copies_them():
    """Two launches on 16 MiB are one; on 4 bytes more they are none."""
    for size, reason in (
        (4 << 20, None),
        ((4 << 20) + 1, "copying 16 MiB of inputs takes longer than launching 2 steps"),
    ):
        steps = [launch(scale_kernel(size, 1.0), "x", "a"), launch(scale_kernel(size, 1.0), "a", "o")]
        roles = [("x", "user", size), ("a", "arena", size), ("o", "output", size)]
        made = program(roles, steps, [whole("o", size)])
        there = {"x": dataclasses.replace(made.geometry["x"], device=torch.device("cuda", 0))}
        made = dataclasses.replace(made, device=torch.device("cuda", 0), geometry=there)
        assert why_not(made, "static") is None
        given = why_not(made, "copy")
        assert given is None if reason is None else reason in given


class Stream:
    """A stand-in that notes what it was made to wait for."""

    def __init__(self):
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)


class Tensor:
    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


class Lane:
    def __init__(self):
        self.memory = [Tensor()]

    def run(self, inputs, epoch):
        return []


def test_a_lane_is_taken_on_its_own_stream_or_after_waiting_for_the_other():
    pool = Pool(Lane, torch.device("cpu"))
    one, two = Stream(), Stream()
    first, second = pool.take(one), pool.take(two)
    assert first is not second
    pool.give(first, one)
    pool.give(second, two)
    assert pool.take(one) is first and not one.waited
    pool.give(first, one)
    taken = pool.take(two)
    assert taken is second and not two.waited
    # Only the lane of the other stream is free now.
    assert pool.take(two) is first and two.waited == [one] and first.memory[0].streams == [two]


def test_a_view_of_an_input_is_the_callers_under_static_outputs_too():
    made, (weight, _) = mlp()
    run = runtime.run(made, compiled(made), RuntimeConfig(outputs="static"))
    x = torch.ones(4, 8)
    assert run([x, weight])[4].data_ptr() == x[1].data_ptr()
    assert isinstance(made.outputs[4], TensorRef)


@gpu
def test_a_graph_writes_nothing_but_its_own_memory():
    """cuBLAS splits this product along K and adds up in a workspace, which other users of torch may free."""
    device = torch.device("cuda", torch.cuda.current_device())
    rows, inner = 64, 32768
    step = Extern(
        aten.mm.out, (whole("x", rows, inner), whole("w", inner, rows)), {}, (whole("y", rows, rows),), out=True
    )
    x, weight = (torch.randn(*shape, device=device) for shape in ((rows, inner), (inner, rows)))
    roles = [("x", "user", x.numel()), ("w", "weight", weight.numel()), ("y", "output", rows * rows)]
    flat = {name: Geometry(t.shape, t.stride(), t.dtype, device) for name, t in (("x", x), ("w", weight))}
    made = program(roles, [step], [whole("y", rows, rows)], {"w": weight}, flat)
    made = buffers.run(dataclasses.replace(made, device=device), BuffersConfig("best"))
    run = runtime.run(made, compiled(made), RuntimeConfig())
    expected = run([x, weight])[0].clone()
    torch.testing.assert_close(expected, x @ weight)
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    strangers = [torch.zeros(2**18, dtype=torch.uint8, device=device) for _ in range(1024)]
    torch.testing.assert_close(run([x, weight])[0], expected, rtol=0, atol=0)
    assert not any(stranger.any().item() for stranger in strangers)
    del strangers
    torch.cuda.empty_cache()
    torch.testing.assert_close(run([x, weight])[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("used", [True, False])
def test_the_state_of_the_generator_is_no_result_of_a_graph(used):
    """Under a capture, attention puts seed and offset elsewhere than the program says."""
    q = TensorRef("q", (1, 8, 4, 8), (256, 32, 8, 1))
    seed = TensorRef("seed", (), ()) if used else None
    arguments = (q, q, q, None, None, None, None, None, 0.5, 0)
    step = Extern(aten._efficient_attention_forward.default, arguments, {}, (q, None, seed, None, None, None))
    made = program([("q", "user", 256), ("seed", "extern", 1)], [step], [q])
    device = torch.device("cuda", 0)
    geometry = {"q": dataclasses.replace(made.geometry["q"], device=device)}
    reason = why_not(dataclasses.replace(made, device=device, geometry=geometry))
    assert "state of the generator" in reason if used else reason is None


# ---- indices that are checked ---------------------------------------------------------------


def gather(device=CPU):
    """y = table[chosen], by a kernel that checks the index."""
    table, chosen = Buffer("in1", DType.FLOAT32, 4), Buffer("in0", DType.INT64, 3)
    axis = Axis("i0", 3)
    value = load(table, bounded(load(chosen, var(axis)), 4))
    kernel = Kernel("gather", (axis,), (), (Store(Buffer("out0", DType.FLOAT32, 3), var(axis), value),))
    roles = [("chosen", "user", 3), ("table", "user", 4), ("y", "output", 3)]
    made = program(roles, [launch(kernel, "chosen", "table", "y")], [whole("y", 3)])
    buffers = {**made.buffers, "chosen": dataclasses.replace(made.buffers["chosen"], dtype=torch.int64)}
    types = {"chosen": torch.int64, "table": torch.float32}
    geometry = {
        name: dataclasses.replace(made.geometry[name], dtype=dtype, device=device) for name, dtype in types.items()
    }
    return dataclasses.replace(made, device=device, buffers=buffers, geometry=geometry)


class Reporting:
    """A kernel on CUDA, which says at a later launch that an index was out of range."""

    def __init__(self):
        self.out_of_range = False

    def bind(self, tensors):
        return self

    def __call__(self):
        self.check_index()

    def check_index(self):
        if self.out_of_range:
            self.out_of_range = False
            raise IndexError("kernel 'gather': an index is out of range")

    def rebind(self, position, tensor):
        pass


def test_a_frame_asks_its_kernels_for_indices_out_of_range():
    made = gather()
    kernel = Reporting()
    frame = Frame(made, CompiledDouble({(made.launches[0].kernel.hash, None): kernel}), {}, True, True)
    frame.check_indices()
    kernel.out_of_range = True
    with pytest.raises(StepError, match=r"step 0, kernel gather.*out of range") as caught:
        frame.check_indices()
    assert isinstance(caught.value, IndexError)
    frame.check_indices()


@gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("inputs", ["copy", "static"])
def test_an_index_out_of_range_is_an_error_of_the_next_call(graph, inputs, tmp_path):
    device = torch.device("cuda", torch.cuda.current_device())
    made = gather(device)
    built = codegen.run(made, CodegenConfig(cache_dir=str(tmp_path)))
    run = runtime.run(made, built, RuntimeConfig(inputs=inputs, cuda_graph=graph))
    table = torch.arange(4.0, device=device)
    chosen = torch.tensor([1, -1, 2], device=device)
    assert run([chosen, table])[0].tolist() == [1.0, 3.0, 2.0]
    chosen.fill_(4)
    run([chosen, table])
    torch.cuda.synchronize()
    chosen.fill_(2)
    with pytest.raises(IndexError, match="kernel 'gather'"):
        run([chosen, table])
    assert run([chosen, table])[0].tolist() == [2.0, 2.0, 2.0]
    assert run.notes == []


@gpu
def test_an_index_out_of_range_at_the_first_call_does_not_cost_the_graph(tmp_path):
    device = torch.device("cuda", torch.cuda.current_device())
    made = gather(device)
    run = runtime.run(made, codegen.run(made, CodegenConfig(cache_dir=str(tmp_path))), RuntimeConfig())
    table = torch.arange(4.0, device=device)
    with pytest.raises(IndexError, match="kernel 'gather'"):
        run([torch.full((3,), 9, device=device), table])
    assert run([torch.zeros(3, dtype=torch.int64, device=device), table])[0].tolist() == [0.0, 0.0, 0.0]
    assert run.notes == []
