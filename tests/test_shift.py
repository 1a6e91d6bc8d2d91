from __future__ import annotations

import numpy as np
import pytest

from prism_prm.arrays import Bools, Floats
from prism_prm.metrics import Ranking, Shifts, log_odds


def moved(scores: Floats, shift: float) -> Floats:
    """The probabilities with their log-odds moved."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-(log_odds(scores) + shift))))


def tried_out(right: Bools, scores: Floats, weights: Floats, threshold: float) -> list[tuple[float, ...]]:
    """TP, FP, TN, FN of every shift that matters, each by really moving the log-odds."""
    inner = np.unique(log_odds(scores[(scores > 0) & (scores < 1)]))
    edges = log_odds(threshold) - inner
    shifts = [*(edges + 1e-5), *(edges - 1e-5)]
    found = []
    for shift in shifts:
        good = moved(scores, shift) > threshold
        found.append(
            tuple(float(weights[mask].sum()) for mask in (right & good, ~right & good, ~right & ~good, right & ~good))
        )
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_fit_is_the_nearest_of_all_shifts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num, clusters = 40, 7
    # Tenths make ties, among them scores of exactly 0 and 1.
    scores = rng.random(num).round(1) if seed % 2 else rng.random(num).round(6)
    right, of, threshold = rng.random(num) < 0.6, rng.integers(clusters, size=num), float(rng.choice([0.3, 0.5, 0.85]))
    other = rng.random(num) < 0.5
    shifts = Shifts(Ranking.of(right, scores))
    for _ in range(5):
        weight = rng.integers(3, size=clusters)
        each = weight[of].astype(float)
        masks = (right & other, ~right & other, ~right & ~other, right & ~other)
        aim = np.array([each[mask].sum() for mask in masks])
        cuts, reached = shifts.fit([weight], of, aim[None, None])
        every = tried_out(right, scores, each, threshold)
        nearest_fnr = min((abs(c[0] - aim[0]), abs(c[1] - aim[1])) for c in every)
        nearest_fpr = min((abs(c[1] - aim[1]), abs(c[0] - aim[0])) for c in every)
        at_fnr, at_fpr = reached[0, 0]
        assert (abs(at_fnr[0] - aim[0]), abs(at_fnr[1] - aim[1])) == nearest_fnr
        assert (abs(at_fpr[1] - aim[1]), abs(at_fpr[0] - aim[0])) == nearest_fpr
        for cut, counts in zip(cuts[0, 0], reached[0, 0], strict=True):
            good = moved(scores, float(shifts.amounts(threshold)[cut])) > threshold
            assert each[right & good].sum() == counts[0], "the shift that is named gives these counts"
            assert each[~right & good].sum() == counts[1]


def test_scores_of_zero_and_one_stay() -> None:
    right = np.array([True, False, True, False, True])
    shifts = Shifts(Ranking.of(right, np.array([1.0, 1.0, 0.7, 0.0, 0.0])))
    assert shifts.counts().tolist() == [[1, 1, 1, 2], [2, 1, 1, 1]], "0.7 alone can be judged either way"
    bad, good = shifts.amounts(0.5)
    assert (good, bad) == (0.0, pytest.approx(log_odds(0.5) - log_odds(0.7), abs=1e-5))


def test_no_shift_is_named_where_none_is_needed_and_the_middle_elsewhere() -> None:
    shifts = Shifts(Ranking.of(np.array([True, False]), np.array([0.9, 0.6])))
    low, middle, high = shifts.amounts(0.5)
    assert high == 0, "both are above the threshold already"
    assert middle == pytest.approx(-(log_odds(0.9) + log_odds(0.6)) / 2)
    assert low == pytest.approx(-log_odds(0.9), abs=1e-5)
