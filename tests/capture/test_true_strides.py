"""What eager makes of one image whose only memory says that it may be channels last."""

import pytest
import torch
from torch import nn
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls

from pipeline import optimize
from pipeline.backend import torchweld
from stages.capture.true_strides import true_strides


class OneImage(nn.Module):
    """Attention over pixels hands an image back transposed: its strides are those of channels last, less the first."""

    def __init__(self, times):
        super().__init__()
        self.conv, self.times = nn.Conv2d(8, 3, 3, padding=1), times

    def forward(self, x):
        image = x.softmax(-1).transpose(1, 2).reshape(1, 8, 4, 4)
        for _ in range(self.times):
            image = image / 2
        return self.conv(image), image


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("door", [optimize, lambda model, x: torch.compile(model, backend=torchweld)])
def test_outputs_lie_as_eagers(door, times):
    model, x = OneImage(times).eval(), torch.randn(1, 16, 8)
    with torch.no_grad():
        for mine, eager in zip(door(model, x)(x), model(x), strict=True):
            torch.testing.assert_close(mine, eager)
            assert mine.stride()[1:] == eager.stride()[1:]


def test_the_process_is_left_as_it_was():
    before = {operator: dict(operator.py_kernels) for operator in decomposition_table}
    implementations = dict(fake_impls.op_implementations_dict)
    with true_strides():
        assert fake_impls.op_implementations_dict != implementations
    assert fake_impls.op_implementations_dict == implementations
    assert all(operator.py_kernels == kernels for operator, kernels in before.items())
