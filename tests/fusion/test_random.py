"""Random graphs of pointwise operations, reductions, views and products: all configs equal eager."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.fusion import run
from tests.fusion.helpers import compare, config, graph_of

# Each takes a 4 x 6 tensor and another and gives a 4 x 6 tensor.
STEPS = [
    lambda a, b: a + b,
    lambda a, b: a * b * 0.5,
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: a.tanh(),
    lambda a, b: a.relu() + 1,
    lambda a, b: a - b.mean(1, keepdim=True),
    lambda a, b: a - b.amax(0),
    lambda a, b: torch.softmax(a, 1),
    lambda a, b: torch.nn.functional.layer_norm(a, (6,)),
    lambda a, b: a + b.sum() * 0.01,
    lambda a, b: a.reshape(6, 4).t(),
    lambda a, b: torch.cat([a[:, 3:], b[:, :3]], 1),
    lambda a, b: torch.cat([a[2:], b[1:3] * 2]),
    lambda a, b: a.flip(0) + b[0],
    lambda a, b: a[:, :1] * b,
    lambda a, b: torch.nn.functional.pad(a[1:], (0, 0, 1, 0)) - b,
    lambda a, b: (a @ b.t() * 0.1) @ b,
    lambda a, b: a.reshape(2, 12).sum(0).view(2, 6).repeat(2, 1) * 0.1,
    lambda a, b: a.half().float() + torch.arange(6),
    lambda a, b: torch.full_like(a, 0.5) * b,
]


@st.composite
def functions(draw):
    """A function of two tensors: steps over earlier values, and which values it returns."""
    count = draw(st.integers(2, 14))
    steps = [
        (draw(st.sampled_from(STEPS)), draw(st.integers(0, number + 1)), draw(st.integers(0, number + 1)))
        for number in range(count)
    ]
    returned = draw(st.lists(st.integers(2, count + 1), min_size=1, max_size=3, unique=True))

    def function(x, y):
        values = [x, y]
        for step, first, second in steps:
            values.append(step(values[first], values[second]))
        return [values[number] for number in (*returned, count + 1)]

    return function


@settings(max_examples=40, deadline=None)
@given(functions(), st.integers(0, 2**31))
def test_every_config_equals_eager(function, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(4, 6, generator=generator) for _ in range(2)]
    graph = graph_of(function, *inputs)
    launches = {}
    for name in ("none", "default", "aggressive"):
        program = run(graph, config(name))
        compare(program, function, inputs)
        launches[name] = len(program.launches)
        written = [buffer for step in program.steps for buffer in step.writes]
        assert len(written) == len(set(written))
    assert launches["default"] <= launches["none"]
