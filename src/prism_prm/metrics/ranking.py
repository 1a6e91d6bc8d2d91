"""Threshold-free metrics: how well scores rank right steps above wrong ones, with ties counted half.

Steps are sorted once. A bootstrap draw then is a weight per step, and every metric follows from the weighted cumulative
counts of right and wrong steps from the highest score down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.stats import ClusterDraws


def _product_sum(a: Floats, b: Floats) -> float:
    """Σ a·b on one core: BLAS would start threads for every draw, and they cost more than the sum itself."""
    return float(np.einsum("i,i->", a, b))


def _auroc(tp: Floats, fp: Floats) -> float:
    if tp[-1] == 0 or fp[-1] == 0:
        return np.nan
    return float(_product_sum(np.diff(fp), tp[1:] + tp[:-1]) / (2 * tp[-1] * fp[-1]))


def _auprc(tp: Floats, fp: Floats) -> float:
    """Average precision: precision at each threshold, weighted by the recall it adds."""
    if tp[-1] == 0 or fp[-1] == 0:
        return np.nan
    judged = tp[1:] + fp[1:]
    return float(_product_sum(np.diff(tp), tp[1:] / np.maximum(judged, 1)) / tp[-1])


def _auprc_errors(tp: Floats, fp: Floats) -> float:
    """The same with wrong steps as what is to be found: the lowest scores first."""
    return _auprc(fp[-1] - fp[::-1], tp[-1] - tp[::-1])


def _fpr_at(target: float) -> Callable[[Floats, Floats], float]:
    def fpr_at_tpr(tp: Floats, fp: Floats) -> float:
        if tp[-1] == 0 or fp[-1] == 0:
            return np.nan
        # The counts are whole numbers: half a step of slack keeps 0.95 · 20 = 19 exact.
        first = int(np.searchsorted(tp, target * tp[-1] - 1e-9 * tp[-1]))
        return float(fp[first] / fp[-1])

    return fpr_at_tpr


RANKINGS: dict[str, Callable[[Floats, Floats], float]] = {
    "auroc": _auroc,
    "auprc": _auprc,
    "auprc_errors": _auprc_errors,
    "fpr_at_tpr_80": _fpr_at(0.80),
    "fpr_at_tpr_90": _fpr_at(0.90),
    "fpr_at_tpr_95": _fpr_at(0.95),
}
"""Name → function of cumulative right and wrong steps (starting with 0) at thresholds from high to low."""


@dataclass(frozen=True)
class Ranking:
    """Steps sorted by falling score, ready for any weights."""

    order: Ints
    right: Ints
    """Per sorted step 1 if it is right, else 0."""
    ends: Ints
    """Where each run of equal scores ends: the only places a threshold can cut."""
    scores: Floats
    """The distinct scores, falling."""

    @classmethod
    def of(cls, right: Bools, scores: Floats) -> Ranking:
        """Sort once."""
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        ends = np.append(np.flatnonzero(np.diff(ranked)) + 1, len(ranked)) if len(ranked) else np.zeros(0, np.int64)
        return cls(order, right[order].astype(np.int64), ends, ranked[ends - 1])

    def cumulative(self, weights: Ints | None = None) -> tuple[Floats, Floats]:
        """Right and wrong steps at or above each distinct score, starting with (0, 0); weights are per SORTED step."""
        weights = np.ones(len(self.order), np.int64) if weights is None else weights
        right, every = np.cumsum(weights * self.right), np.cumsum(weights)
        if len(self.ends) < len(self.order):
            right, every = right[self.ends - 1], every[self.ends - 1]
        tp, fp = np.zeros(len(right) + 1), np.zeros(len(right) + 1)
        tp[1:] = right
        np.subtract(every, right, out=fp[1:], casting="unsafe")
        return tp, fp

    def metrics(self) -> dict[str, float]:
        """Every metric of RANKINGS; NaN without both right and wrong steps."""
        if len(self.order) == 0:
            return dict.fromkeys(RANKINGS, np.nan)
        tp, fp = self.cumulative()
        return {name: metric(tp, fp) for name, metric in RANKINGS.items()}

    def resampled(
        self, clusters: Ints, draws: ClusterDraws, names: tuple[str, ...] = tuple(RANKINGS)
    ) -> dict[str, Floats]:
        """The metrics `names` of every draw; `clusters` are per step in the original order."""
        sorted_clusters = clusters[self.order]
        values = np.full((len(names), len(draws)), np.nan)
        if len(self.order):
            for i, draw in enumerate(draws):
                tp, fp = self.cumulative(draw[sorted_clusters])
                values[:, i] = [RANKINGS[name](tp, fp) for name in names]
        return dict(zip(names, values, strict=True))

    def error_curve(self, thresholds: Floats) -> tuple[Floats, Floats]:
        """FPR and FNR where a step is good iff its score > threshold."""
        tp, fp = self.cumulative()
        above = np.searchsorted(-self.scores, -thresholds, side="left")
        with np.errstate(invalid="ignore", divide="ignore"):
            return fp[above] / fp[-1], 1 - tp[above] / tp[-1]


def threshold_for_tpr(right: Bools, scores: Floats, target: float) -> float:
    """The highest threshold at which at least `target` of the right steps score above it; NaN without right steps.

    It lies halfway between two observed scores, so that it does not hang on the last bit of either; at the lower one
    where no number lies between them.
    """
    positives = np.sort(scores[right])[::-1]
    if len(positives) == 0:
        return float("nan")
    needed = max(1, int(np.ceil(target * len(positives) - 1e-9)))
    lowest_kept = positives[needed - 1]
    others = scores[scores < lowest_kept]
    if len(others) == 0:
        return float(np.nextafter(lowest_kept, -np.inf))
    below = others.max()
    middle = (lowest_kept + below) / 2
    return float(middle if middle < lowest_kept else below)


def pairwise_accuracy(chosen: Floats, rejected: Floats) -> Floats:
    """Per pair 1 if the right step scores higher, ½ for a tie, else 0."""
    return np.where(chosen > rejected, 1.0, np.where(chosen == rejected, 0.5, 0.0))


def pairwise_by_margin(chosen: Floats, rejected: Floats, edges: Floats, margins: Floats | None = None) -> list[Ints]:
    """The pairs in each bin [edge, next edge) of |margin|; the last bin holds its upper edge too.

    The margin is the scores' own difference unless `margins` gives another (a true one, or another model's).
    """
    size = np.abs(chosen - rejected if margins is None else margins)
    bins = np.digitize(size, edges[1:-1])
    inside = (size >= edges[0]) & (size <= edges[-1])
    return [np.flatnonzero(inside & (bins == i)) for i in range(len(edges) - 1)]
