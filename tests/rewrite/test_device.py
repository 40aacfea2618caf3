"""On a GPU: whole models with all rewrites give what eager gives, with its strides, also after weights changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipeline import optimize
from tests.rewrite.test_convolutions import Block, Bottleneck
from tests.rewrite.test_products import Attention

pytestmark = pytest.mark.gpu
torch.manual_seed(0)


class Net(nn.Module):
    """A stem of 7x7, a norm to fold, pooling, residual blocks, a linear bottleneck, and an unaligned head."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.bottleneck, self.block = Bottleneck(), Block()
        self.block.stem = nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Linear(12, 101)
        self.norm.running_mean.normal_()

    def forward(self, x):
        y, z = self.bottleneck(F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1))
        image, flat, pooled = self.block(y)
        return image, flat, self.head(pooled), z


class Encoder(nn.Module):
    """Attention with merged projections, and a head of an unaligned width that is padded."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm, self.head = Attention(heads=2, shared=2), nn.LayerNorm(16), nn.Linear(16, 4099)

    def forward(self, x):
        y = self.attention(x).transpose(1, 2).reshape(x.shape)
        return self.head(F.gelu(self.norm(x + y), approximate="tanh")), y


MODELS = {"net": (Net, (4, 3, 64, 64)), "encoder": (Encoder, (2, 256, 16))}
# Relative to the largest value; float32 without TF32, and bfloat16 products.
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "amp": 3e-2}


def check(fast, model, x, precision):
    with torch.no_grad():
        expected = model(x)
    for mine, eager in zip(fast(x), expected, strict=True):
        assert (mine.shape, mine.stride()) == (eager.shape, eager.stride())
        assert (mine.float() - eager).abs().max() <= TOLERANCE[precision] * eager.abs().max()


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_all_rewrites(name, precision, no_tf32):
    build, shape = MODELS[name]
    model, x = build().eval().cuda(), torch.randn(shape).cuda()
    fast = optimize(model, (x,), [f"precision={precision}"])
    check(fast, model, x, precision)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(0.8)
    check(fast, model, torch.randn_like(x), precision)
    assert len(fast.compilations) == 1
