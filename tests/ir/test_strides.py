"""Strides of views and of pointwise results against eager's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.ir.strides import packed_in, pointwise_strides
from stages.ir.views import restrided, view_strides


def test_packed_strides_by_hand():
    assert packed_in((2, 1, 0), (2, 3, 4)) == (12, 4, 1)
    assert packed_in((1, 3, 2, 0), (2, 3, 4, 5)) == (60, 1, 15, 3)


def test_a_view_of_one_image_by_hand():
    source = torch.empty_strided((1, 64, 256), (16384, 1, 64))
    assert view_strides(source, (1, 64, 16, 16)) == (64, 1, 1024, 64)
    assert view_strides(source, (1, 64, 16, -1)) == (64, 1, 1024, 64)


def test_what_is_no_view_is_refused_as_eager_does():
    """A FakeTensor takes it for a view of stride 1, which reads other elements."""
    with FakeTensorMode():
        source = torch.empty_strided((4, 1, 3), (1, 12, 4))
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            view_strides(source, (12,))
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            restrided(source.view(12), source)


@st.composite
def operands(draw):
    """A tensor laid out anyhow, and one that broadcasts to it."""
    size = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))

    def laid_out(shape):
        order = draw(st.permutations(range(len(shape))))
        tensor = torch.ones([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])
        units = [draw(st.sampled_from([1, 2, 12, 64])) if extent == 1 else 0 for extent in shape]
        return tensor.as_strided(shape, [unit or stride for unit, stride in zip(units, tensor.stride())])

    one = laid_out(size)
    return one, draw(st.just(one) | st.just(laid_out([draw(st.sampled_from([1, extent])) for extent in size])))


@settings(max_examples=200, deadline=None)
@given(operands())
def test_pointwise_results_lie_as_eagers(pair):
    one, two = pair
    assert pointwise_strides(one.shape, [one], scalars=False) == torch.exp(one).stride()
    assert pointwise_strides(one.shape, [one], scalars=True) == (one * 2).stride()
    assert pointwise_strides(one.shape, [one, two], scalars=False) == (one + two).stride()
