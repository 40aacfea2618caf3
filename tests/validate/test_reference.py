"""The float64 reference: types, sharing, and that the user's model is left as it was."""

import gc
import weakref

import pytest
import torch
from torch import nn

from stages.ir.errors import UserError
from stages.validate.reference import float64_reference, raise_inputs

CPU = torch.device("cpu")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4, bias=False)
        self.two = nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.table = torch.eye(4)  # no buffer: stays float32 in a copy
        self.seen = []

    def forward(self, x, index):
        self.seen.append((x.dtype, index.dtype, self.one.weight is self.two.weight))
        return self.two(self.one(x)) @ self.table, index + 1


def test_it_computes_in_float64_and_keeps_whole_numbers():
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(3, 4)
    wide = model.one.weight.detach().double()
    seen = float64_reference(model, [((x, torch.arange(3)), {})], CPU).observations[0]
    torch.testing.assert_close(seen.leaves["output[0]"].value, x.double() @ wide.T @ wide.T, rtol=1e-14, atol=0)
    assert seen.leaves["output[1]"].dtype == "int64"
    assert model.seen == [] and model.one.weight.dtype is torch.float32 and x.dtype is torch.float32


def test_no_float64_copy_is_alive_afterwards():
    copies = []

    class Watched(nn.Linear):
        def forward(self, x):
            copies.append(weakref.ref(self))
            return super().forward(x)

    model = Watched(2, 2)
    float64_reference(model, [((torch.ones(1, 2),), {}), ((torch.ones(1, 2),), {})], CPU)
    gc.collect()
    assert len(copies) == 2 and copies[0]() is None


def test_a_model_that_casts_itself_is_followed_and_noted():
    reference = float64_reference(lambda x: x.to(torch.float32) * 2, [((torch.ones(2),), {})], CPU)
    assert reference.observations[0].leaves["output"].dtype == "float32"
    assert "casts to narrower floats 1 times" in reference.notes[0]


def test_inputs_in_any_container_are_cast_and_still_share_memory():
    base = torch.arange(6.0)
    (held, flag), kwargs = raise_inputs((({"a": [base, base[2:]]}, True), {"n": torch.tensor(1)}), CPU)
    whole, part = held["a"]
    assert whole.dtype is torch.float64 and kwargs["n"].dtype is torch.int64 and flag is True
    part[0] = 9.0
    assert whole[2] == 9.0 and base[2] == 2.0


def test_complex_inputs_become_complex128():
    (value,), _ = raise_inputs(((torch.ones(2, dtype=torch.complex64),), {}), CPU)
    assert value.dtype is torch.complex128


def test_a_model_that_cannot_run_in_float64_is_told():
    def model(x):
        if x.dtype is torch.float64:
            raise NotImplementedError("no kernel for double")
        return x

    with pytest.raises(UserError, match="does not run in float64: no kernel for double"):
        float64_reference(model, [((torch.ones(1),), {})], CPU)


@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((6, 8), (3, 8, 4), (2, 2, 6)),
        ((3, 4, 8), (8, 6), (1, 4, 6)),
        ((4, 8), (8, 5), (3, 8)),
        ((2, 4, 8), (2, 8, 4), None),
    ],
)
def test_grouped_products_are_computed_in_float64(left, right, ends):
    """torch has them in float32 and half types only; by hand, one group after the other."""
    torch.manual_seed(0)
    one, two = torch.randn(left), torch.randn(right)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    reference = float64_reference(lambda a, b: torch._grouped_mm(a, b, offs=offs), [((one, two), {})], CPU)
    got = reference.observations[0].leaves["output"].value
    starts = (0, *(ends or ())[:-1])
    parts = []
    for group, (start, end) in enumerate(zip(starts, ends or (), strict=True) if ends else [(0, 0)] * left[0]):
        a = one[group] if one.ndim == 3 else one[start:end] if two.ndim == 3 else one[:, start:end]
        b = two[group] if two.ndim == 3 else two[:, start:end] if one.ndim == 3 else two[start:end]
        parts.append(a.double() @ b.double())
    if one.ndim == two.ndim:
        expected = torch.stack(parts)
    else:
        expected = torch.cat(parts, dim=0 if two.ndim == 3 else 1)
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_a_convolution_of_what_the_model_made_in_float32(kind):
    """A coordinate grid that `forward` builds is float32; torch compares the types of a convolution's arguments."""
    torch.manual_seed(0)
    layer = kind(2, 3, 2)

    class OverAGrid(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(torch.ones(1, 2, *[4] * (self.layer.weight.ndim - 2))) + x

    reference = float64_reference(OverAGrid(), [((torch.zeros(1),), {})], CPU)
    expected = layer.double()(torch.ones(1, 2, *[4] * (layer.weight.ndim - 2), dtype=torch.float64))
    got = reference.observations[0].leaves["output"].value
    torch.testing.assert_close(got, expected.detach(), rtol=1e-14, atol=1e-14)


LOWEST, LARGEST = torch.finfo(torch.float64).min, torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: torch.max(x, torch.full((), torch.finfo(x.dtype).min)), [1.0, 2.0]),  # as XGLM does
        (lambda x: torch.full((2,), torch.finfo(x.dtype).min), [-LARGEST, -LARGEST]),
        (lambda x: torch.zeros(2).masked_fill(x > 1, torch.finfo(x.dtype).max), [0.0, LARGEST]),
        (lambda x: torch.zeros(2).masked_fill_(x > 1, LOWEST), [0.0, -LARGEST]),
        (lambda x: torch.zeros(2).fill_(LOWEST), [-LARGEST, -LARGEST]),
        (lambda x: torch.ones(2).clamp(min=LOWEST, max=0.25), [0.25, 0.25]),
        (lambda x: torch.full((2,), 0.1), [0.1, 0.1]),
        (lambda x: torch.full((2,), float("-inf")), [-torch.inf, -torch.inf]),
        (lambda x: x.masked_fill(x > 1, LOWEST), [1.0, LOWEST]),
    ],
)
def test_a_number_beyond_a_narrower_type_becomes_its_largest(function, expected):
    reference = float64_reference(function, [((torch.tensor([1.0, 2.0]),), {})], CPU)
    value = reference.observations[0].leaves["output"].value
    assert torch.equal(value, torch.tensor(expected, dtype=value.dtype))
