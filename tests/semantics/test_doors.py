"""What the two doors promise beyond one call: Python state between calls, autocast around them, devices, errors,
rounding between fused steps, indices beyond 32 bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.backend import torchweld
from pipeline.optimized import optimize
from stages.capture import CaptureConfig, make_backend
from stages.codegen.triton import print_kernel
from stages.fusion.lowering import build_kernel
from stages.ir.errors import ConfigError, UserError
from stages.ir.schedule import Schedule


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.flag = 2.0, True
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return x * self.factor * self.weight if self.flag else x - self.factor


CHANGES = {
    "a float": lambda module: setattr(module, "factor", 0.5),
    "an int": lambda module: setattr(module, "factor", 3),
    "a flag": lambda module: setattr(module, "flag", False),
    "a weight in place": lambda module: module.weight.mul_(5),
    "a weight": lambda module: setattr(module, "weight", nn.Parameter(torch.full((3,), 7.0), requires_grad=False)),
    "a hook": lambda module: module.register_forward_hook(lambda module, args, output: output + 1),
    "the sign of zero": lambda module: setattr(module, "factor", -0.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_calls_is_seen(name):
    module, x = Scaled(), torch.tensor([1.0, -2.0, 0.0])
    fast = torch.compile(module, backend=torchweld)
    assert torch.equal(fast(x), module(x))
    CHANGES[name](module)
    expected = module(x)
    assert torch.equal(fast(x), expected) and torch.equal(fast(x).signbit(), expected.signbit())


def test_optimize_compiles_for_each_autocast_of_the_users():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), torch.randn(3, 4)
    fast = optimize(model, x)
    for dtype in (torch.bfloat16, torch.float16, None):
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            expected, found = model(x), fast(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
    assert len(fast.compilations) == 3
    asked = optimize(model, x, ["precision=amp"])
    with torch.autocast("cpu", dtype=torch.float16):
        assert asked(x).dtype == optimize(model, x, ["precision=amp"])(x).dtype
    assert len(asked.compilations) == 1


def test_optimize_names_a_device_that_the_inputs_do_not_lie_on():
    with pytest.raises(ConfigError, match=r"device: device=cuda is asked for, and an input lies on 'cpu'"):
        optimize(torch.relu, torch.ones(2), ["device=cuda"])


RAISING = {
    IndexError: lambda x: x[torch.tensor([9])],
    RuntimeError: lambda x: x.long() // 0,
    ValueError: lambda x: int("no number") + x,
    KeyError: lambda x: {"a": x}["b"],
    NotImplementedError: lambda x: torch.bitwise_and(x, 1),
    TypeError: lambda x: x + None,
}


@pytest.mark.parametrize("kind", RAISING)
def test_optimize_raises_what_eager_raises(kind):
    with pytest.raises(kind):
        RAISING[kind](torch.ones(3))
    with pytest.raises(kind) as caught:
        optimize(RAISING[kind], torch.ones(3))
    assert isinstance(caught.value, UserError)


def test_a_graph_that_cannot_be_traced_runs_in_eager_with_a_notice():
    def shifted(x):
        y = x.clone()
        y[1:] += y[:-1]
        return y

    with (
        pytest.warns(UserWarning, match="overlaps itself or what is read"),
        pytest.raises(RuntimeError, match="single memory"),
    ):
        torch.compile(shifted, backend=torchweld)(torch.ones(3, 3))


def test_an_error_of_the_compiler_is_no_reason_for_eager():
    def refuse(graph):
        raise UserError("there is no compiler")

    backend = make_backend(refuse, CaptureConfig())
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="there is no compiler"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def made_here_and_there(x, h):
    """Operations whose compilation computes with tensors of its own, and one that makes a tensor when it runs."""
    bigger = F.interpolate(x, scale_factor=2, mode="nearest").softmax(-1)
    return bigger, (h * 1.1 + 0.1).to(torch.bfloat16), x[:, torch.tensor([2, 0], device="cpu")], F.conv2d(x, x[:2])


@pytest.mark.parametrize("door", ["torch.compile", "optimize"])
def test_the_default_device_is_the_models_alone(door):
    """A program for the CPU is compiled and run while torch makes tensors elsewhere (`torch.set_default_device`)."""
    x, h = torch.randn(2, 3, 4, 4), torch.randn(5).half()
    wanted = made_here_and_there(x, h)
    with torch.device("meta"):
        if door == "optimize":
            call = optimize(made_here_and_there, (x, h))
        else:
            call = torch.compile(made_here_and_there, backend=torchweld, fullgraph=True)
        got = call(x, h)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
def test_the_default_device_may_be_the_gpu():
    def model(x):
        return x[torch.tensor([2, 0])].softmax(-1) + torch.arange(3)

    with torch.device("cuda"):
        x = torch.randn(4, 3)
        torch.testing.assert_close(torch.compile(model, backend=torchweld)(x), model(x))
        torch.testing.assert_close(optimize(model, x)(x), model(x))


# ---- rounding between fused steps --------------------------------------------------------------


def steps(x):
    return ((x * 3 + 0.1) * x - 7).sigmoid() * x / 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_emulated_casts_round_as_unfused_steps_do(dtype):
    """Without: every step in float32, and one rounding at the end. With: eager's bits."""
    x = torch.randn(1000).to(dtype)
    emulated = torch.compile(steps, backend=torchweld, options={"fusion.emulate_precision_casts": True})(x)
    torch._dynamo.reset()
    exact = torch.compile(steps, backend=torchweld)(x)
    assert torch.equal(emulated, steps(x))
    assert torch.equal(exact, steps(x.float()).to(dtype))
    assert not torch.equal(exact, emulated)
    truth = steps(x.double())
    assert (exact.double() - truth).abs().max() <= (steps(x).double() - truth).abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_in_the_model_rounds_always(dtype):
    function = lambda x: (x / 3).to(dtype).float() * 3  # noqa: E731
    x = torch.randn(1000)
    assert torch.equal(torch.compile(function, backend=torchweld)(x), function(x))


