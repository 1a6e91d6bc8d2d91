"""Metrics of step scores, as pure functions of numpy arrays; NaN means "no data", never a silent zero.

A step is judged good iff its score is strictly greater than the threshold. The positive class is the right step, so a
false positive is a wrong step that was judged good. In order: rates from TP, FP, TN and FN; rankings, which need no
threshold; metrics per solution (first errors, ProcessBench); shifts of the log-odds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.stats import ClusterDraws

# Counts: every function takes arrays (..., 4) of [TP, FP, TN, FN] and keeps leading axes, so that one call handles the
# counts of one table or of a thousand bootstrap draws.

TP, FP, TN, FN = range(4)


def confusion(right: Bools, good: Bools) -> Floats:
    """(steps, 4): a one in the column of each step."""
    return np.stack([right & good, ~right & good, ~right & ~good, right & ~good], axis=-1).astype(np.float64)


def sum_counts(right: Bools, good: Bools) -> Floats:
    """(4,): TP, FP, TN, FN of some steps."""
    return np.asarray(confusion(right, good).sum(axis=0))


def ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole; 0/0 is NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 0, part / whole, np.nan), dtype=np.float64)


def fpr(counts: Floats) -> Floats:
    """The share of wrong steps that were judged good."""
    return ratio(counts[..., FP], counts[..., FP] + counts[..., TN])


def fnr(counts: Floats) -> Floats:
    """The share of right steps that were judged bad."""
    return ratio(counts[..., FN], counts[..., FN] + counts[..., TP])


def precision(counts: Floats) -> Floats:
    """The share of right steps among those that were judged good."""
    return ratio(counts[..., TP], counts[..., TP] + counts[..., FP])


def f1(counts: Floats) -> Floats:
    """Harmonic mean of precision and TPR; 0 where nothing right was found, NaN where there was nothing to find."""
    return ratio(2 * counts[..., TP], 2 * counts[..., TP] + counts[..., FP] + counts[..., FN])


def negative_f1(counts: Floats) -> Floats:
    """F1 of the wrong steps."""
    return ratio(2 * counts[..., TN], 2 * counts[..., TN] + counts[..., FN] + counts[..., FP])


def accuracy(counts: Floats) -> Floats:
    """The share of steps that were judged correctly."""
    return ratio(counts[..., TP] + counts[..., TN], counts.sum(axis=-1))


def _share(part: Floats, whole: Floats) -> Floats:
    """A ratio with PRMBench's rule: 0/0 counts as −1."""
    share = ratio(part, whole)
    return np.where(np.isnan(share), -1.0, share)


def prmbench_f1(hits: Floats, precision_whole: Floats, recall_whole: Floats) -> Floats:
    """F1 with PRMBench's rule that every 0/0 counts as −1, including precision + recall = 0."""
    precise, recalled = _share(hits, precision_whole), _share(hits, recall_whole)
    total = precise + recalled
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(total != 0, 2 * precise * recalled / total, -1.0), dtype=np.float64)


def prmbench_score(counts: Floats, *, positives_only: bool = False) -> Floats:
    """PRMScore: ½ F1 + ½ negative F1, never below 0; for `positives_only` classes (multi_solutions) F1 alone.

    NaN only where there is no step at all.
    """
    tp, fp, tn, fn = (counts[..., i] for i in range(4))
    score = prmbench_f1(tp, tp + fp, tp + fn)
    if not positives_only:
        score = 0.5 * score + 0.5 * prmbench_f1(tn, tn + fn, tn + fp)
    return np.where(counts.sum(axis=-1) > 0, np.maximum(score, 0.0), np.nan)


RATES: dict[str, Callable[[Floats], Floats]] = {
    "fpr": fpr,
    "fnr": fnr,
    "tpr": lambda counts: 1 - fnr(counts),
    "tnr": lambda counts: 1 - fpr(counts),
    "precision": precision,
    "f1": f1,
    "negative_f1": negative_f1,
    "accuracy": accuracy,
    "prm_score": prmbench_score,
}
"""Name → function of counts (..., 4)."""


