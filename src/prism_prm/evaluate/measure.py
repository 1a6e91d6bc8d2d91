"""Judged steps as columns, and their metrics with bootstrap intervals, all from one set of draws.

The steps of all items are concatenated; `starts` has the index of each item's first step. The file of steps is
self-contained: two runs can be compared without the benchmark's texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prism_prm import metrics
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.errors import DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import atomic_file
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
    number_clusters,
    resampled_sums,
)

NOT_JUDGED = -1


@dataclass(frozen=True)
class Steps:
    """One row per step; columns that start with `item_` have one row per item."""

    items: tuple[str, ...]
    group_names: tuple[str, ...]
    item_group: Ints
    """Index into `group_names`."""
    item_cluster: Ints
    num_clusters: int
    item_contaminated: npt.NDArray[np.int8]
    """1 yes, 0 no, −1 not checked."""
    starts: Ints
    parent: Ints
    """The node before the step; −1 for a first step."""
    label: npt.NDArray[np.int8]
    """1 right, 0 wrong, −1 not judged."""
    probability: Floats
    """NaN if a critic gave no verdict."""
    redundancy: Floats | None = None
    hard: bool = False
    """Whether the scores are only verdicts (0 or 1), which give no ranking."""
    item_content: tuple[str, ...] | None = None
    """The content hash of each item; None in files of earlier versions."""

    @cached_property
    def lengths(self) -> Ints:
        return np.diff(np.append(self.starts, len(self.label)))

    @cached_property
    def step_item(self) -> Ints:
        """The index of each step's item."""
        return np.repeat(np.arange(len(self.items)), self.lengths)

    @cached_property
    def step_group(self) -> Ints:
        """The group of each step's item."""
        return self.item_group[self.step_item]

    @cached_property
    def step_cluster(self) -> Ints:
        """The cluster of each step's item."""
        return self.item_cluster[self.step_item]

    @cached_property
    def judged(self) -> Bools:
        """Steps with a label and a score; a critic may leave steps unscored (NaN)."""
        return np.asarray((self.label != NOT_JUDGED) & ~np.isnan(self.probability))

    @cached_property
    def right(self) -> Bools:
        return np.asarray(self.label == 1)

    @cached_property
    def wrong(self) -> Bools:
        return np.asarray(self.label == 0)

    @cached_property
    def are_chains(self) -> bool:
        """Whether every item is a single solution, so that "first step" is defined."""
        before = np.arange(len(self.label)) - np.repeat(self.starts, self.lengths) - 1
        return bool((self.parent == before).all())

    @cached_property
    def step_prefix(self) -> Ints:
        """A number per step, the same for candidates after the same prefix of an item."""
        return self.step_item * (int(self.lengths.max()) + 2) + self.parent + 1

    def first_judged_bad(self, bad: Bools) -> Ints:
        """The first bad step of each item, −1 if there is none, and −2 if a step before it has no score."""
        unscored = np.isnan(self.probability)
        first, gap = metrics.first_bad(bad & ~unscored, self.starts), metrics.first_bad(unscored, self.starts)
        return np.where((gap >= 0) & ((first < 0) | (gap < first)), -2, first)

    def only(self, keep: Bools) -> Steps:
        """The items in a mask over items, with clusters and groups renumbered."""
        step_keep = np.repeat(keep, self.lengths)
        lengths = self.lengths[keep]
        present, groups = np.unique(self.item_group[keep], return_inverse=True)
        clusters, num_clusters = number_clusters(self.item_cluster[keep].tolist())
        return replace(
            self,
            items=tuple(compress(self.items, keep)),
            group_names=tuple(self.group_names[i] for i in present),
            item_group=groups.astype(np.int64),
            item_cluster=clusters,
            num_clusters=num_clusters,
            item_contaminated=self.item_contaminated[keep],
            starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)[: len(lengths)],
            parent=self.parent[step_keep],
            label=self.label[step_keep],
            probability=self.probability[step_keep],
            redundancy=None if self.redundancy is None else self.redundancy[step_keep],
            item_content=None if self.item_content is None else tuple(compress(self.item_content, keep)),
        )

    def only_groups(self, names: Sequence[str]) -> Steps:
        """The items of some groups."""
        return self.only(np.isin(self.group_names, names)[self.item_group])


_RERUN = "rerun `prism eval`"
_COLUMNS = ("item", "group", "cluster", "contaminated", "parent", "label", "probability", "redundancy")
_CONTENT = "content_hash"
"""A column that files of earlier versions do not have."""


