"""Metrics of judged steps with bootstrap intervals: whole tables of them from one set of draws, and their names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from prism_prm import metrics
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.evaluate.judged_steps import Steps
from prism_prm.metrics import ratio
from prism_prm.report import NO_DATA, percent
from prism_prm.stats import (
    NUM_DRAWS,
    SEED,
    ClusterDraws,
    Comparison,
    Interval,
    cluster_draws,
    cluster_sums,
    compare,
    interval,
    mean_interval,
    resampled_sums,
)

RATES = {
    "fpr": "FPR ↓",
    "fnr": "FNR ↓",
    "precision": "Precision ↑",
    "tpr": "TPR ↑",
    "tnr": "TNR ↑",
    "f1": "F1 ↑",
    "negative_f1": "Negative F1 ↑",
    "accuracy": "Accuracy ↑",
    "prm_score": "PRMScore ↑",
}
"""Metrics that hang on the threshold, in percent; the arrow says which way is better."""

RANKINGS = {
    "auroc": "AUROC ↑",
    "auprc": "AUPRC of right steps ↑",
    "auprc_errors": "AUPRC of wrong steps ↑",
    "fpr_at_tpr_80": "FPR at TPR 80 ↓",
    "fpr_at_tpr_90": "FPR at TPR 90 ↓",
    "fpr_at_tpr_95": "FPR at TPR 95 ↓",
    "calibration_error": "Calibration error ↓",
}
"""Metrics that need no threshold, in percent."""

FIRST_ERRORS = {
    "first_error_exact": "found",
    "first_error_early": "an earlier step blamed",
    "first_error_late": "a later step blamed",
    "first_error_missed": "none blamed",
}
"""Where the first step judged bad is, in solutions with an error, in percent."""

NUM_BINS = 10
"""Bins of the calibration error."""
THRESHOLDS = np.linspace(0.0, 1.0, 201)
"""Thresholds of the FPR–FNR curve."""
NUM_HISTOGRAM_BINS = 25
MARGIN_EDGES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
"""Bins of |score of the right step − score of the wrong one|."""


@dataclass(frozen=True)
class Measured:
    """A metric's value and its value in every draw; two systems measured on the same draws can be compared."""

    value: float
    replicates: Floats = field(repr=False)
    num_clusters: int = 0

    def interval(self) -> Interval:
        return interval(self.value, self.replicates, self.num_clusters)

    def minus(self, other: Measured) -> Comparison:
        return compare(self.value, other.value, self.replicates, other.replicates, self.num_clusters)


Table = dict[str, Measured]
"""Metric → what was measured."""
Tables = dict[str, Table]


def shown(measured: Measured | None) -> str:
    """A share in percent with its interval."""
    return NO_DATA if measured is None else percent(measured.interval())


def metric_rows(names: Mapping[str, str], tables: Sequence[Table]) -> list[list[str]]:
    """A row per metric, a column per table; metrics that no table has are left out."""
    return [
        [label, *(shown(table.get(name)) for table in tables)]
        for name, label in names.items()
        if any(name in table for table in tables)
    ]


def all_rates(counts: Floats, *, positives_only: bool = False) -> dict[str, Floats]:
    """Every rate of counts (..., 4)."""
    rates = {name: rate(counts) for name, rate in metrics.RATES.items()}
    return rates | {"prm_score": metrics.prmbench_score(counts, positives_only=positives_only)}


def intervals(table: Any) -> Any:
    """The same nesting with intervals in the place of measurements: what goes into metrics.json."""
    return {k: v.interval() if isinstance(v, Measured) else intervals(v) for k, v in table.items()}