def calibration_gaps(right: Bools, probability: Floats, num_bins: int = 10) -> Floats:
    """(steps, bins): probability minus truth, in the column of the probability's bin; bins have equal width."""
    column = np.minimum((probability * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.zeros((len(right), num_bins))
    gaps[np.arange(len(right)), column] = probability - right
    return gaps


def calibration_error(gap_sums: Floats, num_steps: Floats) -> Floats:
    """Expected calibration error: |mean probability − share of right steps| per bin, weighted by the bin's steps.

    With sums per bin this is Σ|Σ gap| / steps, for every bootstrap draw.
    """
    return ratio(np.abs(gap_sums).sum(axis=-1), num_steps)


def reliability(right: Bools, probability: Floats, num_bins: int = 10) -> dict[str, list[float]]:
    """Mean probability, share of right steps and number of steps in each bin of equal width that has steps."""
    column = np.minimum((probability * num_bins).astype(np.int64), num_bins - 1)
    steps = np.bincount(column, minlength=num_bins)
    used = steps > 0
    columns = {"probability": probability, "right": right}
    means = {name: np.bincount(column, values, num_bins)[used] / steps[used] for name, values in columns.items()}
    return {name: values.tolist() for name, values in (means | {"steps": steps[used]}).items()}


# Rankings: ties count half. Steps are sorted once. A bootstrap draw is then a weight per step, and every metric is a
# function of the weighted cumulative counts of right and wrong steps, from the highest score down.


def _product_sum(a: Floats, b: Floats) -> float:
    """Σ a·b on one core: BLAS would start threads for every draw, and they cost more than the sum itself."""
    return float(np.einsum("i,i->", a, b))


def _auroc(tp: Floats, fp: Floats) -> float:
    return float(_product_sum(np.diff(fp), tp[1:] + tp[:-1]) / (2 * tp[-1] * fp[-1]))


def _auprc(tp: Floats, fp: Floats) -> float:
    """Average precision: precision at each threshold, weighted by the recall it adds."""
    judged = tp[1:] + fp[1:]
    return float(_product_sum(np.diff(tp), tp[1:] / np.maximum(judged, 1)) / tp[-1])


def _auprc_errors(tp: Floats, fp: Floats) -> float:
    """Average precision with wrong steps as the positive class: the lowest scores come first."""
    return _auprc(fp[-1] - fp[::-1], tp[-1] - tp[::-1])


def _fpr_at(target: float) -> Callable[[Floats, Floats], float]:
    def fpr_at_tpr(tp: Floats, fp: Floats) -> float:
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
"""Name → function of cumulative right and wrong steps (starting with 0) at thresholds from high to low.

There must be both right and wrong steps."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a threshold is chosen for; `parse_target` reads one."""

    metric: str
    """One of TARGETS."""
    value: float = 0.0
    """The rate to reach, for tpr and fpr."""
    cost_fp: float = 1.0
    """The cost of a wrong step that is judged good."""
    cost_fn: float = 1.0
    """The cost of a right step that is judged bad."""

    def __str__(self) -> str:
        if self.metric == "cost":
            return f"cost={self.cost_fp:g}:{self.cost_fn:g}"
        return f"{self.metric}={self.value:g}" if self.metric in ("tpr", "fpr") else self.metric

    def cut(self, tp: Floats, fp: Floats) -> int:
        """How many distinct scores are judged good, given the right and wrong steps at or above each (0, 0 first).

        For a TPR the fewest that reach it, for an FPR the most that stay within it. Of equally good cuts the first,
        which has the highest threshold.
        """
        if self.metric == "tpr":
            return int(np.searchsorted(tp, max(1, np.ceil(self.value * tp[-1] - 1e-9))))
        if self.metric == "fpr":
            return int(np.searchsorted(fp, np.floor(self.value * fp[-1] + 1e-9), side="right")) - 1
        counts = np.stack([tp, fp, fp[-1] - fp, tp[-1] - tp], axis=-1)
        return int(np.argmax(np.round(TARGETS[self.metric](counts, self), 12)))


TARGETS: dict[str, Callable[[Floats, Target], Floats]] = {
    "tpr": lambda counts, _: 1 - fnr(counts),
    "fpr": lambda counts, _: -fpr(counts),
    "f1": lambda counts, _: f1(counts),
    "prm-score": lambda counts, _: prmbench_score(counts),
    "cost": lambda counts, target: -(target.cost_fp * counts[..., FP] + target.cost_fn * counts[..., FN]),
}
"""What a threshold can be chosen for → a function of counts (..., 4), of which more is better."""


def parse_target(text: str) -> Target:
    """Read tpr=0.9, fpr=0.1, f1, prm-score or cost=FP:FN. Raises ValueError with the reason."""
    metric, equals, value = (part.strip() for part in text.partition("="))
    if metric not in TARGETS:
        raise ValueError("must be one of tpr=X, fpr=X, f1, prm-score and cost=FP:FN")
    if metric in ("f1", "prm-score"):
        if equals:
            raise ValueError(f"{metric} is made as high as possible and takes no value")
        return Target(metric)
    try:
        numbers = [float(number) for number in value.split(":")]
    except ValueError:
        numbers = []
    if metric == "cost":
        if len(numbers) != 2 or not all(0 < number < np.inf for number in numbers):
            raise ValueError(
                "the costs must be two positive numbers, of a wrong step judged good and of a right step judged bad, "
                "e.g. cost=5:1"
            )
        return Target(metric, 0.0, *numbers)
    if len(numbers) != 1 or not 0 < numbers[0] < 1:
        raise ValueError(f"the rate must be a number between 0 and 1, e.g. {metric}=0.9")
    return Target(metric, numbers[0])


@dataclass(frozen=True)
class Ranking:
    """Steps sorted by descending score, for any weights."""

    order: Ints
    right: Ints
    """Per sorted step 1 if it is right, else 0."""
    ends: Ints
    """Where each run of equal scores ends: the only places a threshold can cut."""
    scores: Floats
    """The distinct scores, descending."""

    @classmethod
    def of(cls, right: Bools, scores: Floats) -> Ranking:
        """Sort the steps."""
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

    def metrics(self, names: Sequence[str] = tuple(RANKINGS), weights: Ints | None = None) -> dict[str, float]:
        """These metrics; NaN unless there are both right and wrong steps. Weights are per SORTED step."""
        tp, fp = self.cumulative(weights)
        if tp[-1] == 0 or fp[-1] == 0:
            return dict.fromkeys(names, np.nan)
        return {name: RANKINGS[name](tp, fp) for name in names}

    def resampled(
        self, clusters: Ints, draws: ClusterDraws, names: Sequence[str] = tuple(RANKINGS)
    ) -> dict[str, Floats]:
        """These metrics of every draw; `clusters` are per step in the original order."""
        ordered = clusters[self.order]
        found = [self.metrics(names, draw[ordered]) for draw in draws]
        return {name: np.array([metrics[name] for metrics in found]) for name in names}

    def error_curve(self, thresholds: Floats) -> tuple[Floats, Floats]:
        """FPR and FNR at each threshold; a step is good iff its score > threshold."""
        tp, fp = self.cumulative()
        above = np.searchsorted(-self.scores, -thresholds, side="left")
        with np.errstate(invalid="ignore", divide="ignore"):
            return fp[above] / fp[-1], 1 - tp[above] / tp[-1]

    def threshold(self, target: Target, weights: Ints | None = None) -> float:
        """The threshold for a target; NaN without the steps that it needs. Weights are per SORTED step.

        It lies halfway between two observed scores, so that it does not depend on the last bit of either; if no number
        lies between them, it is the lower one.
        """
        if not len(self.order):
            return float("nan")
        tp, fp = self.cumulative(weights)
        if not {"tpr": tp[-1], "fpr": fp[-1]}.get(target.metric, min(tp[-1], fp[-1])):
            return float("nan")
        cut = target.cut(tp, fp)
        if cut == 0:
            return float(self.scores[0])
        lowest_good = self.scores[cut - 1]
        if cut == len(self.scores):
            return float(np.nextafter(lowest_good, -np.inf))
        middle = (lowest_good + self.scores[cut]) / 2
        return float(middle if middle < lowest_good else self.scores[cut])


def ranked_pairs(right: Bools, scores: Floats, groups: Ints, num_groups: int) -> Floats:
    """(groups, 2): how many pairs of a right and a wrong step of the same group are ranked right (ties count half), and
    how many there are; a group's AUROC is their ratio."""
    order = np.lexsort((scores, groups))
    ranked_group, ranked_right = groups[order], right[order].astype(np.float64)
    starts = np.flatnonzero((np.diff(ranked_group, prepend=-1) != 0) | (np.diff(scores[order], prepend=np.nan) != 0))
    sizes = np.diff(np.append(starts, len(order)))
    middle = np.repeat(starts + (sizes + 1) / 2, sizes)  # the mean rank of each run of equal scores, counted from 1
    size, num_right, ranks = (
        np.bincount(ranked_group, weights, num_groups) for weights in (None, ranked_right, middle * ranked_right)
    )
    ranks -= num_right * (np.cumsum(size) - size)  # ranks within the group
    return np.stack([ranks - num_right * (num_right + 1) / 2, num_right * (size - num_right)], axis=1)


def pairwise_accuracy(chosen: Floats, rejected: Floats) -> Floats:
    """Per pair 1 if the right step scores higher, ½ for a tie, else 0."""
    return np.where(chosen > rejected, 1.0, np.where(chosen == rejected, 0.5, 0.0))


def pairs_by_margin(margins: Floats, edges: Floats) -> list[Ints]:
    """The pairs in each bin [edge, next edge) of |margin|; the last bin includes its upper edge."""
    size = np.abs(margins)
    bins = np.digitize(size, edges[1:-1])
    inside = (size >= edges[0]) & (size <= edges[-1])
    return [np.flatnonzero(inside & (bins == i)) for i in range(len(edges) - 1)]


# Solutions: their steps are in one array, solution after solution; `starts` are the indices of their first steps.

OUTCOMES = ("exact", "early", "late", "missed")
"""How a solution's first error was judged: found, an earlier step flagged, a later one, or none."""


def first_bad(bad: Bools, starts: Ints) -> Ints:
    """Per solution the position of its first bad step, or −1. Every solution has at least one step."""
    if len(starts) == 0:
        return np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, len(bad)))
    assert (lengths > 0).all(), "a solution has at least one step"
    positions = np.arange(len(bad)) - np.repeat(starts, lengths)
    never = len(bad)
    first = np.minimum.reduceat(np.where(bad, positions, never), starts)
    return np.where(first == never, -1, first)


