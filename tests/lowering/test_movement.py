"""Views, copies and gathers against eager, exactly; chains of views at random; what lies outside is never read."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.fusion.lowering import Kind, NotFusable, kind_of, why_not
from stages.ir.expr import Load, Select
from tests.lowering.harness import calls, check, one_by_one, together, trace
from tests.lowering.samples import ALL, randn

VIEWS = {
    "view": lambda x: x.view(8, 2, 24),
    "flatten": lambda x: x.flatten(1),
    "permute": lambda x: x.permute(2, 0, 3, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "t": lambda x: x[0, 0].t(),
    "movedim": lambda x: x.movedim(1, 3),
    "expand": lambda x: x[:, :1].expand(2, 5, 4, 6),
    "expand_new": lambda x: x[0, 0].expand(3, 4, 6),
    "slice": lambda x: x[:, 1:7:3, -2:, :100],
    "slice_from_end": lambda x: x[..., -4:-1],
    "select": lambda x: x[:, -1, 2],
    "squeeze": lambda x: x[:1, :, :1].squeeze(),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2)),
    "unsqueeze": lambda x: x[:, :, None, :, :, None],
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "diagonal_below": lambda x: x.diagonal(-2, 1, 3),
    "split": lambda x: x.split(3, 1),
    "split_sizes": lambda x: x.split([2, 1, 5], 1),
    "chunk": lambda x: x.chunk(3, 1),
    "unbind": lambda x: x.unbind(2),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "as_strided": lambda x: x.as_strided((4, 5), (7, 2), 3),
    "real_heads": lambda x: x.view(2, 8, 24).transpose(1, 2).reshape(2, 24, 2, 4).transpose(1, 2),
}

COPIES = {
    "flip": lambda x: x.flip(1, 3),
    "rot90": lambda x: x.rot90(1, (2, 3)),
    "rot90_back": lambda x: x.rot90(-1, (1, 3)),
    "roll": lambda x: x.roll((3, -1), (1, 3)),
    "roll_all": lambda x: x.roll(5),
    "repeat": lambda x: x.repeat(3, 1, 2, 1, 2),
    "cat": lambda x: torch.cat([x, x[:, :3], x.flip(1)], 1),
    "cat_last": lambda x: torch.cat([-x[..., 3:], x[..., :3]], -1),
    "stack": lambda x: torch.stack([x, x + 1], 2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3),
    "pad_crop": lambda x: F.pad(x, (-1, 2, -2, 0, 1, -3)),
    "pad_twice": lambda x: F.pad(F.pad(x, (1, 1)), (1, 0, 2, 0), value=1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: torch.channel_shuffle(x, 4),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] + 1, 1, 1, 7, 3),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] + 1, 1, -2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "contiguous": lambda x: x.permute(3, 1, 0, 2).contiguous(),
    "channels_last": lambda x: (x + 1).contiguous(memory_format=torch.channels_last),
    "reshape": lambda x: x.transpose(1, 2).reshape(8, 48),
    "glu_halves": lambda x: torch.cat([x[:, :4], x[:, 4:]], 1),
}

LAYOUTS = {
    "contiguous": randn(2, 8, 4, 6),
    "channels_last": randn(2, 8, 4, 6).contiguous(memory_format=torch.channels_last),
    "offset": randn(3, 9, 4, 6)[1:, 1:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_what_the_kernel_computes(name):
    """Between two operators of one kernel, a view is composed into the index."""
    x = LAYOUTS["contiguous"]

    def function(x):
        found = VIEWS[name](x * 2)
        return [part + 1 for part in found] if isinstance(found, tuple) else found + 1

    outputs = 1 if not isinstance(VIEWS[name](x), tuple) else len(VIEWS[name](x))
    for position in range(outputs):
        single = function if outputs == 1 else lambda x, p=position: function(x)[p]
        ours, _ = together(single, [x])
        check(ours, single, [x], exact=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_memory(name, layout):
    """Outside the kernel, a view is read by its strides from the memory of its base."""
    x = LAYOUTS[layout]
    if layout != "contiguous" and name in ("as_strided", "view", "real_heads"):
        return  # eager refuses to view these, or reads beyond the placeholder

    def function(x):
        found = VIEWS[name](x)
        return tuple(part + 1 for part in found) if isinstance(found, tuple) else found + 1

    ours = one_by_one(function, [x])
    check(ours, function, [x], exact=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", COPIES)
def test_copies(name, layout):
    function, x = COPIES[name], LAYOUTS[layout]
    # FakeTensors promise other strides than eager then gives.
    same = layout != "channels_last" or name not in ("roll", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle")
    check(one_by_one(function, [x]), function, [x], exact=True, layout=same)
    check(together(function, [x])[0], function, [x], exact=True, layout=same)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copies_of_every_type(dtype):
    x = randn(4, 6, dtype=dtype)

    def function(x):
        return torch.cat([x, x[:2]]), F.pad(x, (1, 1)), x.flip(0), x.roll(1, 1), x.tril(), x.T.contiguous()

    check(one_by_one(function, [x]), function, [x], exact=True)


def test_cat_promotes_and_skips_empty_parts():
    inputs = [randn(2, 3), randn(2, 3, dtype=torch.int64), randn(2, 1, dtype=torch.bool), torch.empty(0)]

    def function(a, b, c, nothing):
        return torch.cat([a, b, c, nothing], 1), torch.cat([b, c], 1)

    check(one_by_one(function, inputs), function, inputs, exact=True)


def test_a_long_cat_is_refused():
    node = calls(trace(lambda x: torch.cat([x + i for i in range(9)]), [randn(2)]))[-1]
    assert kind_of(node) is Kind.EXTERN
    assert why_not(node) == "it joins 9 tensors, more than 8"


def test_nothing_is_read_outside_a_tensor_padded_or_joined():
    """Each part has a buffer of its own exact size: the interpreter refuses an unmasked access beyond it."""
    x, y, table = randn(3, 4), randn(2, 4, seed=1), randn(5, 4, seed=2)
    picks = torch.tensor([4, 0])

    def function(x, y, table, picks):
        rows = torch.cat([F.pad(x * 2, (1, 1)), F.pad(y, (2, 0)), F.pad(table[picks], (0, 2))])
        return rows.softmax(1) + 1

    ours, kernel = together(function, [x, y, table, picks])
    check(ours, function, [x, y, table, picks])
    assert all(node.mask is not None for node in kernel.nodes if isinstance(node, Load))


def test_rotary_embedding_is_one_kernel_without_division():
    q, cos, sin = randn(2, 4, 6, 8), randn(6, 8, seed=1), randn(6, 8, seed=2)

    def function(q, cos, sin):
        turned = torch.cat((-q[..., 4:], q[..., :4]), -1)
        return q * cos + turned * sin

    ours, kernel = together(function, [q, cos, sin])
    check(ours, function, [q, cos, sin])
    assert not any(getattr(node, "name", "") in ("floordiv", "mod") for node in kernel.nodes)


# ---- gathers --------------------------------------------------------------------------------

INDEX = torch.tensor([[0, 2], [3, 1], [1, 1]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_reads_at_loaded_positions(dtype):
    x, index = randn(4, 5, 6), INDEX.to(dtype)
    functions = [
        lambda x, i: F.embedding(i, x[0]),
        lambda x, i: F.embedding(i, x[0] * 2) + 1,
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[:, i - 2],
        lambda x, i: x[i, :, i + 1],
        lambda x, i: x[:, i[0], i],
        lambda x, i: x[i[:, :1], i],
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: (x * 2).index_select(-1, i[:, 0]),
        lambda x, i: torch.ops.aten._unsafe_index(x, [None, i]),
        lambda x, i: torch.gather(x[0], 0, i.long()),
        lambda x, i: torch.gather(x[0] + 1, 1, i.long()),
        lambda x, i: torch.take(x, i.long() - 3),
    ]
    for function in functions:
        check(one_by_one(function, [x, index]), function, [x, index], exact=True)
        check(together(function, [x, index])[0], function, [x, index], exact=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: F.embedding(i, x),
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: torch.gather(x, 0, i[:, None]),
        lambda x, i: torch.take(x, i * 5),
    ],
)
def test_an_index_out_of_range_is_an_error(function):
    x = randn(4, 5)
    for wrong in (4, 100, -5):
        with pytest.raises(IndexError):
            one_by_one(function, [x, torch.tensor([0, wrong])])


def test_embedding_takes_no_negative_index_as_eager_does_not():
    with pytest.raises(IndexError):
        one_by_one(lambda x, i: F.embedding(i, x), [randn(4, 5), torch.tensor([-1])])


def test_scatters_have_no_kernel():
    x = randn(4, 5)
    cases = [
        (lambda x: x.index_put((x[:, 0].long().abs() % 4,), x), "no lowering"),
        (lambda x: x.scatter(0, x.long().abs() % 4, x), "no lowering"),
    ]
    for function, reason in cases:
        node = calls(trace(function, [x]))[-1]
        assert kind_of(node) is Kind.EXTERN
        assert reason in why_not(node)


def test_nearest_upsampling():
    x = randn(2, 3, 4, 5)
    for size in ((8, 10), (4, 15), (12, 5)):
        function = lambda x, size=size: torch.ops.aten.upsample_nearest2d(x, list(size), None, None)  # noqa: E731
        check(together(lambda x, f=function: f(x) + 1, [x])[0], lambda x, f=function: f(x) + 1, [x], exact=True)
    function = lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1  # noqa: E731
    check(together(function, [x])[0], function, [x], exact=True)


# ---- creation -------------------------------------------------------------------------------


def test_creation():
    def function(x):
        return [
            made + 0
            for made in (
                torch.zeros(2, 3),
                torch.ones(3, dtype=torch.int64),
                torch.full((2,), 1.5),
                torch.full((2,), 7, dtype=torch.bfloat16),
                torch.full((2, 2), True),
                torch.zeros_like(x),
                torch.full_like(x, 2),
                x.new_full((3,), 4.0),
                x.new_ones(2, 2),
                torch.arange(5),
                torch.arange(2, 9, 3),
                torch.arange(5, dtype=torch.float32),
                torch.arange(0, 1, 0.1),
                torch.arange(1, 2, 0.3, dtype=torch.float64),
                torch.arange(9, 2, -2, dtype=torch.int32),
                torch.eye(3),
                torch.eye(2, 4, dtype=torch.int64),
                torch.scalar_tensor(2.5),
            )
        ]

    x = randn(2, 3)
    check(one_by_one(function, [x]), function, [x])
    nodes = [node for node in calls(trace(function, [x])) if "add" not in str(node.target)]
    assert {kind_of(node) for node in nodes} <= {Kind.CREATION, Kind.POINTWISE}


def test_a_causal_mask_needs_no_memory():
    def function(x):
        places = torch.arange(6)
        return x.masked_fill(places[None, :] > places[:, None], -float("inf")).softmax(-1)

    x = randn(3, 6, 6)
    ours, kernel = together(function, [x])
    check(ours, function, [x])
    assert len(kernel.inputs) == 1


# ---- chains ---------------------------------------------------------------------------------


@st.composite
def chains(draw):
    """A shape, and a list of movements that each fit the shape before."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    x = torch.zeros(shape)
    moves = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(["permute", "merge", "split", "slice", "select", "flip", "pad", "expand", "roll", "cat"])
        )
        dim = draw(st.integers(0, max(x.ndim - 1, 0)))
        move = None
        if kind == "permute":
            order = draw(st.permutations(range(x.ndim)))
            move = lambda t, o=order: t.permute(o)  # noqa: E731
        elif kind == "merge" and dim + 1 < x.ndim:
            move = lambda t, d=dim: t.flatten(d, d + 1)  # noqa: E731
        elif kind == "split" and x.ndim and x.shape[dim] % 2 == 0:
            move = lambda t, d=dim: t.unflatten(d, (t.shape[d] // 2, 2))  # noqa: E731
        elif kind == "slice" and x.ndim:
            start, step = draw(st.integers(0, x.shape[dim] - 1)), draw(st.integers(1, 2))
            move = lambda t, d=dim, s=start, e=step: t[(slice(None),) * d + (slice(s, None, e),)]  # noqa: E731
        elif kind == "select" and x.ndim > 1:
            move = lambda t, d=dim: t.select(d, t.shape[d] // 2)  # noqa: E731
        elif kind == "flip" and x.ndim:
            move = lambda t, d=dim: t.flip(d)  # noqa: E731
        elif kind == "pad" and x.ndim:
            sides = draw(st.tuples(st.integers(-1, 2), st.integers(0, 2)))
            if x.shape[-1] + sum(sides) > 0:
                move = lambda t, s=sides: F.pad(t, s, value=7)  # noqa: E731
        elif kind == "expand" and x.numel() < 200:
            move = lambda t: t[None].expand(2, *t.shape)  # noqa: E731
        elif kind == "roll" and x.ndim:
            move = lambda t, d=dim: t.roll(2, d)  # noqa: E731
        elif kind == "cat" and x.ndim and x.numel() < 200:
            move = lambda t, d=dim: torch.cat([t, t * 10], d)  # noqa: E731
        if move is not None and move(x).numel():
            moves.append(move)
            x = move(x).contiguous()
    return shape, moves


@settings(max_examples=40, deadline=None)
@given(chains(), st.booleans())
def test_chains_of_movements_equal_eager(chain, computed):
    shape, moves = chain
    x = torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape)

    def function(x):
        x = x * 2 if computed else x
        for move in moves:
            x = move(x)
        return x + 1

    ours, _ = together(function, [x])
    check(ours, function, [x], exact=True, layout=False)


def test_outputs_of_different_sizes_are_refused():
    with pytest.raises(NotFusable, match=r"add_1 has shape \[2\], which does not fit a loop over \[2, 3\]"):
        together(lambda x: (x + 1, x[:, 0] + 1), [randn(2, 3)])


def test_what_a_slice_never_reaches_is_not_read() -> None:
    """A condition that never holds is known from the ranges of the axes, and what it guards is not in the kernel."""

    def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.slice_scatter(torch.slice_scatter(torch.zeros(4, 16), x, 1, 0, 8), y, 1, 8, 16)
        return both[:, 8:] * 2

    inputs = [randn(4, 8), randn(4, 8)]
    ours, kernel = together(upper, inputs)
    check(ours, upper, inputs, exact=True)
    loads = [node for node in kernel.nodes if isinstance(node, Load)]
    assert len(loads) == 1
    assert loads[0].mask is None
    assert not any(isinstance(node, Select) for node in kernel.nodes)
