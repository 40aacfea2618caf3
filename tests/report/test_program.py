"""From a Program to its record: bytes and operations by hand."""

import pytest
import torch

from pipeline.report import record_program
from pipeline.report.program import extern_flop, kernel_flop
from stages.ir import index
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Buffer, load, op, reduce
from stages.ir.graph import Origin
from stages.ir.kernel import Kernel, Store, normalize
from stages.ir.program import ArenaPlan, BufferSpec, Decision, Extern, Launch, Program, TensorRef

aten = torch.ops.aten


def softmax(rows=6, columns=8):
    r, c = Axis("r", rows), Axis("c", columns)
    at = index.linearize(index.variables((r, c)), (columns, 1))
    value = load(Buffer("in0", DType.FLOAT32, rows * columns), at)
    shifted = op("exp", op("sub", value, reduce("max", (c,), value)))
    out = op("div", shifted, reduce("sum", (c,), shifted))
    return normalize(
        Kernel("softmax", (r,), (c,), (Store(Buffer("out0", DType.FLOAT32, rows * columns), at, out, True),))
    )


def ref(name, *shape):
    strides = torch.empty(shape, device="meta").stride()
    return TensorRef(name, shape, tuple(strides))


def test_flop_of_a_kernel():
    # sub, exp and div at each of 48 positions, and two reductions over them.
    assert kernel_flop(softmax()) == 3 * 48 + 2 * 48


@pytest.mark.parametrize(
    ("target", "args", "out", "expected"),
    [
        (aten.mm.out, (ref("a", 3, 4), ref("b", 4, 5)), ref("o", 3, 5), 2 * 3 * 4 * 5),
        (aten.addmm.default, (ref("c", 5), ref("a", 3, 4), ref("b", 4, 5)), ref("o", 3, 5), 2 * 3 * 4 * 5),
        (aten.bmm.default, (ref("a", 2, 3, 4), ref("b", 2, 4, 5)), ref("o", 2, 3, 5), 2 * 2 * 3 * 4 * 5),
        (
            aten.convolution.default,
            (ref("x", 1, 4, 8, 8), ref("w", 6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
            ref("o", 1, 6, 8, 8),
            2 * 6 * 64 * 4 * 9,
        ),
        (aten.linear.default, (ref("x", 2, 3, 4), ref("w", 5, 4)), ref("o", 2, 3, 5), 2 * 6 * 4 * 5),
        (
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            (ref("q", 1, 2, 7, 4), ref("k", 1, 2, 9, 4), ref("v", 1, 2, 9, 4)),
            ref("o", 1, 2, 7, 4),
            2 * 2 * (2 * 7 * 9 * 4),
        ),
        (aten.sort.default, (ref("x", 4),), ref("o", 4), 0),
    ],
)
def test_flop_of_torch_operators(target, args, out, expected):
    assert extern_flop(Extern(target, args, {}, (out,))) == expected


def test_a_program_becomes_a_record():
    float32 = torch.float32
    names = (("a", 6 * 4, "user"), ("b", 4 * 8, "weight"), ("t", 48, "arena"), ("o", 48, "output"))
    buffers = {name: BufferSpec(name, float32, size, role) for name, size, role in names}
    origin = Origin("src/models/bert.py", 12, "x = softmax(a @ b)", "layer.0")
    program = Program(
        torch.device("cpu"),
        (),
        buffers,
        (
            Extern(
                aten.mm.out, (ref("a", 6, 4), ref("b", 4, 8)), {}, (ref("t", 6, 8),), True, (origin,), "mm", "a product"
            ),
            Launch(softmax(), ("t", "o"), None, (origin,), "softmax"),
        ),
        (ref("o", 6, 8),),
        ArenaPlan(192, 192, 192, "none", ()),
        (Decision("mm", "softmax", False, "epilogue", "a row reduction", origin),),
        ("a note",),
        1000,
    )
    made = record_program(program, "graph 0", [1.0, 2.0], "<svg/>")
    product, kernel = made.steps
    assert (product.kind, product.reason, product.origin) == ("extern", "a product", "models/bert.py:12")
    assert (product.bytes_moved, product.flop) == (4 * (24 + 32 + 48), 2 * 6 * 4 * 8)
    assert (kernel.kind, kernel.bytes_moved, kernel.median_ms) == ("launch", 4 * 96, 2.0)
    assert kernel.code == "x = softmax(a @ b)" and kernel.module == "layer.0" and kernel.dtype == "float32"
    assert made.traffic_bytes == 4 * (24 + 32 + 48) + 4 * 96 and made.traffic_unfused_bytes == 1000
    assert made.plan.svg == "<svg/>" and made.decisions[0].reason == "a row reduction" and made.launches == 1