def first_error_outcomes(gold: Ints, predicted: Ints) -> Floats:
    """(solutions, 4): a one under the outcome of each solution that has an error, zeros for the others."""
    wrong = gold >= 0
    flagged = predicted >= 0
    return np.stack(
        [
            wrong & (predicted == gold),
            wrong & flagged & (predicted < gold),
            wrong & (predicted > gold),
            wrong & ~flagged,
        ],
        axis=-1,
    ).astype(np.float64)


def processbench_tallies(gold: Ints, predicted: Ints) -> Floats:
    """(solutions, 4): has an error, and was matched; has none, and was matched."""
    wrong, match = gold >= 0, gold == predicted
    return np.stack([wrong, wrong & match, ~wrong, ~wrong & match], axis=-1).astype(np.float64)


def processbench_rates(tallies: Floats) -> dict[str, Floats]:
    """acc_error, acc_correct and their harmonic mean F1 of summed tallies (..., 4).

    F1 is NaN unless there are solutions with and without errors. It is 0 if both accuracies are 0.
    """
    acc_error = ratio(tallies[..., 1], tallies[..., 0])
    acc_correct = ratio(tallies[..., 3], tallies[..., 2])
    total = acc_error + acc_correct
    f1 = np.where(total == 0, 0.0, ratio(2 * acc_error * acc_correct, total))
    return {"acc_error": acc_error, "acc_correct": acc_correct, "f1": f1}


