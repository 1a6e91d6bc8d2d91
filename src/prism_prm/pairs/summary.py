"""The counts of `summary.json`, added up chunk by chunk: what was read and what was made from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from prism_prm.data.forest import Forest
from prism_prm.pairs.settings import PairSettings
from prism_prm.records import PAIR_KINDS, PairKind

MAX_RATINGS = 16
"""Ratings are listed by value only where there are not more values than this; soft labels are too many."""


@dataclass(slots=True)
class TreeCounts:
    """Counts over trees; `docs/data.md` defines the shares."""

    settings: PairSettings
    trees: int = 0
    positions: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    ratings: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    rated: int = 0
    rated_positive: int = 0
    trunk: int = 0
    trunk_positive: int = 0
    end_known: int = 0
    all_right: int = 0
    model_all_right: int = 0

    def add(self, forest: Forest) -> None:
        """Count a chunk of trees."""
        labels = forest.labels.to_numpy(zero_copy_only=False)
        ratings = forest.ratings.to_numpy(zero_copy_only=False)
        human = pc.equal(forest.origins, "human").to_numpy(zero_copy_only=False)
        positive, negative = labels > self.settings.positive_above, labels < self.settings.negative_below
        tree = forest.tree_of_node()
        self.trees += len(forest.drafts)
        self.positions += int(np.count_nonzero(np.bincount(forest.node_starts[tree] + tree + forest.parents + 1)))
        none = int(np.count_nonzero(np.isnan(labels)))
        num_positive, num_negative = int(np.count_nonzero(positive)), int(np.count_nonzero(negative))
        undecided = len(labels) - none - num_positive - num_negative
        self.labels.update(positive=num_positive, negative=num_negative, undecided=undecided, none=none)
        for counted in pc.value_counts(forest.origins).to_pylist():
            self.origins[counted["values"]] += counted["counts"]
        is_rated = ~np.isnan(ratings)
        self.rated += int(np.count_nonzero(is_rated))
        self.rated_positive += int(np.count_nonzero(is_rated & positive))
        for counted in pc.value_counts(forest.ratings).to_pylist():
            value = counted["values"]
            self.ratings["none" if value is None else f"{value:g}"] += counted["counts"]
        self._add_trunks(forest, positive, human)

    def _add_trunks(self, forest: Forest, positive: Any, human: Any) -> None:
        tree = np.repeat(np.arange(len(forest.drafts)), np.diff(forest.trunk_starts))
        nodes = forest.trunk + forest.node_starts[tree]
        self.trunk += len(nodes)
        self.trunk_positive += int(np.count_nonzero(positive[nodes]))
        faults = np.bincount(tree[~positive[nodes]], minlength=len(forest.drafts))
        helped = np.bincount(tree[human[nodes]], minlength=len(forest.drafts))
        for draft, num_faults, num_helped in zip(forest.drafts, faults.tolist(), helped.tolist(), strict=True):
            self.end_known += draft.ended is not None
            all_right = bool(draft.ended) and bool(draft.trunk) and num_faults == 0
            self.all_right += all_right
            self.model_all_right += all_right and num_helped == 0

    def as_dict(self) -> dict[str, Any]:
        """For `summary.json`; a share of nothing is null."""
        few = len(self.ratings) <= MAX_RATINGS
        return {
            "trees": self.trees,
            "positions": self.positions,
            "candidates": sum(self.origins.values()),
            "trunk_steps": self.trunk,
            "labels": dict(self.labels),
            "ratings": dict(sorted(self.ratings.items())) if few else {"distinct": len(self.ratings)},
            "origins": dict(sorted(self.origins.items())),
            "positive_step_share": {
                "rated": _share(self.rated_positive, self.rated),
                "trunk": _share(self.trunk_positive, self.trunk),
            },
            "all_right_share": _share(self.all_right, self.end_known),
            "model_all_right_share": _share(self.model_all_right, self.end_known),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(slots=True)
class PairCounts:
    """Counts over pairs, and what made none."""

    kinds: Counter[PairKind] = field(default_factory=Counter)
    drops: dict[PairKind, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in PAIR_KINDS})
    splits: dict[str, Counter[str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Pairs and drops by kind; audit marks are shown beside the drops, since they may have been kept."""
        drops: dict[str, dict[str, int]] = {}
        marked: dict[str, int] = {}
        for kind, counts in self.drops.items():
            for reason, count in sorted(counts.items()):
                if reason.startswith("marked:"):
                    marked[reason.removeprefix("marked:")] = count
                elif count:
                    drops.setdefault(kind, {})[reason] = count
        return {
            "pairs": {**{kind: self.kinds[kind] for kind in PAIR_KINDS}, "total": sum(self.kinds.values())},
            "dropped_pairs": drops,
            "audit_marks": marked,
            "splits": {name: dict(counts) for name, counts in self.splits.items()},
        }
