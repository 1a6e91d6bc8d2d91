"""Metrics of judged steps with bootstrap intervals: whole tables of them from one set of draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from prism_prm import metrics
from prism_prm.evaluation import prmbench, processbench
from prism_prm.evaluation.steps import Steps
from prism_prm.metrics.counts import Bools, Floats, ratio
from prism_prm.statistics import (
    NUM_DRAWS,
    SEED,
    ClusterDraws,
    Comparison,
    Interval,
    cluster_draws,
    cluster_sums,
    compare,
    interval,
    resampled_sums,
)

NUM_BINS = 10
"""Bins of the calibration error."""


@dataclass(frozen=True)
class Measured:
    """A metric's value and its value in every draw; two systems measured on the same draws can be compared."""

    value: float
    replicates: Floats = field(repr=False)
    num_clusters: int = 0

    def interval(self) -> Interval:
        """With its 95 % interval."""
        return interval(self.value, self.replicates, self.num_clusters)

    def minus(self, other: Measured) -> Comparison:
        """This system minus the other."""
        return compare(self.value, other.value, self.replicates, other.replicates, self.num_clusters)


Table = dict[str, Measured]
"""Metric → what was measured."""


@dataclass(frozen=True)
class Measurer:
    """Computes metrics of one set of steps under one threshold, all on the same draws."""

    steps: Steps
    threshold: float
    num_draws: int = NUM_DRAWS
    seed: int = SEED
    redundancy_threshold: float = prmbench.REDUNDANCY_THRESHOLD

    @cached_property
    def draws(self) -> ClusterDraws:
        """How often each problem is in each draw."""
        return cluster_draws(self.steps.num_clusters, self.num_draws, self.seed)

    @cached_property
    def good(self) -> Bools:
        """Which steps are judged good."""
        return prmbench.judged_good(self.steps, self.threshold, self.redundancy_threshold)

    def of_sums(self, sums: Floats, compute: Callable[[Floats], Mapping[str, Floats]]) -> Table:
        """Metrics that are functions of column sums (clusters, columns); `compute` keeps leading axes."""
        values, drawn = compute(sums.sum(axis=0)), compute(resampled_sums(sums, self.draws))
        clusters = self.steps.num_clusters
        return {name: Measured(float(values[name]), np.asarray(drawn[name]), clusters) for name in values}

    def _step_sums(self, columns: Floats, keep: Bools) -> Floats:
        return cluster_sums(columns[keep], self.steps.step_cluster[keep], self.steps.num_clusters)

    def counts(self, keep: Bools | None = None) -> Floats:
        """TP, FP, TN, FN of the judged steps (of those in `keep`)."""
        keep = self.steps.judged if keep is None else keep & self.steps.judged
        return metrics.sum_counts(self.steps.right[keep], self.good[keep])

    def rates(self, keep: Bools | None = None) -> Table:
        """Every rate of the judged steps (of those in `keep`)."""
        keep = self.steps.judged if keep is None else keep & self.steps.judged
        return self.of_sums(self._step_sums(metrics.confusion(self.steps.right, self.good), keep), all_rates)

    def rankings(self, keep: Bools | None = None, names: Sequence[str] = tuple(metrics.RANKINGS)) -> Table:
        """Threshold-free metrics; none from mere verdicts."""
        if self.steps.hard:
            return {}
        keep = self.steps.judged if keep is None else keep & self.steps.judged
        ranking = metrics.Ranking.of(self.steps.right[keep], self.steps.probability[keep])
        values = ranking.metrics()
        drawn = ranking.resampled(self.steps.step_cluster[keep], self.draws, tuple(names))
        return {name: Measured(values[name], drawn[name], self.steps.num_clusters) for name in names}

    def calibration(self) -> Table:
        """Expected calibration error of the probabilities; none from mere verdicts."""
        if self.steps.hard:
            return {}
        keep = self.steps.judged
        gaps = metrics.calibration_gaps(self.steps.right, self.steps.probability, NUM_BINS)
        sums = self._step_sums(np.concatenate([gaps, np.ones((len(gaps), 1))], axis=1), keep)
        return self.of_sums(sums, lambda s: {"calibration_error": metrics.calibration_error(s[..., :-1], s[..., -1])})

    def group_counts(self) -> Floats:
        """(clusters, groups · 4): the confusion counts of every group."""
        judged = self.steps.judged
        outcome = np.argmax(metrics.confusion(self.steps.right, self.good), axis=1)
        width = 4 * len(self.steps.group_names)
        cell = self.steps.step_cluster * width + self.steps.step_group * 4 + outcome
        cells = np.bincount(cell[judged], minlength=self.steps.num_clusters * width)
        return cells.reshape(self.steps.num_clusters, width).astype(np.float64)

    def by_group(self) -> dict[str, Table]:
        """The rates of every group."""
        sums = self.group_counts()
        return {
            name: self.of_sums(sums[:, 4 * i : 4 * i + 4], all_rates) for i, name in enumerate(self.steps.group_names)
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
        outcomes = metrics.first_error_outcomes(gold, metrics.first_bad(~self.good, self.steps.starts))
        whole = (gold >= 0).astype(np.float64)
        return self.item_means(
            {f"first_error_{name}": (outcomes[:, i], whole) for i, name in enumerate(metrics.OUTCOMES)}
        )


def all_rates(counts: Floats) -> dict[str, Floats]:
    """Every rate of counts (..., 4)."""
    return {name: rate(counts) for name, rate in metrics.RATES.items()}


def measure_prmbench(measurer: Measurer) -> dict[str, Table]:
    """PRMBench's own table: PRMScore per class, per group, and overall on the pooled counts; and side metrics."""
    steps = measurer.steps
    names = [name for name in prmbench.CLASSES if name in steps.group_names]
    at = [4 * steps.group_names.index(name) + i for name in names for i in range(4)]
    sums = measurer.group_counts()[:, at]

    def by_class(sums: Floats) -> Floats:
        return sums.reshape(*sums.shape[:-1], len(names), 4)

    def classes(sums: Floats) -> dict[str, Floats]:
        scores = prmbench.class_scores(by_class(sums), names)
        return {name: scores[..., i] for i, name in enumerate(names)}

    def groups(sums: Floats) -> dict[str, Floats]:
        return prmbench.group_scores(prmbench.class_scores(by_class(sums), names), names)

    def overall(sums: Floats) -> dict[str, Floats]:
        return all_rates(np.asarray(by_class(sums).sum(axis=-2)))

    in_total = np.isin(np.array(steps.group_names), names)[steps.item_group]
    return {
        "classes": measurer.of_sums(sums, classes),
        "groups": measurer.of_sums(sums, groups),
        "overall": measurer.of_sums(sums, overall),
        "side": measurer.item_means(prmbench.side_tallies(steps, measurer.good), in_total),
    }


def measure_processbench(measurer: Measurer) -> dict[str, Table]:
    """Per split acc_error, acc_correct and F1; and the mean F1 of the splits that are there."""
    steps = measurer.steps
    gold = metrics.first_bad(steps.wrong, steps.starts)
    # ProcessBench calls a step wrong if it scores BELOW the threshold, PRMBench good if it scores ABOVE.
    predicted = metrics.first_bad(steps.probability < measurer.threshold, steps.starts)
    tallies = metrics.processbench_tallies(gold, predicted)
    names = steps.group_names
    wide = np.zeros((len(steps.items), len(names), 4))
    wide[np.arange(len(steps.items)), steps.item_group] = tallies
    sums = cluster_sums(wide.reshape(len(steps.items), -1), steps.item_cluster, steps.num_clusters)

    def mean_f1(sums: Floats) -> dict[str, Floats]:
        splits = metrics.processbench_rates(sums.reshape(*sums.shape[:-1], len(names), 4))
        return {"f1": np.asarray(splits["f1"].mean(axis=-1))}

    tables = {
        name: measurer.of_sums(sums[:, 4 * i : 4 * i + 4], metrics.processbench_rates) for i, name in enumerate(names)
    }
    return {**tables, "mean": measurer.of_sums(sums, mean_f1)}


def missing_splits(names: Sequence[str]) -> list[str]:
    """ProcessBench's splits that are not there: with some missing, the mean is not the benchmark's overall value."""
    return [name for name in processbench.SPLITS if name not in names]


def intervals(table: Any) -> Any:
    """The same nesting with intervals in the place of measurements: what goes into metrics.json."""
    return {k: v.interval() if isinstance(v, Measured) else intervals(v) for k, v in table.items()}
