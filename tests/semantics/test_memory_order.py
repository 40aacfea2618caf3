"""Models that can tell how a convolution's result lies in memory: values, strides and shared memory as eager's."""

import pytest
import torch
from torch import nn

from pipeline import optimize
from pipeline.backend import torchweld

torch.manual_seed(0)
CONVOLUTION = nn.Conv2d(4, 4, 3, padding=1)
X = torch.randn(2, 4, 6, 6)


def of(function):
    """A model: `function` of a convolution's result."""
    return lambda x: function(CONVOLUTION(x))


MODELS = {
    "as_strided": of(lambda y: y.as_strided((2, 3), (1, 5))),
    "as_strided of what a kernel makes": of(lambda y: y.tanh().as_strided((2, 3), (1, 5), 7)),
    "as_strided of all": of(lambda y: y.relu().mul(2).as_strided((2, 144), (144, 1))),
    "complex": of(lambda y: torch.view_as_complex(y.view(2, 4, 6, 3, 2)).abs()),
    "halves": of(lambda y: y.round().view(torch.float16) + 1),
    "pairs": of(lambda y: y.round().view(torch.int64)),
    "a view beside": of(lambda y: (y.view(-1), y)),
    "a part beside": of(lambda y: (y, y[0])),
    "a reshape beside": of(lambda y: (y, y.reshape(2, 4, 36))),
    "detached": of(lambda y: (y, y.detach())),
    "a part changed": of(lambda y: (y[:, 0].tanh_(), y)),
    "all parts changed": of(lambda y: [part.tanh_() for part in y.unbind(1)]),
    "a piece changed": of(lambda y: (y.split([1, 3], 1)[0].mul_(3), y)),
    "a view of what is changed": of(lambda y: (y.view(2, -1), y.tanh_(), y)),
}
DOORS = {
    "optimize": lambda model: optimize(model, (X,)),
    "compile": lambda model: torch.compile(model, backend=torchweld),
}


def results(model):
    with torch.no_grad():
        found = model(X)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def shared(tensors):
    """For each two of them whether they are in one storage, and where they begin in it."""
    begins = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[one == other for one in begins] for other in begins]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MODELS)
def test_results_lie_as_eagers(name, door):
    expected, got = results(MODELS[name]), results(DOORS[door](MODELS[name]))
    for mine, eager in zip(got, expected, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert shared(got) == shared(expected)


def test_other_convolutions_are_packed_all_the_same():
    """Of two, one is looked at; behind a product of matrices nothing can be told."""
    last = nn.Linear(6, 6)
    fast = optimize(lambda x: last(CONVOLUTION(x)).view(-1, 2, 3).view(torch.int32), (X,))
    assert "1 convolution" in " ".join(fast.compilations[0].units[0].graph.notes)