@dataclass(frozen=True)
class SubsetResult:
    """Everything measured on one set of items."""

    num_items: int
    num_steps: int
    num_problems: int
    counts: dict[str, int]
    tables: Tables
    """`steps` (rates, rankings, calibration, first errors), and what the benchmark adds."""
    groups: Tables
    """Rates and AUROC by class or split."""
    group_counts: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Measurer:
    """Computes metrics of one set of steps under one threshold, all on the same draws."""

    steps: Steps
    threshold: float
    num_draws: int = NUM_DRAWS
    seed: int = SEED
    verdicts: Bools | None = None
    """Which steps are judged good, where that is not simply by the threshold."""

    @cached_property
    def draws(self) -> ClusterDraws:
        """How often each problem is in each draw."""
        return cluster_draws(self.steps.num_clusters, self.num_draws, self.seed)

    @cached_property
    def good(self) -> Bools:
        """Which steps are judged good."""
        return self.steps.probability > self.threshold if self.verdicts is None else self.verdicts

    def of_sums(self, sums: Floats, compute: Callable[[Floats], Mapping[str, Floats]]) -> Table:
        """Metrics that are functions of column sums (clusters, columns); `compute` keeps leading axes."""
        values, drawn = compute(sums.sum(axis=0)), compute(resampled_sums(sums, self.draws))
        clusters = self.steps.num_clusters
        return {name: Measured(float(values[name]), np.asarray(drawn[name]), clusters) for name in values}

    def _step_sums(self, columns: Floats, keep: Bools) -> Floats:
        return cluster_sums(columns[keep], self.steps.step_cluster[keep], self.steps.num_clusters)

    def _judged(self, keep: Bools | None) -> Bools:
        return self.steps.judged if keep is None else keep & self.steps.judged

    def counts(self, keep: Bools | None = None) -> dict[str, int]:
        """TP, FP, TN, FN of the judged steps (of those in `keep`)."""
        kept = self._judged(keep)
        counts = metrics.sum_counts(self.steps.right[kept], self.good[kept]).astype(int).tolist()
        return dict(zip(("tp", "fp", "tn", "fn"), counts, strict=True))

    def rates(self, keep: Bools | None = None) -> Table:
        """Every rate of the judged steps (of those in `keep`)."""
        sums = self._step_sums(metrics.confusion(self.steps.right, self.good), self._judged(keep))
        return self.of_sums(sums, all_rates)

    def rankings(self, keep: Bools | None = None, names: Sequence[str] = tuple(metrics.RANKINGS)) -> Table:
        """Threshold-free metrics; none for verdicts without scores."""
        if self.steps.hard:
            return {}
        kept = self._judged(keep)
        ranking = metrics.Ranking.of(self.steps.right[kept], self.steps.probability[kept])
        values = ranking.metrics()
        drawn = ranking.resampled(self.steps.step_cluster[kept], self.draws, tuple(names))
        return {name: Measured(values[name], drawn[name], self.steps.num_clusters) for name in names}

    def calibration(self) -> Table:
        """Expected calibration error of the probabilities; none for verdicts without scores."""
        if self.steps.hard:
            return {}
        gaps = metrics.calibration_gaps(self.steps.right, np.nan_to_num(self.steps.probability), NUM_BINS)
        sums = self._step_sums(np.concatenate([gaps, np.ones((len(gaps), 1))], axis=1), self.steps.judged)
        return self.of_sums(sums, lambda s: {"calibration_error": metrics.calibration_error(s[..., :-1], s[..., -1])})

    def group_counts(self) -> Floats:
        """(clusters, groups · 4): the confusion counts of every group."""
        judged = self.steps.judged
        outcome = np.argmax(metrics.confusion(self.steps.right, self.good), axis=1)
        width = 4 * len(self.steps.group_names)
        cell = self.steps.step_cluster * width + self.steps.step_group * 4 + outcome
        cells = np.bincount(cell[judged], minlength=self.steps.num_clusters * width)
        return cells.reshape(self.steps.num_clusters, width).astype(np.float64)

    def by_group(self, positives_only: Collection[str] = ()) -> Tables:
        """The rates of every group; the PRMScore of those in `positives_only` is F1 alone."""
        sums = self.group_counts()
        return {
            name: self.of_sums(sums[:, 4 * i : 4 * i + 4], partial(all_rates, positives_only=name in positives_only))
            for i, name in enumerate(self.steps.group_names)
        }

    def item_means(self, tallies: Mapping[str, tuple[Floats, Floats]], keep: Bools | None = None) -> Table:
        """Means over items, each given as (sum, count) per item."""
        chosen = np.ones(len(self.steps.items), bool) if keep is None else keep
        columns = np.stack([column for pair in tallies.values() for column in pair], axis=1)[chosen]
        sums = cluster_sums(columns, self.steps.item_cluster[chosen], self.steps.num_clusters)
        return self.of_sums(
            sums, lambda s: {name: ratio(s[..., 2 * i], s[..., 2 * i + 1]) for i, name in enumerate(tallies)}
        )

    def first_errors(self) -> Table:
        """Where the first judgement of "bad" falls for items with an error: exact, early, late, missed (shares)."""
        if not self.steps.are_chains:
            return {}
        gold = metrics.first_bad(self.steps.wrong, self.steps.starts)
        outcomes = metrics.first_error_outcomes(gold, self.steps.first_judged_bad(~self.good))
        whole = (gold >= 0).astype(np.float64)
        return self.item_means(
            {f"first_error_{name}": (outcomes[:, i], whole) for i, name in enumerate(metrics.OUTCOMES)}
        )


