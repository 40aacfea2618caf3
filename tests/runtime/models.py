"""One program with everything that the runtime handles, and the same computation in eager torch."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from stages import buffers
from stages.buffers import BuffersConfig
from stages.ir.program import Extern, Program, TensorRef
from tests.buffers.programs import add_kernel, launch, program, scale_kernel, shift_kernel, whole

aten = torch.ops.aten


def mlp(device: torch.device | None = None, seed: int = 0) -> tuple[Program, list[Tensor]]:
    """x[4, 8] user, w[8, 8] weight, c[8, 8] constant:

        h = x @ w.T           out-variant into the arena, a view of a weight
        g = shift(2 h)        two kernels, in place
        s, i = sort(g)        an operator that allocates two results, one of them unused
        y = s @ c             out-variant into an output
        z = y + x             a kernel on an input and outputs
        v = z[:, ::2] + 1     an operator that allocates, its result copied into an output that has strides

    returns z, s, 7, None, x[1:3], v
    """
    generator = torch.Generator().manual_seed(seed)
    weight, constant = (torch.randn(8, 8, generator=generator) for _ in range(2))
    steps = [
        Extern(aten.mm.out, (whole("x", 4, 8), TensorRef("w", (8, 8), (1, 8))), {}, (whole("h", 4, 8),), out=True),
        launch(scale_kernel(32, 2.0), "h", "d", line=2),
        launch(shift_kernel(4, 8), "d", "g", line=3),
        Extern(aten.sort.default, (whole("g", 4, 8), 1), {}, (whole("s", 4, 8), None)),
        Extern(aten.mm.out, (whole("s", 4, 8), whole("c", 8, 8)), {}, (whole("y", 4, 8),), out=True),
        launch(add_kernel(32), "y", "x", "z", line=6),
        Extern(aten.add.Tensor, (TensorRef("z", (4, 4), (8, 2)), 1), {}, (TensorRef("v", (4, 4), (1, 4)),)),
    ]
    outputs = [
        whole("z", 4, 8),
        whole("s", 4, 8),
        7,
        None,
        TensorRef("x", (2, 8), (8, 1), 8),
        TensorRef("v", (4, 4), (1, 4)),
    ]
    roles = [("x", "user", 32), ("w", "weight", 64), ("c", "constant", 64)]
    roles += [(name, "arena", 32) for name in ("h", "d", "g")]
    roles += [("s", "extern", 32), ("y", "output", 32), ("z", "output", 32), ("v", "output", 16)]
    place = device or torch.device("cpu")
    tensors = {"w": weight.to(place), "c": constant.to(place)}
    made = program(roles, steps, outputs, tensors)
    geometry = {
        "x": dataclasses.replace(made.geometry["x"], shape=(4, 8), strides=(8, 1), device=place),
        "w": dataclasses.replace(made.geometry["w"], shape=(8, 8), strides=(8, 1), device=place),
    }
    made = dataclasses.replace(made, device=place, geometry=geometry)
    return buffers.run(made, BuffersConfig("best")), [tensors["w"], tensors["c"]]


def eager_mlp(x: Tensor, weight: Tensor, constant: Tensor) -> list[object]:
    doubled = 2 * (x @ weight.T)
    ordered = (doubled - doubled.amax(1, keepdim=True)).sort(1)[0]
    z = ordered @ constant + x
    return [z, ordered, 7, None, x[1:3], z[:, ::2] + 1]


def assert_same(got: list[object], wanted: list[object]) -> None:
    """Equal up to float32 rounding of a sum of eight terms of order 10."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        if isinstance(other, Tensor):
            assert isinstance(one, Tensor)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)
        else:
            assert one == other
