"""torchweld::attention: values (interpreted), layout, what takes it, and the machine code of its kernel."""

import pytest
import torch
import triton
from torch.nn import functional as F
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pipeline import optimize
from stages.codegen.triton.machine_code import assembler_report
from stages.ir.operators import attention, suits
from stages.ir.operators.attention_kernel import Tiles, attention_kernel, launch, tiles_for
from tests.codegen_triton.conftest import interpret  # noqa: F401
from tests.ir.operators.cases import SHAPES, expected, operands
from tests.rewrite.cuda import check, rewritten
from tests.rewrite.test_rewrite import Function

ALL_TILES = (Tiles(16, 16, 1, 1), Tiles(32, 16, 2, 2), Tiles(16, 64, 1, 2))


def launched(name, merged, tiles):
    """The kernel's result in float16 (the interpreter multiplies no bfloat16)."""
    return launch(*operands(name, torch.float16, merged), 0.3, SHAPES[name][5], tiles)


@pytest.mark.parametrize("tiles", ALL_TILES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_values(name, tiles, interpret):  # noqa: F811
    for merged in (False, True):
        query, key, value = operands(name, torch.float16, merged)
        got = interpret(launched, name, merged, tiles)
        assert got.stride() == torch.empty_like(query).stride()
        exact = expected(query, key, value, 0.3, SHAPES[name][5])
        assert (got.double() - exact).abs().max() <= 2**-9 * exact.abs().max()


def not_numbers():
    query, key, value = operands("odd", torch.float16)
    query[0, 0, 3, 5] = torch.nan
    value[1, 1, 4, 2] = torch.inf
    return launch(query, key, value, 0.3, False, ALL_TILES[0])


def test_what_is_no_number_stays_where_it_belongs(interpret):  # noqa: F811
    got = interpret(not_numbers)
    wrong = torch.zeros_like(got, dtype=torch.bool)
    wrong[0, 0, 3] = True
    assert torch.equal(got.isnan(), wrong)
    wrong = torch.zeros_like(wrong)
    wrong[1, 1, :, 2] = True
    assert torch.equal(got.isinf(), wrong)


def test_without_the_kernel_it_is_torchs():
    for name, (*_, causal) in SHAPES.items():
        query, key, value = operands(name, torch.float64, merged=True)
        got = attention(query, key, value, 0.3, causal)
        torch.testing.assert_close(got, expected(query, key, value, 0.3, causal), rtol=1e-12, atol=1e-12)
        assert got.stride() == torch.empty_like(query).stride()


def test_the_dispatcher_knows_it():
    torch.library.opcheck(torch.ops.torchweld.attention.default, (*operands("odd", torch.float32), 0.3, True))


def test_what_it_suits():
    query, key, value = operands("odd", torch.bfloat16)
    assert suits(query, key, value)
    assert not suits(query.float(), key.float(), value.float())
    assert not suits(query.half(), key, value)
    assert not suits(query, key[:, :1], value[:, :1]), "fewer heads of keys"
    assert not suits(query[..., ::2], key[..., ::2], value[..., ::2]), "elements apart"
    assert not suits(query, key[:, :, :0], value[:, :, :0]), "no keys"
    many = [torch.empty(4, 12, 512, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    assert suits(*many) and not suits(*many, causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "size",
    [
        (12, 128, 128, 64),
        (12, 64, 64, 16),
        (12, 512, 512, 64),
        (8, 256, 256, 128),
    ],
)
@pytest.mark.parametrize("capability", [80, 90])
def test_it_does_not_spill(capability, size, causal):
    tiles, depth = tiles_for(*size[:3]), size[-1]
    pointers = dict.fromkeys(("query", "key", "value", "out"), "*bf16")
    numbers = [name for name in attention_kernel.arg_names[5:] if name.islower()]
    signature = {**pointers, "scale": "fp32", **dict.fromkeys(numbers, "i32")}
    constants = {"CAUSAL": causal, "ROWS": tiles.rows, "KEYS": tiles.keys, "DEPTH": depth, "OVERLAPS": capability >= 90}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name not in (*constants, "scale")
    }
    aligned = {at: how for at, how in aligned.items() if list(signature)[at[0]] not in ("heads", "queries", "keys")}
    source = ASTSource(attention_kernel, signature, constants, aligned)
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages, "launch_pdl": capability >= 90}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    found = assembler_report(compiled.asm["ptx"])
    assert found["spill_stores"] == found["spill_loads"] == 0, found


# ---- what takes it --------------------------------------------------------------------------


def calls(graph):
    return [node for node in graph.module.graph.nodes if node.target is torch.ops.torchweld.attention.default]


def written_out(q, k, v, mask=None):
    """As torch takes attention apart: products and softmax in float32."""
    scores = (q.float() * 0.5) @ (k.float().transpose(-1, -2) * 0.5)
    return (torch.softmax(scores if mask is None else scores + mask, -1) @ v.float()).to(q.dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_half_types_takes_it_on_cuda(causal):
    def attend(self, q, k, v):
        mask = torch.full((70, 70), -torch.inf).triu(1) if causal else None
        return written_out(q, k, v, mask).transpose(1, 2)

    inputs = operands("causal", torch.bfloat16, merged=True)
    graph = rewritten(Function(attend), *inputs)
    (call,) = calls(graph)
    assert call.args[3:] == (0.25, causal)
    check(graph, Function(attend), *inputs, tolerance=2e-2)


def test_attention_that_it_does_not_suit_stays_the_librarys():
    q, k, v = operands("odd", torch.bfloat16)
    plain = Function(lambda self, q, k, v: written_out(q, k, v))
    assert not calls(rewritten(plain, q.float(), k.float(), v.float()))
    masked = Function(lambda self, q, k, v, m: written_out(q, k, v, m))
    assert not calls(rewritten(masked, q, k, v, torch.randn(19, 37)))


@pytest.mark.gpu
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_on_the_device(dtype, name, merged):
    query, key, value = (tensor.cuda() for tensor in operands(name, dtype, merged))
    causal = SHAPES[name][5]
    exact = expected(query, key, value, 0.3, causal)
    unit = 2**-7 if dtype is torch.bfloat16 else 2**-10
    assert (attention(query, key, value, 0.3, causal).double() - exact).abs().max() <= 2 * unit * exact.abs().max()


@pytest.mark.gpu
def test_in_a_program_it_is_right_call_after_call():
    """In a CUDA graph among kernels that overlap with it."""
    torch.manual_seed(0)
    module = Function(lambda self, x: F.scaled_dot_product_attention(*(x * 2).sigmoid().unbind()).relu() + 1)
    fast = optimize(module, torch.randn(3, 1, 4, 128, 64, device="cuda", dtype=torch.bfloat16))
    for seed in range(3):
        x = torch.randn(3, 1, 4, 128, 64, generator=torch.Generator().manual_seed(seed)).to("cuda", torch.bfloat16)
        torch.testing.assert_close(fast(x), module(x), rtol=2e-2, atol=2e-2)