# A shifted PRM: all its log-odds plus a constant, fitted so that its error rate equals another PRM's. Shifting the
# log-odds by s and judging at the threshold t equals judging the original scores at sigmoid(logit(t) − s). The order of
# the steps stays the same, so a fit only chooses where to cut the ranking. Scores of exactly 0 and 1 have infinite
# log-odds: no shift moves them.

MATCHES = {"fnr": (TP, FP), "fpr": (FP, TP)}
"""The rate to match → its count, and that of the other rate. Labels are shared, so equal counts are equal rates."""
_INSIDE = 1e-6
"""The distance of a shift from its only bound, so that rounding does not undo it."""


def log_odds(probability: Floats | float) -> Floats:
    """log p / (1 − p); infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability) - np.log1p(-np.asarray(probability, np.float64)))


@dataclass(frozen=True)
class Shifts:
    """All verdicts that a shift can give: the k highest distinct scores are judged good, for every possible k."""

    ranking: Ranking

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
        """Per cut a shift of the log-odds that makes it at this threshold: 0 if that works, else the middle one."""
        at, own = log_odds(threshold), log_odds(self.ranking.scores)
        low, high = at - np.append(np.inf, own)[self.cuts], at - np.append(own, -np.inf)[self.cuts]
        middle = np.where(np.isinf(low), high - _INSIDE, np.where(np.isinf(high), low + _INSIDE, low / 2 + high / 2))
        return np.where((low < 0) & (high >= 0), 0.0, middle)

    def fit(self, weights: Iterable[Ints], clusters: Ints, others_RO4: Floats) -> tuple[Ints, Floats]:
        """In each of R resamples, the cut nearest to each of O other PRMs in each rate of MATCHES.

        `weights` is how often each cluster is in a resample, `clusters` the cluster of each step (in the original
        order). Labels are shared, so counts match exactly unless scores are tied. Of equally near cuts, the one nearest
        in the other rate is chosen, so that nothing is credited to training that a shift could do. Returns (R, O,
        rates) indices into `cuts`, and the (R, O, rates, 4) counts there.
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
