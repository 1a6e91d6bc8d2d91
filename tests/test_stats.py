from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm import stats


def test_number_clusters_keeps_order_of_first_sight() -> None:
    ordinals, num = stats.number_clusters(["b", "a", "b", "c"])
    assert ordinals.tolist() == [0, 1, 0, 2]
    assert num == 3


def rows_of(num_clusters: int, num_draws: int = 1000, seed: int = 0) -> np.ndarray:
    return np.array(list(stats.cluster_draws(num_clusters, num_draws, seed)))


def drawn_at_once(num_clusters: int, num_draws: int, seed: int = 0) -> np.ndarray:
    """All draws from one call of the generator."""
    picked = np.random.default_rng(seed).integers(num_clusters, size=(num_draws, num_clusters))
    return np.array([np.bincount(row, minlength=num_clusters) for row in picked])


def test_a_draw_holds_as_many_clusters_as_there_are() -> None:
    draws = rows_of(7, 50, seed=3)
    assert draws.shape == (50, 7)
    assert draws.sum(axis=1).tolist() == [7] * 50
    assert (draws != rows_of(7, 50, seed=4)).any()
    assert (draws == rows_of(7, 50, seed=3)).all()


def test_draws_are_uniform() -> None:
    draws = rows_of(5, 4000)
    # A cluster's weight has mean 1 and variance 1 - 1/5.
    assert draws.mean(axis=0) == pytest.approx([1] * 5, abs=0.06)
    assert draws.var(axis=0) == pytest.approx([0.8] * 5, abs=0.08)


@pytest.mark.parametrize(("num_clusters", "num_draws"), [(1, 3), (7, 1000), (1000, 300), (300_000, 21)])
def test_draws_are_the_same_in_chunks_of_any_size(num_clusters: int, num_draws: int) -> None:
    draws = stats.cluster_draws(num_clusters, num_draws, seed=5)
    expected = drawn_at_once(num_clusters, num_draws, seed=5)
    for _ in range(2):
        assert np.array_equal(np.concatenate(list(draws.chunks())), expected)
    sums = np.random.default_rng(1).random((num_clusters, 3))
    at_once = np.concatenate([expected[i : i + 256].astype(float) @ sums for i in range(0, num_draws, 256)])
    np.testing.assert_allclose(stats.resampled_sums(sums, draws), at_once, rtol=1e-13)


def test_many_clusters_take_no_more_memory_than_some() -> None:
    """All draws of 100,000 clusters at once would be 800 megabytes, and as much again while they are made."""
    sums = np.ones((100_000, 2))
    tracemalloc.start()
    try:
        assert (stats.resampled_sums(sums, stats.cluster_draws(100_000, 200)) == 100_000).all()
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 1000))
def test_resampled_sums_equal_a_loop_over_repeated_rows(rows: int, num_clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(num_clusters, size=rows)
    values = rng.integers(-5, 6, size=(rows, 3))
    draws = stats.cluster_draws(num_clusters, 11, seed)
    fast = stats.resampled_sums(stats.cluster_sums(values, clusters, num_clusters), draws)
    for draw, sums in zip(draws, fast, strict=True):
        repeated = [values[i] * draw[clusters[i]] for i in range(rows)]
        assert sums.tolist() == np.sum(repeated, axis=0).tolist()


def test_mean_interval_covers_the_known_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=400)
    found = stats.mean_interval(values, num_draws=4000)
    half = 1.96 * values.std() / 20
    assert found.value == values.mean()
    assert found.low == pytest.approx(values.mean() - half, abs=0.01)
    assert found.high == pytest.approx(values.mean() + half, abs=0.01)


def test_clusters_widen_the_interval() -> None:
    """Ten copies of each value carry no more information than one."""
    values = np.random.default_rng(1).normal(size=50)
    alone = stats.mean_interval(values)
    copied = stats.mean_interval(np.repeat(values, 10), np.repeat(np.arange(50), 10))
    blind = stats.mean_interval(np.repeat(values, 10))
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low)
    assert copied.num_clusters == 50
    assert blind.high - blind.low < 0.5 * (alone.high - alone.low)


def test_intervals_cover_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for trial in range(300):
        values = rng.random(60) < 0.3
        found = stats.mean_interval(values, num_draws=400, seed=trial)
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def test_comparison_is_paired() -> None:
    """Two systems that differ by a constant differ for certain, however noisy the items are."""
    noise = np.random.default_rng(2).normal(size=30) * 100
    found = stats.compare_means(noise + 1, noise)
    assert found.difference == pytest.approx(1)
    assert (found.low, found.high) == (pytest.approx(1), pytest.approx(1))
    assert found.p == pytest.approx(2 / 1001)


def test_equal_systems_have_p_one() -> None:
    found = stats.compare_means([1, 0, 1], [1, 0, 1])
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_p_values_are_about_uniform_under_the_null() -> None:
    rng = np.random.default_rng(8)
    p = [stats.compare_means(rng.random(50), rng.random(50), num_draws=300, seed=s).p for s in range(200)]
    assert np.mean(np.array(p) < 0.05) < 0.11
    assert np.mean(p) == pytest.approx(0.5, abs=0.08)


def test_no_data_is_nan_never_zero() -> None:
    assert math.isnan(stats.mean_interval([]).value)
    one = stats.mean_interval([3.0])
    assert one.value == 3
    assert math.isnan(one.low)
    undefined = np.array([0.5] * 90 + [math.nan] * 10)
    assert math.isnan(stats.interval(0.5, undefined, 10).low)
    assert stats.interval(0.5, np.array([0.5] * 96 + [math.nan] * 4), 10).low == 0.5
    assert math.isnan(stats.compare(math.nan, 1, undefined, undefined, 10).p)


def test_differences_by_rounding_alone_are_ties() -> None:
    a = np.linspace(0.1, 0.9, 100)
    for b in (a - 1e-16, a, a + 1e-16):
        assert stats.compare(0.5, 0.5, a, b, 10).p == 1


def test_a_comparison_needs_the_same_draws() -> None:
    with pytest.raises(AssertionError, match="same draws"):
        stats.compare(0, 0, np.zeros(3), np.zeros(4), 5)


def test_intervals_over_seeds() -> None:
    """Student's t as printed tables have it: 12.706, 4.303 and 2.776 for 2, 3 and 5 values."""
    found = stats.over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.value == 3.0
    assert found.num_clusters == 5
    assert found.high - 3.0 == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), abs=1e-6)
    assert 3.0 - found.low == pytest.approx(found.high - 3.0)
    assert stats.over_seeds([0.0, 2.0]).high == pytest.approx(1 + 12.706205, abs=1e-5)
    assert stats.over_seeds([0.0, 3.0, 6.0]).high == pytest.approx(3 + 4.302653 * math.sqrt(3), abs=1e-5)
    assert stats.over_seeds([0.0, 2.0] * 500).high == pytest.approx(1 + 1.962341 / math.sqrt(999), abs=1e-6)
    same = stats.over_seeds([0.25, 0.25, 0.25])
    assert (same.low, same.high) == (0.25, 0.25)
    assert math.isnan(stats.over_seeds([1.0]).low)
