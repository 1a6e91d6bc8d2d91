"""Bootstrap intervals and paired comparisons for clustered data, and means over runs.

Steps of one problem are not independent, so whole problems are drawn, never single steps. A draw is a row of weights:
how often each cluster was drawn. A metric that is a function of sums (counts, rates, means) then needs one matrix
product for all draws: `function(resampled_sums(cluster_sums(...), cluster_draws(...)))`. NaN means "no data".
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from prism_prm.arrays import Floats, Ints

NUM_DRAWS = 1000
LEVEL = 0.95
SEED = 0
ROUNDING = 1e-9
"""Differences below this are ties: whether a matrix product rounds them up or down depends on the CPU."""
_CHUNK = 256
"""Draws per matrix product; fewer if there are many clusters."""
_CELLS = 2**22
"""Weights (draw, cluster) in memory at a time: 32 megabytes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval; NaN means no data."""

    value: float
    low: float
    high: float
    num_clusters: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """System A minus system B on the same clusters."""

    difference: float
    low: float
    high: float
    p: float
    """Two-sided: twice the share of draws on the far side of zero, counted so that it is never 0."""
    num_clusters: int


def number_clusters(keys: Iterable[Hashable]) -> tuple[Ints, int]:
    """Number keys in order of first appearance, equal keys alike; also returns how many distinct keys there are."""
    seen: dict[Hashable, int] = {}
    ordinals = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)
    return ordinals, len(seen)


@dataclass(frozen=True)
class ClusterDraws:
    """How often each cluster is in each draw: an iterable of rows, each of which sums to `num_clusters`.

    Few draws are cached in memory; many are generated again on every pass, the same ones by the seed.
    """

    num_clusters: int
    num_draws: int
    seed: int

    def __len__(self) -> int:
        return self.num_draws

    def __iter__(self) -> Iterator[Ints]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[Ints]:
        """All draws, as (some draws, clusters) arrays."""
        return iter(self._cached) if self.num_draws * self.num_clusters <= _CELLS else self._generate()

    @cached_property
    def _cached(self) -> list[Ints]:
        return list(self._generate())

    def _generate(self) -> Iterator[Ints]:
        rng = np.random.default_rng(self.seed)
        num_clusters, size = self.num_clusters, _CHUNK
        # Halved, so that it stays a multiple of 8: only then does a matrix product have the same bits in any chunk.
        while size > 8 and size * num_clusters > _CELLS:
            size //= 2
        for start in range(0, self.num_draws, size):
            rows = min(size, self.num_draws - start)
            picked = rng.integers(num_clusters, size=(rows, num_clusters))
            picked += np.arange(rows)[:, None] * num_clusters
            yield np.bincount(picked.ravel(), minlength=rows * num_clusters).reshape(rows, num_clusters)


def cluster_draws(num_clusters: int, num_draws: int = NUM_DRAWS, seed: int = SEED) -> ClusterDraws:
    """Bootstrap draws of whole clusters."""
    return ClusterDraws(num_clusters, num_draws, seed)


def cluster_sums(values: npt.ArrayLike, clusters: Ints, num_clusters: int) -> Floats:
    """(clusters, columns): the sum of each column of `values` over each cluster's rows."""
    table = np.asarray(values, dtype=np.float64)
    table = table.reshape(len(clusters), math.prod(table.shape[1:]))
    columns = [np.bincount(clusters, weights=column, minlength=num_clusters) for column in table.T]
    return np.stack(columns, axis=1) if columns else np.zeros((num_clusters, 0))


def resampled_sums(sums: Floats, draws: ClusterDraws) -> Floats:
    """(draws, columns): the column sums of every draw. Integer sums stay exact."""
    chunks = [chunk.astype(np.float64) @ sums for chunk in draws.chunks()]
    return np.concatenate(chunks) if chunks else np.zeros((0, sums.shape[1]))


def _bounds(replicates: Floats) -> tuple[float, float]:
    """The percentile interval; NaN if less than LEVEL of the draws have a value."""
    defined = replicates[~np.isnan(replicates)]
    if len(defined) == 0 or len(defined) < LEVEL * len(replicates):
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def interval(value: float, replicates: Floats, num_clusters: int) -> Interval:
    """The interval of a value from its bootstrap replicates; NaN with fewer than two clusters."""
    if num_clusters < 2 or math.isnan(value):
        return Interval(float(value), math.nan, math.nan, num_clusters)
    return Interval(float(value), *_bounds(replicates), num_clusters)


def compare(
    value_a: float, value_b: float, replicates_a: Floats, replicates_b: Floats, num_clusters: int
) -> Comparison:
    """A minus B, where both were computed on the SAME draws of the same clusters."""
    assert replicates_a.shape == replicates_b.shape, "a paired comparison needs the same draws"
    differences = replicates_a - replicates_b
    difference = float(value_a - value_b)
    if num_clusters < 2 or math.isnan(difference):
        return Comparison(difference, math.nan, math.nan, math.nan, num_clusters)
    low, high = _bounds(differences)
    if math.isnan(low):
        return Comparison(difference, low, high, math.nan, num_clusters)
    defined = differences[~np.isnan(differences)]
    tail = min(int((defined <= ROUNDING).sum()), int((defined >= -ROUNDING).sum()))
    p = min(1.0, 2 * (1 + tail) / (1 + len(defined)))
    return Comparison(difference, low, high, p, num_clusters)


def _mean_replicates(values: Floats, clusters: Ints | None, num_draws: int, seed: int) -> tuple[float, Floats, int]:
    ordinals, num_clusters = number_clusters(range(len(values)) if clusters is None else clusters.tolist())
    if len(values) == 0:
        return math.nan, np.full(num_draws, math.nan), 0
    sums = cluster_sums(np.stack([values, np.ones(len(values))], axis=1), ordinals, num_clusters)
    drawn = resampled_sums(sums, cluster_draws(num_clusters, num_draws, seed))
    return float(values.mean()), drawn[:, 0] / drawn[:, 1], num_clusters


def mean_interval(
    values: npt.ArrayLike, clusters: Ints | None = None, *, num_draws: int = NUM_DRAWS, seed: int = SEED
) -> Interval:
    """The mean of some values with its interval; each value is its own cluster unless `clusters` is given."""
    return interval(*_mean_replicates(np.asarray(values, np.float64), clusters, num_draws, seed))


def compare_means(
    a: npt.ArrayLike, b: npt.ArrayLike, clusters: Ints | None = None, *, num_draws: int = NUM_DRAWS, seed: int = SEED
) -> Comparison:
    """The mean of A minus the mean of B over the same items in the same order (say, problems solved by either)."""
    values_a, values_b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert values_a.shape == values_b.shape, "a paired comparison needs the same items"
    mean_a, replicates_a, num_clusters = _mean_replicates(values_a, clusters, num_draws, seed)
    mean_b, replicates_b, _ = _mean_replicates(values_b, clusters, num_draws, seed)
    return compare(mean_a, mean_b, replicates_a, replicates_b, num_clusters)


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean of one value per seed, with Student's 95 % interval; NaN bounds with a single seed."""
    from scipy.stats import t

    array = np.asarray(values, np.float64)
    count, mean = len(array), float(np.mean(array))
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1) * array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def wilson(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a probability; [0, 1] without trials."""
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, weight = hits / trials, z * z / trials
    center = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    # Exactly 0 and 1 at the ends, which rounding would miss.
    return 0.0 if hits == 0 else max(0.0, center - half), 1.0 if hits == trials else min(1.0, center + half)