@dataclass(frozen=True, slots=True)
class PairTable:
    """Pairwise accuracy over all pairs and by the size of the margin; ties count half."""

    num_pairs: int
    overall: Interval
    edges: tuple[float, ...]
    bins: tuple[Interval, ...]
    bin_sizes: tuple[int, ...]


def sibling_pairs(steps: Steps) -> tuple[Ints, Ints]:
    """Every (right, wrong) pair of steps after the same prefix of the same item."""
    key = steps.step_item * (int(steps.lengths.max()) + 2) + steps.parent + 1
    right, wrong = np.flatnonzero(steps.right), np.flatnonzero(steps.wrong)
    wrong = wrong[np.argsort(key[wrong], kind="stable")]
    first = np.searchsorted(key[wrong], key[right], side="left")
    last = np.searchsorted(key[wrong], key[right], side="right")
    sizes = last - first
    chosen = np.repeat(right, sizes)
    offsets = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return chosen, wrong[np.repeat(first, sizes) + offsets]


def measure_pairs(steps: Steps, num_draws: int = NUM_DRAWS, seed: int = SEED) -> PairTable | None:
    """How often the right one of two steps under the same prefix scores higher, over all pairs and by margin.

    None where no two candidates share a prefix (plain solutions) or there are only verdicts.
    """
    if steps.hard:
        return None
    chosen, rejected = sibling_pairs(steps)
    if len(chosen) == 0:
        return None
    up, down = steps.probability[chosen], steps.probability[rejected]
    hits, clusters = metrics.pairwise_accuracy(up, down), steps.step_cluster[chosen]

    def accuracy(rows: Ints) -> Interval:
        return mean_interval(hits[rows], clusters[rows], num_draws=num_draws, seed=seed)

    bins = metrics.pairwise_by_margin(up, down, MARGIN_EDGES)
    return PairTable(
        len(chosen),
        accuracy(np.arange(len(chosen))),
        tuple(MARGIN_EDGES.tolist()),
        tuple(accuracy(rows) for rows in bins),
        tuple(len(rows) for rows in bins),
    )


def error_curve(steps: Steps) -> dict[str, list[float]]:
    """FPR and FNR at every one of THRESHOLDS; empty for verdicts or without both kinds of steps."""
    judged = steps.judged
    if steps.hard or not steps.right[judged].any() or not steps.wrong[judged].any():
        return {}
    fpr, fnr = metrics.Ranking.of(steps.right[judged], steps.probability[judged]).error_curve(THRESHOLDS)
    return {"threshold": THRESHOLDS.tolist(), "fpr": fpr.tolist(), "fnr": fnr.tolist()}


def histogram(steps: Steps) -> dict[str, list[float]]:
    """Shares of right and wrong steps by score."""
    edges = np.linspace(0, 1, NUM_HISTOGRAM_BINS + 1)
    result: dict[str, list[float]] = {"edges": edges.tolist()}
    for name, mask in (("right", steps.right & steps.judged), ("wrong", steps.wrong & steps.judged)):
        if mask.any():
            result[name] = (np.histogram(steps.probability[mask], edges)[0] / mask.sum()).tolist()
    return result
