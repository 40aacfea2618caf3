"""Statistics against hand-made data and numpy."""

import numpy as np
import pytest

from stages.benchmark.statistics import ratio_of_medians, summarize


def test_percentiles_by_hand():
    summary = summarize([float(value) for value in range(1, 101)])
    assert (summary.median_ms, summary.min_ms) == (50.5, 1.0)
    assert summary.p10_ms == pytest.approx(10.9)
    assert summary.p90_ms == pytest.approx(90.1)
    assert summary.p99_ms == pytest.approx(99.01)


def test_constant_samples_have_a_ratio_without_width():
    ratio = ratio_of_medians([4.0] * 9, [2.0] * 9, 0.95, 200, seed=0)
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0) and ratio.clear


def test_the_interval_is_the_paired_bootstrap():
    generator = np.random.default_rng(1)
    base, other = generator.lognormal(0.0, 0.1, 40), generator.lognormal(-0.5, 0.1, 40)
    ratio = ratio_of_medians(base, other, 0.9, 500, seed=3)
    rows = np.random.default_rng(3).integers(0, 40, (500, 40))
    expected = [np.median(base[row]) / np.median(other[row]) for row in rows]
    assert ratio.value == pytest.approx(np.median(base) / np.median(other))
    assert ratio.low == pytest.approx(np.percentile(expected, 5))
    assert ratio.high == pytest.approx(np.percentile(expected, 95))
    assert ratio == ratio_of_medians(base, other, 0.9, 500, seed=3)


def test_pairing_takes_out_what_both_engines_share():
    drift = np.linspace(1.0, 3.0, 50)
    ratio = ratio_of_medians(drift, drift / 2, 0.95, 500, seed=0)
    assert ratio.low == pytest.approx(2.0) and ratio.high == pytest.approx(2.0)


def test_an_interval_over_one_is_not_clear():
    generator = np.random.default_rng(0)
    base = generator.normal(10.0, 1.0, 100)
    assert not ratio_of_medians(base, np.roll(base, 1), 0.95, 500, seed=0).clear


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError):
        ratio_of_medians([1.0, 2.0], [1.0], 0.95, 10, seed=0)
