"""Pairwise accuracy: how often the right one of two steps under the same prefix scores higher, by margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.evaluation.steps import Steps
from prism_prm.metrics import pairwise_accuracy, pairwise_by_margin
from prism_prm.metrics.ranking import Ints
from prism_prm.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from prism_prm.evaluation.evaluate import EvalSettings

EDGES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
"""Bins of |score of the right step − score of the wrong one|."""


@dataclass(frozen=True, slots=True)
class PairTable:
    """Accuracy over all pairs and by the size of the margin; ties count half."""

    num_pairs: int
    overall: Interval
    edges: tuple[float, ...]
    bins: tuple[Interval, ...]
    bin_sizes: tuple[int, ...]


def sibling_pairs(steps: Steps) -> tuple[Ints, Ints]:
    """Every (right, wrong) pair of steps that stand under the same prefix of the same item."""
    key = steps.step_item * (int(steps.lengths.max()) + 2) + steps.parent + 1
    right, wrong = np.flatnonzero(steps.right), np.flatnonzero(steps.wrong)
    wrong = wrong[np.argsort(key[wrong], kind="stable")]
    first = np.searchsorted(key[wrong], key[right], side="left")
    last = np.searchsorted(key[wrong], key[right], side="right")
    sizes = last - first
    chosen = np.repeat(right, sizes)
    offsets = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return chosen, wrong[np.repeat(first, sizes) + offsets]


def measure_pairs(steps: Steps, settings: EvalSettings) -> PairTable | None:
    """The table, or None where no two candidates share a prefix (plain solutions) or there are only verdicts."""
    if steps.hard:
        return None
    chosen, rejected = sibling_pairs(steps)
    if len(chosen) == 0:
        return None
    up, down = steps.probability[chosen], steps.probability[rejected]
    hits, clusters = pairwise_accuracy(up, down), steps.step_cluster[chosen]

    def accuracy(rows: Ints) -> Interval:
        return mean_interval(hits[rows], clusters[rows], num_draws=settings.num_draws, seed=settings.seed)

    bins = pairwise_by_margin(up, down, EDGES)
    return PairTable(
        len(chosen),
        accuracy(np.arange(len(chosen))),
        tuple(EDGES.tolist()),
        tuple(accuracy(rows) for rows in bins),
        tuple(len(rows) for rows in bins),
    )
