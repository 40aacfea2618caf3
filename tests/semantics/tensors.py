"""Shapes and memory: promotion, nothing at all, overlap, flips, layouts, views of another type, indices, copies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics.case import Case, allowed, case, each, group

nan, inf = float("nan"), float("inf")
KINDS = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)


def _promotions() -> dict[str, Case]:
    scalars = {"True": True, "2": 2, "-3": -3, "1.5": 1.5, "0.1": 0.1, "1e10": 1e10, "inf": inf, "300": 300}
    operations = {
        "+": lambda a, b: a + b,
        "*": lambda a, b: a * b,
        "right -": lambda a, b: b - a,
        "==": lambda a, b: a == b,
        "<": lambda a, b: a < b,
        "/": lambda a, b: a / b,
        "where": lambda a, b: torch.where(a > 0, a, b),
        "maximum": lambda a, b: torch.maximum(a, torch.as_tensor(b)),
        "clamp": lambda a, b: a.clamp(max=b),
        "full": lambda a, b: torch.full_like(a, b),
        "add alpha": lambda a, b: torch.add(a, a, alpha=b),
    }
    found = {}
    for dtype in KINDS:

        def vector(dtype: torch.dtype = dtype) -> tuple[Tensor]:
            return (torch.tensor([0, 1, 2, 3, 100, 1, 0, 5, 7]).to(dtype),)

        functions = {
            f"{name} {text}": (lambda a, run=run, number=number: run(a, number))
            for name, run in operations.items()
            for text, number in scalars.items()
        }
        # Eager rounds a half type between the product and the sum of `add` with alpha; ours does not.
        exact = dtype.itemsize != 2 or not dtype.is_floating_point
        found[f"{dtype} and numbers"] = group(vector, allowed(vector, functions), exact=exact)

        def mixed(dtype: torch.dtype = dtype) -> tuple[Tensor, ...]:
            others = (torch.tensor([1, 2, 3]).to(kind) for kind in KINDS)
            points = (torch.tensor(3).to(kind) for kind in KINDS)
            return (torch.tensor([1, 0, 2]).to(dtype), torch.tensor(2).to(dtype), *others, *points)

        def sums(vector: Tensor, point: Tensor, *others: Tensor) -> list[Tensor]:
            results = [vector + other for other in others] + [point * other for other in others]
            results += [torch.where(vector > 1, point, other) for other in others]
            results += [torch.maximum(vector, other) for other in others] + [vector / other for other in others]
            return results + [torch.stack(torch.broadcast_tensors(vector.float(), other.float())) for other in others]

        def joined(vector: Tensor, point: Tensor, *others: Tensor) -> list[Tensor]:
            vectors = [other for other in others if other.ndim]
            return [torch.cat([vector, other]) for other in vectors] + [torch.lt(point, other) for other in others]

        found[f"{dtype} and tensors"] = case(sums, mixed)
        found[f"{dtype} joined"] = case(joined, mixed)
    found["0-dim"] = group(
        lambda: (torch.tensor(2.5), torch.tensor([3, 4]), torch.tensor(7), torch.tensor([1.5], dtype=torch.bfloat16)),
        {
            "float point and ints": lambda a, b, c, d: a + b,
            "float64 point": lambda a, b, c, d: a.double() * d,
            "point and half": lambda a, b, c, d: a * d,
            "two points": lambda a, b, c, d: a * c,
            "int point, half": lambda a, b, c, d: c * d,
            "pow": lambda a, b, c, d: b**c,
            "float pow": lambda a, b, c, d: b**a,
            "sum of a point": lambda a, b, c, d: a.sum(),
            "softmax of a point": lambda a, b, c, d: torch.softmax(a, 0),
            "argmax of a point": lambda a, b, c, d: a.argmax(),
            "max of a point": lambda a, b, c, d: a.max(0),
            "cumsum of a point": lambda a, b, c, d: c.cumsum(0),
            "sort of a point": lambda a, b, c, d: a.sort(),
            "lerp": lambda a, b, c, d: torch.lerp(d.float(), a, 0.3),
            "result": lambda a, b, c, d: (a + 1, c + 1, c + 1.0, c / 2, c // 2, a.int()),
            "item": lambda a, b, c, d: b * 3 + len(b),
        },
    )
    return found


NOTHING = {
    "add": lambda a, b: a + 1,
    "cat": lambda a, b: torch.cat([a, b]),
    "cat 2": lambda a, b: torch.cat([a, a], 1),
    "sum": lambda a, b: a.sum(),
    "sum 0": lambda a, b: a.sum(0),
    "sum 1": lambda a, b: a.sum(1),
    "sum of ints": lambda a, b: a.int().sum(0),
    "prod": lambda a, b: a.prod(),
    "prod 0": lambda a, b: a.prod(0),
    "prod of bools": lambda a, b: a.bool().prod(0),
    "mean": lambda a, b: a.mean(),
    "mean 0": lambda a, b: a.mean(0),
    "mean 1": lambda a, b: a.mean(1),
    "var": lambda a, b: a.var(0),
    "any": lambda a, b: a.any(),
    "all": lambda a, b: a.all(),
    "all 0": lambda a, b: a.all(0),
    "any 0": lambda a, b: (a > 0).any(0),
    "amax": lambda a, b: a.amax(1),
    "argmax": lambda a, b: a.argmax(1),
    "norm": lambda a, b: a.norm(),
    "norm 0": lambda a, b: torch.linalg.vector_norm(a, dim=0),
    "logsumexp": lambda a, b: torch.logsumexp(a, 0),
    "softmax 0": lambda a, b: torch.softmax(a, 0),
    "softmax 1": lambda a, b: torch.softmax(a, 1),
    "cumsum": lambda a, b: a.cumsum(0),
    "matmul": lambda a, b: a.t() @ a,
    "matmul of nothing": lambda a, b: a @ b.t(),
    "linear": lambda a, b: F.linear(a, b),
    "linear without features": lambda a, b: F.linear(a.t(), a.t(), torch.ones(4)),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,)),
    "reshape": lambda a, b: a.reshape(0, 2, 2),
    "flip": lambda a, b: a.flip(0),
    "index": lambda a, b: b[torch.zeros(0, dtype=torch.long)],
    "index_select": lambda a, b: b.index_select(1, torch.zeros(0, dtype=torch.long)),
    "gather": lambda a, b: b.gather(0, torch.zeros(0, 4, dtype=torch.long)),
    "embedding": lambda a, b: F.embedding(torch.zeros(0, 2, dtype=torch.long), b),
    "scatter": lambda a, b: b.scatter_add(0, torch.zeros(0, 4, dtype=torch.long), a),
    "count_nonzero": lambda a, b: a.count_nonzero(),
    "sort": lambda a, b: a.sort(0),
    "full": lambda a, b: torch.full((0, 3), 7),
    "ones": lambda a, b: torch.ones(2, 0).sum(1) + 1,
    "where": lambda a, b: torch.where(a > 0, a, 1.0),
    "pad": lambda a, b: F.pad(a, (1, 1, 1, 1), value=2.0),
    "expand": lambda a, b: b[:1].expand(0, 4) * 2,
    "slice": lambda a, b: b[3:1] * 2,
    "tril": lambda a, b: a.tril(),
    "bmm": lambda a, b: torch.bmm(torch.ones(2, 3, 0), torch.ones(2, 0, 5)),
    "addmm": lambda a, b: torch.addmm(torch.ones(3, 4), torch.ones(3, 0), torch.ones(0, 4)),
    "stack": lambda a, b: torch.stack([a, a]),
    "masked": lambda a, b: a.masked_fill(a > 0, 1),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "count": lambda a, b: torch.zeros(0, dtype=torch.bool).sum(),
    "max of a kept dim": lambda a, b: a.max(1),
    "mse": lambda a, b: F.mse_loss(a, a),
    "conv without images": lambda a, b: F.conv2d(torch.ones(0, 2, 5, 5), torch.ones(3, 2, 3, 3)),
    "cross entropy of nothing": lambda a, b: F.cross_entropy(a, torch.zeros(0, dtype=torch.long)),
}


def _overlapping() -> tuple[Tensor, ...]:
    base = torch.arange(1.0, 25.0)
    return (
        base[:4].expand(3, 4),
        base.as_strided((5, 4), (2, 1)),
        base.as_strided((3, 3), (1, 1), 2),
        base[5:6].expand(2, 3, 4),
        base[::2][:4],
        base.view(4, 6).t()[1::2, :4],
        base.as_strided((4,), (0,), 3),
    )


STRIDED = {
    "times 2": lambda *t: [x * 2 for x in t],
    "sum": lambda *t: [x.sum(-1) for x in t],
    "sum 0": lambda *t: [x.sum(0) for x in t],
    "softmax": lambda *t: [x.cumsum(0) for x in t],
    "flip": lambda *t: [x.flip(-1) * 1.0 for x in t],
    "flip all": lambda *t: [x.flip(tuple(range(x.ndim))) + 1 for x in t],
    "flip twice": lambda *t: [x.flip(0).flip(0) - x for x in t],
    "clone": lambda *t: [x.clone() for x in t],
    "contiguous": lambda *t: [x.contiguous() + 0 for x in t],
    "zeros like": lambda *t: [torch.zeros_like(x) for x in t],
    "empty like, filled": lambda *t: [torch.empty_like(x).fill_(3) for x in t],
    "where": lambda *t: [torch.where(x > 5, x, -x) for x in t],
    "cat": lambda *t: [torch.cat([x, x * 2], -1) for x in t],
    "roll": lambda *t: [x.roll(1, 0) for x in t],
    "transposed": lambda *t: [x.t() * 3 for x in t if x.ndim == 2],
    "of each other": lambda a, b, c, d, e, f, g: (a[:, :3] + c, b[:3] * a, d[0] + c[:, :1], e * g),
    "rotated": lambda a, b, *t: (torch.rot90(b), torch.rot90(a, 2)),
    "unfold": lambda a, b, c, d, e, *t: (e.unfold(0, 2, 1) * 2, b.unfold(1, 3, 1).sum(-1)),
    "expand sum": lambda a, b, *t: (b[:, None].expand(5, 3, 4).sum(1), (a * 2).expand(2, 3, 4)[0] + 1),
    "diagonal": lambda a, b, c, *t: (c.diagonal() * 2, torch.diag_embed(c[0]), c.tril(), c.triu(1)),
    "movedim": lambda a, b, c, d, *t: d.movedim(0, -1) * 1,
    "as_strided": lambda a, b, c, d, e, f, g: (
        (b * 2).as_strided((3, 2), (4, 2), 1) + 1,
        (a * 2).as_strided((2, 2), (1, 1)) * 2,
        (f * 1).contiguous().as_strided((3,), (1,), 2),
    ),
    "negative step by flip": lambda a, b, c, d, e, *t: e.flip(0)[1:3] * b.flip(1)[0, :2],
}

IMAGE = {
    "pointwise": lambda x, y: torch.relu(x) + 1,
    "mixed": lambda x, y: x + y,
    "mixed other": lambda x, y: y * x,
    "channels last out": lambda x, y: x.to(memory_format=torch.channels_last),
    "contiguous out": lambda x, y: y.contiguous() * 2,
    "permuted": lambda x, y: x.permute(0, 2, 3, 1) * 2,
    "permuted back": lambda x, y: (x.permute(2, 3, 0, 1) * 2).permute(2, 3, 0, 1),
    "sum of channels": lambda x, y: y.sum(1, keepdim=True),
    "mean of space": lambda x, y: y.mean((2, 3)),
    "conv": lambda x, y: F.conv2d(y, torch.ones(5, 4, 3, 3)),
    "conv of nchw": lambda x, y: F.conv2d(x, torch.ones(5, 4, 3, 3)),
    "max_pool": lambda x, y: F.max_pool2d(y, 2),
    "avg_pool": lambda x, y: F.avg_pool2d(y, 2),
    "adaptive": lambda x, y: F.adaptive_avg_pool2d(y, 1),
    "adaptive 2": lambda x, y: F.adaptive_avg_pool2d(y, 2),
    "interpolate": lambda x, y: F.interpolate(y, scale_factor=2.0),
    "bilinear": lambda x, y: F.interpolate(y, scale_factor=2.0, mode="bilinear"),
    "pad": lambda x, y: F.pad(y, (1, 1)),
    "pad reflect": lambda x, y: F.pad(y, (1, 1, 1, 1), mode="reflect"),
    "cat": lambda x, y: torch.cat([y, y], 1),
    "cat mixed": lambda x, y: torch.cat([x, y], 1),
    "group_norm": lambda x, y: F.group_norm(y, 2),
    "group_norm of nchw": lambda x, y: F.group_norm(x, 2),
    "group_norm, affine": lambda x, y: F.group_norm(y, 2, torch.ones(4), torch.zeros(4)) + 1,
    "logsigmoid": lambda x, y: F.logsigmoid(y),
    "instance_norm": lambda x, y: F.instance_norm(y),
    "batch_norm": lambda x, y: F.batch_norm(y, torch.zeros(4), torch.ones(4)),
    "batch_norm, permuted": lambda x, y: F.batch_norm(x.permute(3, 1, 2, 0), torch.zeros(4), torch.ones(4)),
    "batch_norm in training, permuted": lambda x, y: F.batch_norm(x[0].permute(1, 0, 2), None, None, training=True),
    "batch_norm in training": lambda x, y: F.batch_norm(y, None, None, training=True),
    "layer_norm": lambda x, y: F.layer_norm(y, (3, 6)),
    "softmax": lambda x, y: torch.softmax(y, 1),
    "flatten": lambda x, y: y.flatten(1) * 2,
    "view": lambda x, y: x.view(2, -1),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(y, 2),
    "pixel_unshuffle": lambda x, y: F.pixel_unshuffle(y[:, :, :2, :2], 2),
    "channel_shuffle": lambda x, y: F.channel_shuffle(x, 2),
    "channel_shuffle of nhwc": lambda x, y: F.channel_shuffle(y, 2),
    "one_hot": lambda x, y: F.one_hot(y.abs().long(), 9),
    "clone": lambda x, y: y.clone(),
    "zeros_like": lambda x, y: torch.zeros_like(y),
    "sigmoid": lambda x, y: (y > 0).float(),
    "to half": lambda x, y: y.to(torch.bfloat16),
    "where": lambda x, y: torch.where(y > 0, y, x),
    "slice of channels": lambda x, y: y[:, 1:3] * 2,
    "unsqueeze": lambda x, y: y.unsqueeze(2) + 1,
    "broadcast": lambda x, y: y + torch.ones(4, 1, 1),
    "cumsum": lambda x, y: y.cumsum(1),
    "flip": lambda x, y: y.flip(3),
    "transposed matmul": lambda x, y: y.transpose(2, 3) @ y,
    "stack": lambda x, y: torch.stack([y, y], 1),
    "new zeros": lambda x, y: y.new_zeros(2, 3),
    "empty with format": lambda x, y: torch.empty_like(x, memory_format=torch.channels_last).fill_(1),
    "3d": lambda x, y: y[:, :, None].to(memory_format=torch.channels_last_3d) * 2,
}


def images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randint(-8, 8, (2, 4, 3, 6)).float()
    return x, torch.randint(-8, 8, (2, 4, 3, 6)).float().contiguous(memory_format=torch.channels_last)


REINTERPRETED = {
    "int32": lambda x, c: x.view(torch.int32) + 1,
    "int16": lambda x, c: x.view(torch.int16) * 2,
    "uint8": lambda x, c: x.view(torch.uint8).sum(-1),
    "there and back": lambda x, c: (x.view(torch.int32) ^ 0).view(torch.float32) * 2,
    "computed": lambda x, c: (x * 2).view(torch.int32) & 0x7FFFFFFF,
    "abs by bits": lambda x, c: ((x * -1).view(torch.int32) & 0x7FFFFFFF).view(torch.float32),
    "half bits": lambda x, c: x.to(torch.bfloat16).view(torch.int16),
    "half from bits": lambda x, c: x.view(torch.bfloat16) + 0,
    "wider": lambda x, c: x.view(torch.float64).view(torch.int64),
    "real": lambda x, c: torch.view_as_real(c) * 2,
    "complex": lambda x, c: torch.view_as_complex(x.view(3, 2, 2)) * 2,
    "complex of computed": lambda x, c: torch.view_as_complex((x * 2).view(3, 2, 2)).abs(),
    "real of conj": lambda x, c: torch.view_as_real(c.conj().resolve_conj()) + 1,
    "conj": lambda x, c: c.conj() * c,
    "conj matmul": lambda x, c: c.conj() @ c.t(),
    "conj out": lambda x, c: (c * 2).conj().resolve_conj(),
    "hermitian": lambda x, c: c.mH @ c,
    "imag": lambda x, c: (c.imag + 1, c.real * 2),
    "imag of conj": lambda x, c: c.conj().imag + 1,
    "neg view": lambda x, c: torch._neg_view(x) + 1,
    "abs": lambda x, c: c.abs(),
    "angle": lambda x, c: c.angle(),
    "polar": lambda x, c: torch.polar(x.abs(), torch.zeros_like(x)),
    "complex sum": lambda x, c: c.sum(0),
    "complex mul": lambda x, c: c * 2j + 1,
    "sgn": lambda x, c: c.sgn(),
    "bool bytes": lambda x, c: (x > 2).view(torch.uint8) + 1,
    "frexp": lambda x, c: torch.frexp(x),
    "fft": lambda x, c: torch.fft.fft(torch.ones(4)).real,
    "rope": lambda x, c: torch.view_as_real(torch.view_as_complex(x.view(3, 2, 2)) * c[:3, :2]).flatten(1),
}


def bits() -> tuple[Tensor, Tensor]:
    return (
        torch.tensor([[1.5, -2.0, 0.0, -0.0], [3.0, inf, -inf, 1e-40], [5.0, 6.0, -7.0, 8.0]]),
        torch.complex(torch.arange(12.0).view(4, 3), -torch.arange(12.0).view(4, 3) + 3),
    )


WITH_A_BIT = {
    "matmul": lambda c, n: c @ c.t(),
    "rows": lambda c, n: c[1:] * 2j,
    "parts": lambda c, n: (c.imag + 1, c.real * 2),
    "conjugate again": lambda c, n: c.conj() + 1,
    "resolved": lambda c, n: torch.view_as_real(c.resolve_conj()).sum(-1),
    "returned": lambda c, n: (c, c[0], n.t()),
    "negative": lambda c, n: n.t() + n.sum(),
    "written": lambda c, n: (c.mul_(2), n.add_(1)),
}


def with_a_bit() -> tuple[Tensor, Tensor]:
    """A conjugate view, and a negative one."""
    value = torch.complex(torch.arange(12.0).view(4, 3), 3 - torch.arange(12.0).view(4, 3))
    return value.conj(), torch._neg_view(torch.arange(6.0).view(2, 3))


def _indices() -> dict[str, Case]:
    def source() -> tuple[Tensor, Tensor, Tensor]:
        return torch.arange(20.0).view(5, 4), torch.tensor([0, -1, 3, -5, 4, 0]), torch.tensor([1, -4, 3, 0, -1, 2])

    right = {
        "rows": lambda x, i, j: x[i] + 1,
        "pairs": lambda x, i, j: x[i, j] * 2,
        "columns": lambda x, i, j: x[:, j],
        "negative number": lambda x, i, j: x[-1] + x[:, -2].sum(),
        "rows then pairs": lambda x, i, j: x[i][:, j],
        "outer": lambda x, i, j: x[i[:, None], j[None]],
        "mask": lambda x, i, j: torch.where(x > 3, x, 0).sum(),
        "index_select": lambda x, i, j: x.index_select(0, i.clamp(0)),
        "take": lambda x, i, j: torch.take(x, i),
        "take_along_dim": lambda x, i, j: torch.take_along_dim(x, i.clamp(0, 3)[:5, None], 1),
        "gather": lambda x, i, j: x.gather(1, i.clamp(0, 3)[:5, None].expand(5, 2)),
        "gather of computed": lambda x, i, j: (x * 2).gather(0, i.clamp(0)[None, :4]),
        "embedding": lambda x, i, j: F.embedding(i.clamp(0), x),
        "embedding padding": lambda x, i, j: F.embedding(i.clamp(0), x, padding_idx=0),
        "computed index": lambda x, i, j: x[(i * 7) % 5],
        "index of index": lambda x, i, j: x[i[j.clamp(0)]],
        "int32 index": lambda x, i, j: x[i.int()],
        "uint8 mask sum": lambda x, i, j: (x * (x > 2)).sum(),
        "one_hot": lambda x, i, j: F.one_hot(i.clamp(0), 6),
        "index_put": lambda x, i, j: x.index_put((i,), torch.tensor(9.0)),
        "index_put accumulate": lambda x, i, j: x.index_put((i,), torch.ones(6, 4), accumulate=True),
        "index_put pairs accumulate": lambda x, i, j: x.index_put((i, j), torch.arange(6.0), accumulate=True),
        "index_put ints": lambda x, i, j: x.long().index_put((i, j), torch.arange(6), accumulate=True),
        "index_add": lambda x, i, j: x.index_add(0, i.clamp(0), torch.ones(6, 4), alpha=2),
        "index_copy": lambda x, i, j: x.index_copy(0, i.clamp(0)[2:5], torch.ones(3, 4)),
        "index_fill": lambda x, i, j: x.index_fill(0, i.clamp(0), -1.0),
        "index_reduce": lambda x, i, j: x.index_reduce(0, i.clamp(0), torch.ones(6, 4), "amax"),
        "scatter": lambda x, i, j: x.scatter(1, i.clamp(0, 3)[:5, None], 7.0),
        "scatter src": lambda x, i, j: x.scatter(0, i.clamp(0)[None, 1:5], torch.ones(1, 4) * 3),
        "scatter_add": lambda x, i, j: x.scatter_add(0, i.clamp(0)[:, None].expand(6, 4), torch.ones(6, 4)),
        "scatter_add halves": lambda x, i, j: (
            (x / 8).half().scatter_add(0, i.clamp(0)[:, None].expand(6, 4), torch.ones(6, 4).half())
        ),
        "scatter_reduce": lambda x, i, j: x.scatter_reduce(0, i.clamp(0)[:, None], torch.ones(6, 1) * 2, "prod"),
        "scatter_reduce amax": lambda x, i, j: x.scatter_reduce(
            0, i.clamp(0)[:, None], torch.tensor([nan, 1, 2, 3, inf, 1])[:, None], "amax", include_self=False
        ),
        "scatter_reduce mean": lambda x, i, j: x.scatter_reduce(0, i.clamp(0)[:, None], torch.ones(6, 1), "mean"),
        "bool index": lambda x, i, j: x.index_put((x > 3,), torch.tensor(0.0)),
        "masked_scatter": lambda x, i, j: x.masked_scatter(x > 10, torch.arange(20.0)),
        "searchsorted": lambda x, i, j: torch.searchsorted(x[0], torch.tensor([nan, 1.0, 1.5, -inf, inf])),
        "bucketize": lambda x, i, j: torch.bucketize(torch.tensor([nan, 1.0, 5.0]), torch.tensor([0.0, 1.0, 2.0])),
        "select_scatter": lambda x, i, j: torch.select_scatter(x, torch.ones(4), 0, -1),
        "slice_scatter": lambda x, i, j: torch.slice_scatter(x, torch.ones(2, 4), 0, 1, 5, 2),
        "diagonal_scatter": lambda x, i, j: torch.diagonal_scatter(x[:4], torch.ones(4)),
        "bincount": lambda x, i, j: torch.bincount(i.clamp(0)),
    }
    # What cannot be told before the call: eager raises at the call, and so have we.
    wrong = {
        "rows": lambda x, i, j: x[i + 1] + 1,
        "negative rows": lambda x, i, j: x[i - 1] + 1,
        "pairs": lambda x, i, j: x[i, j + 1],
        "summed": lambda x, i, j: x[i + 1].sum(),
        "gather": lambda x, i, j: x.gather(1, (i[:5, None]).expand(5, 2)),
        "gather far": lambda x, i, j: (x + 1).gather(0, i[None, :4].abs() + 2),
        "index_select": lambda x, i, j: x.index_select(0, i + 2),
        "index_select negative": lambda x, i, j: x.index_select(0, i),
        "take": lambda x, i, j: torch.take(x, i + 20),
        "embedding": lambda x, i, j: F.embedding(i.abs() + 1, x),
        "embedding negative": lambda x, i, j: F.embedding(i, x) * 2,
        "embedding far": lambda x, i, j: F.embedding(i + (1 << 40), x),
        "index_put": lambda x, i, j: x.index_put((i + 1,), torch.tensor(9.0)),
        "index_put accumulate": lambda x, i, j: x.index_put((i - 1,), torch.ones(6, 4), accumulate=True),
        "scatter": lambda x, i, j: x.scatter(1, i[:5, None].abs() + 1, 7.0),
        "scatter negative": lambda x, i, j: x.scatter(0, i[None, :4], 1.0),
        "scatter_add": lambda x, i, j: x.scatter_add(0, (i.abs() + 1)[:, None].expand(6, 4), torch.ones(6, 4)),
        "index_add": lambda x, i, j: x.index_add(0, i.abs() + 1, torch.ones(6, 4)),
        "index_copy": lambda x, i, j: x.index_copy(0, i.abs() + 1, torch.ones(6, 4)),
        "index_fill": lambda x, i, j: x.index_fill(0, i.abs() + 1, 0.0),
        "one_hot": lambda x, i, j: F.one_hot(i.abs(), 3),
        "cross entropy": lambda x, i, j: F.cross_entropy(x, i[:5].abs()),
        "nll": lambda x, i, j: F.nll_loss(x, i[:5].abs(), reduction="sum"),
        "from an empty tensor": lambda x, i, j: x[:0][i],
        "multinomial": lambda x, i, j: torch.multinomial(-x, 1),
    }
    found = {"indices": group(source, right)}
    return found | {f"out of bounds: {name}": one for name, one in each(source, wrong).items()}


def _cases() -> dict[str, Case]:
    return {
        **_promotions(),
        "nothing": group(lambda: (torch.ones(0, 4), torch.ones(3, 4)), NOTHING),
        "strided": group(_overlapping, STRIDED),
        "images": group(images, IMAGE, exact=False),
        "views of another type": group(bits, REINTERPRETED),
        **{
            f"alone: {name}": one
            for name, one in each(bits, REINTERPRETED).items()
            if "conj" in name or name == "hermitian"
        },
        **{f"inputs with a bit: {name}": one for name, one in each(with_a_bit, WITH_A_BIT).items()},
        **{f"alone: {name}": one for name, one in each(images, IMAGE, exact=False).items() if "norm" in name},
        **_indices(),
    }


CASES = _cases()
