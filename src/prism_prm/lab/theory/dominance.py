"""When does PRM A have an FPR no higher than PRM B's at EVERY TPR? What holds, and what two score tables say.

The paper assumes that A's scores are B's moved by a constant: right steps up by δ, wrong steps down by δ. Scores in
[0, 1] cannot be moved like that: the highest right score would leave the interval. Three statements do hold.

1. ROC curves do not change under an increasing map of a model's scores, so the shift may be asked for on the log-odds,
   which have no bounds.
2. If on some common scale A's right scores are B's plus δ₁ and A's wrong scores are B's minus δ₂, then A dominates
   iff δ₁ + δ₂ ≥ 0: at TPR ρ the threshold moves by δ₁, so FPR_A(ρ) = P(wrong_B > τ_B(ρ) + δ₁ + δ₂).
3. With no shift at all: place each wrong step among the right ones, V = share of right steps that score higher. FPR at
   TPR ρ is P(V < ρ), so A dominates B iff V_A is stochastically larger than V_B: exactly, for any scores and any ties.

`check_dominance` measures 3, with intervals; `check_shift` measures how far 1 and 2 are from true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.metrics import Ranking
from prism_prm.stats import cluster_draws

LEVELS = np.linspace(0.01, 0.99, 99)
"""The TPRs at which two curves are compared."""


def fpr_at_tprs(tp: Floats, fp: Floats, levels: Floats = LEVELS) -> Floats:
    """The FPR at the highest threshold that reaches each TPR."""
    first = np.searchsorted(tp, levels * tp[-1] - 1e-9 * tp[-1])
    return np.asarray(fp[first] / fp[-1])


VERDICTS = {
    "A dominates": "{a} dominates: its FPR is nowhere higher, and surely lower somewhere",
    "A mostly": "{a} is lower wherever the two surely differ, but not lower everywhere",
    "B dominates": "{b} dominates: its FPR is nowhere higher, and surely lower somewhere",
    "B mostly": "{b} is lower wherever the two surely differ, but not lower everywhere",
    "neither": "neither dominates: each is surely lower somewhere",
    "undecided": "undecided: the two differ nowhere for sure",
}
"""Verdict → what it means."""


@dataclass(frozen=True)
class Dominance:
    """FPR of A minus FPR of B at the TPRs in `levels`; negative is better."""

    levels: Floats
    fpr_a: Floats
    fpr_b: Floats
    low: Floats
    high: Floats
    """A 95 % band that holds for all levels at once (bootstrap of the largest deviation, by cluster)."""
    worst: float
    """The largest difference: dominance needs ≤ 0."""
    verdict: str
    """What the band says: one of VERDICTS."""


def check_dominance(
    right: Bools, scores_a: Floats, scores_b: Floats, clusters: Ints, *, num_draws: int = 500, seed: int = 0
) -> Dominance:
    """Compare two ROC curves over the same steps; needs right and wrong steps."""
    assert right.any(), "no right step"
    assert not right.all(), "no wrong step"
    ranking_a, ranking_b = Ranking.of(right, scores_a), Ranking.of(right, scores_b)
    fpr_a, fpr_b = (fpr_at_tprs(*ranking.cumulative()) for ranking in (ranking_a, ranking_b))
    difference = fpr_a - fpr_b
    sorted_a, sorted_b = clusters[ranking_a.order], clusters[ranking_b.order]
    deviations = []
    for draw in cluster_draws(int(clusters.max()) + 1, num_draws, seed):
        curve_a, curve_b = ranking_a.cumulative(draw[sorted_a]), ranking_b.cumulative(draw[sorted_b])
        if curve_a[0][-1] > 0 and curve_a[1][-1] > 0:
            deviations.append(fpr_at_tprs(*curve_a) - fpr_at_tprs(*curve_b) - difference)
    spread = np.std(deviations, axis=0)
    # Studentised, so that the flat ends of the curves do not borrow the width of the middle.
    scaled = np.abs(deviations) / np.where(spread > 0, spread, 1)
    half = float(np.quantile(scaled.max(axis=1), 0.95)) * spread
    low, high = difference - half, difference + half
    return Dominance(LEVELS, fpr_a, fpr_b, low, high, float(difference.max()), _verdict(difference, low, high))


def _verdict(difference: Floats, low: Floats, high: Floats) -> str:
    worse, better = bool((low > 0).any()), bool((high < 0).any())
    if worse and better:
        return "neither"
    if better:
        return "A dominates" if (difference <= 0).all() else "A mostly"
    if worse:
        return "B dominates" if (difference >= 0).all() else "B mostly"
    return "undecided"


@dataclass(frozen=True)
class Shift:
    """How well "A's scores are B's plus a constant" describes one kind of step."""

    delta: float
    """The shift that fits best: the median difference of quantiles, A − B."""
    distance: float
    """Kolmogorov–Smirnov distance left after the shift: 0 would be a pure shift."""
    unshifted: float
    """The distance before it."""
    room: float
    """How far B's scores could move in this direction without leaving [0, 1]; infinite on log-odds."""


def check_shift(scores_a: Floats, scores_b: Floats, *, direction: int, bounded: bool) -> Shift:
    """Fit a shift of B's scores onto A's; `direction` is +1 for right steps and −1 for wrong ones."""
    levels = np.linspace(0.005, 0.995, 199)
    delta = float(np.median(np.quantile(scores_a, levels) - np.quantile(scores_b, levels)))
    room = float("inf")
    if bounded:
        room = float(1 - scores_b.max()) if direction > 0 else float(scores_b.min())
    return Shift(delta, ks_distance(scores_a, scores_b + delta), ks_distance(scores_a, scores_b), room)


def ks_distance(a: Floats, b: Floats) -> float:
    """The largest difference between two empirical distribution functions."""
    at = np.concatenate([a, b])
    below_a = np.searchsorted(np.sort(a), at, side="right") / len(a)
    below_b = np.searchsorted(np.sort(b), at, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def log_odds(probability: Floats, limit: float = 1e-6) -> Floats:
    """The log-odds of probabilities; 0 and 1, which rounding makes, are drawn in to `limit`."""
    clipped = np.clip(probability, limit, 1 - limit)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))
