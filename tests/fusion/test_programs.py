"""Programs against eager: values, shapes, strides, types, and how many kernels there are, counted by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.fusion.helpers import check

CONFIGS = ("none", "default", "aggressive")


@dataclass
class Case:
    """A function, its inputs, and the launches and externs under `none` and under `default`."""

    function: Callable[..., Any]
    shapes: list[Any]
    none: tuple[int, int]
    default: tuple[int, int]

    def inputs(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [
            shape if isinstance(shape, torch.Tensor) else torch.randn(shape, generator=generator)
            for shape in self.shapes
        ]


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v


def softmax_by_hand(x):
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rotary(x, cos, sin):
    return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin


def residual_norm(x, y, weight, bias):
    total = x + y
    return total, F.layer_norm(total, (8,), weight, bias)


def conv_bn_relu(x, weight, scale, bias, mean, var):
    return F.relu(F.batch_norm(F.conv2d(x, weight, padding=1), mean, var.abs(), scale, bias))


CASES = {
    # Linear, gelu, linear: torch runs the linears.
    "mlp": Case(
        lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c),
        [(6, 8), (16, 8), 16, (8, 16), 8],
        (1, 2),
        (1, 2),
    ),
    "residual_norm": Case(residual_norm, [(2, 3, 8), (2, 3, 8), 8, 8], (2, 0), (1, 0)),
    # Two products and what lies between: scaling and softmax.
    "attention": Case(attention, [(2, 3, 5, 4)] * 3, (2, 2), (1, 2)),
    "softmax_by_hand": Case(softmax_by_hand, [(4, 9)], (5, 0), (1, 0)),
    "softmax_of_columns": Case(lambda x: torch.softmax(x * 2, 0), [(4, 9)], (2, 0), (1, 0)),
    "rms_norm": Case(rms_norm, [(4, 8), 8], (6, 0), (1, 0)),
    "group_norm_silu": Case(lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), [(2, 8, 5, 5), 8, 8], (2, 0), (1, 0)),
    # |var| is one position a channel: computed in place of being stored.
    "conv_bn_relu": Case(conv_bn_relu, [(2, 3, 6, 6), (5, 3, 3, 3), 5, 5, 5, 5], (3, 1), (1, 1)),
    "cat_slice": Case(lambda x, y: torch.cat([x * 2, y[:, :3]], 1).relu(), [(4, 5), (4, 5)], (3, 0), (1, 0)),
    "pad": Case(lambda x: F.pad(x * 2, (1, 2)) + 1, [(4, 5)], (3, 0), (1, 0)),
    "rotary": Case(rotary, [(2, 3, 8), (3, 8), (3, 8)], (5, 0), (1, 0)),
    "embedding_norm": Case(
        lambda i, table, w, b: F.layer_norm(F.embedding(i, table) * 3, (8,), w, b),
        [torch.tensor([[1, 9, 0], [3, 3, 7]]), (10, 8), 8, 8],
        (3, 0),
        (1, 0),
    ),
    "diamond": Case(lambda x: (lambda e: (e + 1) * (e - 1))(x.exp()), [(4, 5)], (4, 0), (1, 0)),
    "two_outputs": Case(lambda x, y: (lambda s: (s.relu(), s * 2, s))(x + y), [(4, 5), (4, 5)], (3, 0), (1, 0)),
    "gated": Case(lambda x: F.glu(x * 2), [(4, 6)], (2, 0), (1, 0)),
    "creation": Case(lambda x: x * torch.arange(6) + torch.full((4, 1), 2.0), [(4, 6)], (4, 0), (1, 0)),
    "half": Case(lambda x: F.layer_norm(x.half().float() * 2, (8,)).bfloat16(), [(4, 8)], (5, 0), (1, 0)),
    "top": Case(lambda x: x.relu().topk(2)[0] * 2, [(4, 6)], (2, 1), (2, 1)),
    "pool": Case(lambda x: F.max_pool2d(x.relu(), 2) + 1, [(1, 3, 6, 6)], (2, 1), (2, 1)),
    "permuted": Case(lambda x: (x.permute(2, 0, 1) * 2).contiguous() + 1, [(2, 3, 4)], (3, 0), (1, 0)),
    "channels_last": Case(
        lambda x: (x * 2).relu(), [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)], (2, 0), (1, 0)
    ),
    "offset_input": Case(lambda x: x.t() + 1, [torch.randn(5, 7)[1:4, 2:]], (1, 0), (1, 0)),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name, config):
    case = CASES[name]
    program = check(case.function, *case.inputs(), name=config)
    expected = case.none if config == "none" else case.default
    assert (len(program.launches), len(program.externs)) == expected, program.text()
    written = [name for step in program.steps for name in step.writes]
    assert len(written) == len(set(written))


def aliases(x):
    made = x + 1
    return x, x.t(), made[1:], made.view(-1), None, 3, made


def test_outputs_that_are_inputs_views_of_inputs_or_share_storage():
    program = check(aliases, torch.randn(4, 4))
    itself, transposed, part, flat, nothing, three, whole = program.outputs
    assert itself.buffer == transposed.buffer == program.inputs[0].name
    assert part.buffer == flat.buffer == whole.buffer
    assert (part.offset, nothing, three) == (4, None, 3)
    assert program.buffers[whole.buffer].role == "output"


def test_an_output_that_is_used_inside_too_is_stored_once():
    program = check(lambda x, w: (lambda h: (h, h @ w))(x.relu()), torch.randn(3, 4), torch.randn(4, 5))
    assert [spec.role for spec in program.buffers.values()] == ["user", "user", "output", "output"]


def test_weights_and_constants_keep_their_roles():
    from stages.fusion import run
    from tests.fusion.helpers import config, graph_of

    graph = graph_of(lambda x, w: x * w, torch.randn(3), torch.randn(3))
    graph.inputs[1].kind, graph.inputs[1].tensor = "weight", torch.randn(3)
    program = run(graph, config())
    assert [spec.role for spec in program.buffers.values()] == ["user", "weight", "output"]
