"""A shifted PRM: all its log-odds plus one constant, fitted so that it errs as often as another PRM.

Moving the log-odds by s and judging at the threshold t equals judging the old scores at sigmoid(logit(t) − s). The
order of the steps stays, so a fit chooses one of the places where a threshold can cut the ranking, and needs no
log-odds. Scores of exactly 0 and 1 have infinite log-odds: no shift moves them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.metrics.counts import FN, FP, TN, TP
from prism_prm.metrics.ranking import Ranking

MATCHES = {"fnr": (TP, FP), "fpr": (FP, TP)}
"""The rate to match → the count that decides it, and the other one. Labels are shared: equal counts are equal rates."""
_INSIDE = 1e-6
"""How far inside its only bound a shift is put, so that rounding does not undo it."""


def log_odds(probability: Floats | float) -> Floats:
    """log p / (1 − p); infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability) - np.log1p(-np.asarray(probability, np.float64)))


@dataclass(frozen=True)
class Shifts:
    """All verdicts that a shift can give: some number of the distinct scores, from the highest down, is judged good."""

    ranking: Ranking

    @classmethod
    def of(cls, right: Bools, scores: Floats) -> Shifts:
        """Sort once."""
        return cls(Ranking.of(right, scores))

    @cached_property
    def cuts(self) -> Ints:
        """How many distinct scores can be judged good: a score of 1 always is, a score of 0 never."""
        scores = self.ranking.scores
        return np.arange(int((scores[:1] == 1).sum()), len(scores) + 1 - int((scores[-1:] == 0).sum()))

    def counts(self, weights: Ints | None = None) -> Floats:
        """(cuts, 4): TP, FP, TN, FN at every cut; weights are per SORTED step."""
        tp, fp = self.ranking.cumulative(weights)
        counts = np.empty((len(self.cuts), 4))
        counts[:, TP], counts[:, FP] = tp[self.cuts], fp[self.cuts]
        counts[:, TN], counts[:, FN] = fp[-1] - counts[:, FP], tp[-1] - counts[:, TP]
        return counts

    def amounts(self, threshold: float) -> Floats:
        """Per cut a shift of the log-odds that makes it at this threshold: 0 where that does, else amid all that do."""
        at, own = log_odds(threshold), log_odds(self.ranking.scores)
        low, high = at - np.append(np.inf, own)[self.cuts], at - np.append(own, -np.inf)[self.cuts]
        amid = np.where(np.isinf(low), high - _INSIDE, np.where(np.isinf(high), low + _INSIDE, low / 2 + high / 2))
        return np.where((low < 0) & (high >= 0), 0.0, amid)

    def fit(self, weights: Iterable[Ints], clusters: Ints, others_RO4: Floats) -> tuple[Ints, Floats]:
        """In each of R resamples the cut that comes nearest to each of O other PRMs in each rate to match.

        `weights` says how often each cluster is in a resample, `clusters` which one a step belongs to (in the original
        order). The labels being shared, counts are matched exactly unless scores are tied, at 0 and 1 or elsewhere. Of
        several cuts that are equally near, the one nearest in the other rate counts: what a shift can do is not taken
        for more than a shift. Returns (R, O, rates) indices into `cuts`, and the (R, O, rates, 4) counts there.
        """
        found = np.empty((*others_RO4.shape[:2], len(MATCHES)), np.int64)
        reached = np.empty((*found.shape, 4))
        ordered = clusters[self.ranking.order]
        for row, weight in enumerate(weights):
            counts = self.counts(weight[ordered])
            more_than_all = counts[0].sum() + 1
            for column, other in enumerate(others_RO4[row]):
                for i, (matched, beside) in enumerate(MATCHES.values()):
                    far = np.abs(counts[:, matched] - other[matched]) * more_than_all
                    far += np.abs(counts[:, beside] - other[beside])
                    found[row, column, i] = at = np.argmin(far)
                    reached[row, column, i] = counts[at]
        return found, reached
