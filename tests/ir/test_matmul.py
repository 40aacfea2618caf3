"""Which kernels are matrix products, what is found in them, and what the plain reading of one computes."""

from __future__ import annotations

from dataclasses import replace

import torch

from stages.ir.dtype import DType
from stages.ir.interpret import interpret_flat
from stages.ir.kernel import in_place, verify
from stages.ir.matmul import matmul_of, why_no_matmul
from stages.ir.text import kernel_text
from tests import products


def test_rows_columns_and_batch_are_found():
    found = matmul_of(products.product(20, 18, 33, batch=3))
    assert found is not None and (found.count, found.m, found.n, found.k) == (3, 20, 18, 33)
    assert found.first.dtype is DType.BFLOAT16, "the cast to float32 belongs to the product"


def test_the_columns_are_those_that_lie_side_by_side_in_the_result():
    kernel = products.product(20, 18, 33)
    turned = replace(kernel, parallel=kernel.parallel[::-1])
    verify(turned)
    for each in (kernel, turned):
        found = matmul_of(each)
        assert found is not None and (found.m, found.n) == (20, 18)


def test_a_sum_over_two_axes_is_one():
    found = matmul_of(products.heads(21, 3, 8, 19))
    assert found is not None and (found.m, found.n, found.k, len(found.inner)) == (21, 19, 24, 2)


def test_what_is_no_product_says_why():
    assert why_no_matmul(products.product(2, 18, 33)) == ""
    assert "vector" in why_no_matmul(products.product(1, 18, 33))
    double = products.product(4, 4, 4, DType.FLOAT64)
    assert matmul_of(double) is None and "products of float32" in why_no_matmul(double)


def test_a_second_operand_in_lines_along_the_sum_or_the_columns():
    along_columns, along_terms = products.product(20, 18, 33), products.product(20, 18, 33, transposed=(False, True))
    assert all(matmul_of(kernel).second_in_lines for kernel in (along_columns, along_terms))
    assert not matmul_of(products.product(20, 18, 33, prologue=products.reciprocal, swapped=True)).second_in_lines


def test_the_text_tells_products_apart_and_forgets_names():
    one, other = products.product(32, 32, 48), products.product(32, 32, 48, transposed=(False, True))
    assert one.hash == products.product(32, 32, 48).hash != other.hash
    assert "sum over r0 of" in kernel_text(one)


def test_a_residual_may_give_its_memory_to_the_result_and_an_operand_not():
    kernel = products.product(16, 16, 16, DType.FLOAT32, residual=True)
    assert {(source.name, result.name) for source, result in in_place(kernel)} == {("residual", "out0")}


def test_the_interpreter_multiplies():
    kernel = products.product(3, 4, 5, DType.FLOAT32, bias=True)
    first, second, bias, out = products.operands(kernel)
    interpret_flat(kernel, [first, second, bias, out])
    torch.testing.assert_close(out.view(3, 4), torch.addmm(bias, first.view(3, 5), second.view(5, 4)))