# ---- more than 2**31 elements ----------------------------------------------------------------


@pytest.mark.parametrize("rows, wide", [(1 << 20, False), (1 << 22, True)])
def test_indices_are_of_64_bits_where_memory_needs_them(rows, wide):
    with FakeTensorMode():
        x = torch.empty(rows, 1024)
        graph = make_fx(lambda x: torch.ops.aten.add.Tensor(x, x.t().contiguous().t()))(x).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    kernel, _ = build_kernel(nodes[-1:], nodes[-1:], "large")
    source = print_kernel(kernel, Schedule(tile=1024, num_warps=4))
    assert ("tl.int64" in source) == wide


def test_an_index_of_a_huge_expanded_tensor_is_exact():
    """3 * 2**31 positions of one row of memory, of which eager, too, computes a few."""
    x = torch.arange(1024.0).expand(6 << 20, 1024)
    function = lambda x: x[-2:, ::7] * 2 + x.stride(0)  # noqa: E731
    assert torch.equal(torch.compile(function, backend=torchweld)(x), function(x))


# ---- in training -----------------------------------------------------------------------------


def test_dropout_in_training_draws_eagers_numbers():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train(), torch.randn(16, 8)
    fast = torch.compile(model, backend=torchweld)
    for _ in range(2):
        torch.manual_seed(3)
        expected = model(x)
        torch.manual_seed(3)
        found = fast(x)
        assert torch.equal(found == 0, expected == 0)
        torch.testing.assert_close(found, expected)
        found.sum().backward()


def test_running_statistics_are_eagers_after_steps_of_training():
    first, second = (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train() for _ in range(2))
    second.load_state_dict(first.state_dict())
    fast = torch.compile(second, backend=torchweld)
    for _ in range(3):
        x = torch.randn(8, 4)
        torch.testing.assert_close(fast(x), first(x))
        F.mse_loss(fast(x), torch.zeros(8, 2)).backward()
        first(x)
    for mine, theirs in zip(second.buffers(), first.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
