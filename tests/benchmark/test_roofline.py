"""The roofline's bound by hand; the measured ceilings are only checked to exist."""

import pytest
import torch

from stages.benchmark.roofline import Ceilings, measure_ceilings


def test_the_bound_is_the_larger_of_memory_and_arithmetic():
    ceilings = Ceilings("cpu", 1e9, {"float32": 1e10, "bfloat16": 4e10}, 0.0)
    assert ceilings.bound_seconds(1e9, 1e9, "float32") == pytest.approx(1.0)
    assert ceilings.bound_seconds(1e6, 1e10, "float32") == pytest.approx(1.0)
    assert ceilings.bound_seconds(1e6, 1e10, "bfloat16") == pytest.approx(0.25)
    assert ceilings.bound_seconds(0, 1e10, "int8") == pytest.approx(1.0)


def test_ceilings_are_measured_once(monkeypatch):
    monkeypatch.setattr("stages.benchmark.roofline._COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr("stages.benchmark.roofline._MATMUL_SIZES", {"cpu": (32,)})
    first = measure_ceilings(torch.device("cpu"))
    assert first.copy_bytes_per_second > 0 and set(first.matmul_flop_per_second) == {"float32", "bfloat16"}
    assert measure_ceilings(torch.device("cpu")) is first