def write_steps(path: str | Path, steps: Steps) -> None:
    """Write the columns as Parquet, one row per step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def names(values: Sequence[str], indices: Ints) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(list(values), pa.string()))

    columns = [
        names(steps.items, steps.step_item),
        names(steps.group_names, steps.step_group),
        pa.array(steps.step_cluster, pa.int32()),
        pa.array(steps.item_contaminated[steps.step_item], pa.int8()),
        pa.array(steps.parent, pa.int32()),
        pa.array(steps.label, pa.int8()),
        pa.array(steps.probability, pa.float64()),
        pa.array(np.full(len(steps.label), np.nan) if steps.redundancy is None else steps.redundancy, pa.float64()),
    ]
    table = pa.Table.from_arrays(columns, names=list(_COLUMNS))
    if steps.item_content is not None:
        table = table.append_column(_CONTENT, names(steps.item_content, steps.step_item))
    with atomic_file(path) as partial_file:
        pq.write_table(table.replace_schema_metadata({"hard": str(int(steps.hard))}), partial_file)


def read_steps(path: str | Path) -> Steps:
    """Read a file of `write_steps`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).exists():
        raise DataError(f"{path}: no such file; {_RERUN}")
    words, kinds = pa.dictionary(pa.int32(), pa.string()), (pa.int32(), pa.int8(), pa.int32(), pa.int8())
    types = (words, words, *kinds, pa.float64(), pa.float64(), words)
    with reading_parquet(path, _RERUN):
        table = pq.read_table(path)
        if tuple(table.column_names) not in (_COLUMNS, (*_COLUMNS, _CONTENT)):
            raise DataError(f"{path}: not a file of judged steps (its columns are {table.column_names}); {_RERUN}")
        fields = [pa.field(*field, nullable=False) for field in zip(table.column_names, types, strict=False)]
        table = fitted(path, table, pa.schema(fields))
    clusters = table["cluster"].to_numpy().astype(np.int64)
    if not len(clusters) or not 0 <= clusters.min() <= clusters.max() < len(clusters):
        raise DataError(f"{path}: the column 'cluster' has no valid numbers; {_RERUN}")
    item = table["item"].combine_chunks()
    step_item, names = item.indices.to_numpy(), item.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(step_item, prepend=-1)).astype(np.int64)
    group = table["group"].combine_chunks()
    redundancy = table["redundancy"].to_numpy()
    content = table[_CONTENT].combine_chunks() if _CONTENT in table.column_names else None
    return Steps(
        items=tuple(names),
        group_names=tuple(group.dictionary.to_pylist()),
        item_group=group.indices.to_numpy().astype(np.int64)[starts],
        item_cluster=clusters[starts],
        num_clusters=int(clusters.max()) + 1,
        item_contaminated=table["contaminated"].to_numpy()[starts],
        starts=starts,
        parent=table["parent"].to_numpy().astype(np.int64),
        label=table["label"].to_numpy(),
        probability=table["probability"].to_numpy(),
        redundancy=None if np.isnan(redundancy).all() else redundancy,
        hard=(table.schema.metadata or {}).get(b"hard") == b"1",
        item_content=None if content is None else tuple(content.take(pa.array(starts)).to_pylist()),
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
"""Metrics that depend on the threshold, in percent; the arrow shows which direction is better."""

AUROCS = {
    "auroc_prefix": "AUROC within prefix ↑",
    "auroc_problem": "AUROC within problem ↑",
    "auroc": "AUROC, pooled ↑",
}
"""How often a right step scores above a wrong one: of the candidates after one prefix (what beam search compares), of
all steps of a problem (Best-of-N, GRPO), and of all steps (what a threshold needs). In percent."""

NO_SIBLINGS = "No prefix has a right and a wrong candidate, so there is no AUROC within prefix."

RANKINGS = {
    **AUROCS,
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
"""Where the first step judged bad is, in percent of solutions with an error."""

NUM_BINS = 10
"""Bins of the calibration error."""
THRESHOLDS = np.linspace(0.0, 1.0, 201)
"""Thresholds of the FPR–FNR curve."""
NUM_HISTOGRAM_BINS = 25
MARGIN_EDGES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
"""Bins of |score of the right step − score of the wrong one|."""


@dataclass(frozen=True)
class Measured:
    """A metric's value, and its value in every draw. PRMs measured on the same draws can be compared."""

    value: float
    replicates: Floats = field(repr=False)
    num_clusters: int = 0

    def interval(self) -> Interval:
        return interval(self.value, self.replicates, self.num_clusters)

    def minus(self, other: Measured) -> Comparison:
        return compare(self.value, other.value, self.replicates, other.replicates, self.num_clusters)


Table = dict[str, Measured]
"""By metric."""
Tables = dict[str, Table]


def shown(measured: Measured | None) -> str:
    """A metric in percent with its interval."""
    return NO_DATA if measured is None else percent(measured.interval())


def known_aurocs(tables: Iterable[Table]) -> dict[str, str]:
    """Those of AUROCS that a table has data for, with their labels."""
    tables = list(tables)
    known = {name for table in tables for name in AUROCS if name in table and not np.isnan(table[name].value)}
    return {name: label for name, label in AUROCS.items() if name in known}


def metric_rows(names: Mapping[str, str], tables: Sequence[Table]) -> list[list[str]]:
    """A row per metric, and a column per table. Metrics that no table has are left out."""
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
    """Nested tables with intervals instead of measurements, for metrics.json."""
    return {k: v.interval() if isinstance(v, Measured) else intervals(v) for k, v in table.items()}


@dataclass(frozen=True)
class SubsetResult:
    """All metrics of one set of items."""

    num_items: int
    num_steps: int
    num_problems: int
    counts: dict[str, int]
    tables: Tables
    """`steps` (rates, rankings, calibration, first errors), and the benchmark's own tables."""
    groups: Tables
    """Rates and the AUROCs by class or split."""
    group_counts: dict[str, dict[str, int]]


def measure_rankings(
    right: Bools, scores: Floats, prefixes: Ints, problems: Ints, draws: ClusterDraws, names: Sequence[str]
) -> Table:
    """Metrics of steps that need no threshold, each with its value in every draw of problems.

    `prefixes` numbers what each step follows, `problems` the clusters that are drawn. A metric without data is NaN:
    AUROC within prefix, for example, if no right step has a wrong one beside it.
    """
    pooled = tuple(name for name in names if name in metrics.RANKINGS)
    ranking = metrics.Ranking.of(right, scores)
    values, drawn = ranking.metrics(), ranking.resampled(problems, draws, pooled)
    table = {name: Measured(values[name], drawn[name], draws.num_clusters) for name in pooled}
    for name, groups in (("auroc_prefix", prefixes), ("auroc_problem", problems)):
        if name in names:
            _, first, group = np.unique(groups, return_index=True, return_inverse=True)
            pairs = metrics.ranked_pairs(right, scores, group, len(first))
            sums = cluster_sums(pairs, problems[first], draws.num_clusters)
            whole, resampled = sums.sum(axis=0), resampled_sums(sums, draws)
            within = ratio(resampled[:, 0], resampled[:, 1])
            table[name] = Measured(float(ratio(whole[0], whole[1])), within, draws.num_clusters)
    return {name: table[name] for name in names}


@dataclass(frozen=True)
class Measurer:
    """Computes metrics of one set of steps under one threshold, all on the same draws."""

    steps: Steps
    threshold: float
    num_draws: int = NUM_DRAWS
    seed: int = SEED
    verdicts: Bools | None = None
    """Which steps are judged good. By default those above the threshold."""

    @cached_property
    def draws(self) -> ClusterDraws:
        """How often each draw has each problem."""
        return cluster_draws(self.steps.num_clusters, self.num_draws, self.seed)

    @cached_property
    def good(self) -> Bools:
        """Which steps are judged good."""
        return self.steps.probability > self.threshold if self.verdicts is None else self.verdicts

    def of_sums(self, sums: Floats, compute: Callable[[Floats], Mapping[str, Floats]]) -> Table:
        """Metrics that are functions of column sums, given as (clusters, columns); `compute` keeps leading axes."""
        values, drawn = compute(sums.sum(axis=0)), compute(resampled_sums(sums, self.draws))
        clusters = self.steps.num_clusters
        return {name: Measured(float(values[name]), np.asarray(drawn[name]), clusters) for name in values}

    def _step_sums(self, columns: Floats, keep: Bools) -> Floats:
        return cluster_sums(columns[keep], self.steps.step_cluster[keep], self.steps.num_clusters)

    def _judged(self, keep: Bools | None) -> Bools:
        return self.steps.judged if keep is None else keep & self.steps.judged

    def counts(self, keep: Bools | None = None) -> dict[str, int]:
        """TP, FP, TN and FN of the judged steps, optionally only those in `keep`."""
        kept = self._judged(keep)
        counts = metrics.sum_counts(self.steps.right[kept], self.good[kept]).astype(int).tolist()
        return dict(zip(("tp", "fp", "tn", "fn"), counts, strict=True))

    def rates(self, keep: Bools | None = None) -> Table:
        """Every rate of the judged steps, optionally only those in `keep`."""
        sums = self._step_sums(metrics.confusion(self.steps.right, self.good), self._judged(keep))
        return self.of_sums(sums, all_rates)

    def rankings(
        self, keep: Bools | None = None, names: Sequence[str] = tuple({**AUROCS, **metrics.RANKINGS})
    ) -> Table:
        """Metrics that need no threshold; empty for verdicts without scores."""
        if self.steps.hard:
            return {}
        steps, kept = self.steps, self._judged(keep)
        prefixes, problems = steps.step_prefix[kept], steps.step_cluster[kept]
        return measure_rankings(steps.right[kept], steps.probability[kept], prefixes, problems, self.draws, names)

    def calibration(self) -> Table:
        """The expected calibration error of the probabilities; empty for verdicts without scores."""
        if self.steps.hard:
            return {}
        gaps = metrics.calibration_gaps(self.steps.right, np.nan_to_num(self.steps.probability), NUM_BINS)
        sums = self._step_sums(np.concatenate([gaps, np.ones((len(gaps), 1))], axis=1), self.steps.judged)
        return self.of_sums(sums, lambda s: {"calibration_error": metrics.calibration_error(s[..., :-1], s[..., -1])})

    def group_counts(self) -> Floats:
        """The confusion counts of every group, as (clusters, groups · 4)."""
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
        """Means over items, each given as a sum and a count per item."""
        chosen = np.ones(len(self.steps.items), bool) if keep is None else keep
        columns = np.stack([column for pair in tallies.values() for column in pair], axis=1)[chosen]
        sums = cluster_sums(columns, self.steps.item_cluster[chosen], self.steps.num_clusters)
        return self.of_sums(
            sums, lambda s: {name: ratio(s[..., 2 * i], s[..., 2 * i + 1]) for i, name in enumerate(tallies)}
        )

    def first_errors(self) -> Table:
        """Where the first step judged bad is, in items with an error: the fractions exact, early, late and missed."""
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
    """Pairwise accuracy over all pairs (AUROC within prefix) and by the size of the margin; ties count half."""

    num_pairs: int
    overall: Interval
    edges: tuple[float, ...]
    bins: tuple[Interval, ...]
    bin_sizes: tuple[int, ...]


def sibling_pairs(steps: Steps) -> tuple[Ints, Ints]:
    """Every pair of a right and a wrong step with scores after the same prefix of an item."""
    key = steps.step_prefix
    right, wrong = np.flatnonzero(steps.right & steps.judged), np.flatnonzero(steps.wrong & steps.judged)
    wrong = wrong[np.argsort(key[wrong], kind="stable")]
    first = np.searchsorted(key[wrong], key[right], side="left")
    last = np.searchsorted(key[wrong], key[right], side="right")
    sizes = last - first
    chosen = np.repeat(right, sizes)
    offsets = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return chosen, wrong[np.repeat(first, sizes) + offsets]


def measure_pairs(steps: Steps, num_draws: int = NUM_DRAWS, seed: int = SEED) -> PairTable | None:
    """How often the right one of two steps after the same prefix scores higher, over all pairs and by margin.

    None if no two candidates share a prefix (plain solutions), or for verdicts without scores.
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

    bins = metrics.pairs_by_margin(up - down, MARGIN_EDGES)
    return PairTable(
        len(chosen),
        Measurer(steps, 0.5, num_draws, seed).rankings(names=("auroc_prefix",))["auroc_prefix"].interval(),
        tuple(MARGIN_EDGES.tolist()),
        tuple(accuracy(rows) for rows in bins),
        tuple(len(rows) for rows in bins),
    )


def error_curve(steps: Steps) -> dict[str, list[float]]:
    """FPR and FNR at each of THRESHOLDS; empty for verdicts, or without both right and wrong steps."""
    judged = steps.judged
    if steps.hard or not steps.right[judged].any() or not steps.wrong[judged].any():
        return {}
    fpr, fnr = metrics.Ranking.of(steps.right[judged], steps.probability[judged]).error_curve(THRESHOLDS)
    return {"threshold": THRESHOLDS.tolist(), "fpr": fpr.tolist(), "fnr": fnr.tolist()}


def histogram(steps: Steps) -> dict[str, list[float]]:
    """The fractions of right and of wrong steps by score."""
    edges = np.linspace(0, 1, NUM_HISTOGRAM_BINS + 1)
    result: dict[str, list[float]] = {"edges": edges.tolist()}
    for name, mask in (("right", steps.right & steps.judged), ("wrong", steps.wrong & steps.judged)):
        if mask.any():
            result[name] = (np.histogram(steps.probability[mask], edges)[0] / mask.sum()).tolist()
    return result
