"""Validation on held-out problems, which chooses the best round and the thresholds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import card_values, choose_threshold
from prism_prm.arrays import Bools, Floats
from prism_prm.calibration import sigmoid
from prism_prm.console import Advance
from prism_prm.data.pair_examples import Examples, Split, labeled_steps
from prism_prm.errors import DataError
from prism_prm.evaluate.measure import AUROCS, measure_rankings
from prism_prm.metrics import RANKINGS, Ranking, Target, fnr, fpr, pairwise_accuracy, sum_counts
from prism_prm.models.prm import PRM
from prism_prm.stats import cluster_draws, number_clusters
from prism_prm.store import ScoreStore, Share
from prism_prm.train.batches import too_long
from prism_prm.train.margins import score_examples
from prism_prm.train.recipe import CRITERIA, ValidationSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """The held-out data: labeled steps, and pairs with their kinds."""

    steps: Examples
    pairs: Examples
    kinds: np.ndarray
    left_out: Mapping[str, int]
    """The number of steps and pairs that are not measured, by reason."""
    is_sure: Bools
    """Whether a threshold may be chosen on a step: not if its label comes from rollouts, which call wrong steps
    right."""

    @classmethod
    def of(cls, split: Split, prm: PRM, settings: ValidationSettings) -> Validation:
        """The part of a split that fits the PRM's context, without steps whose label is 0.5."""
        ids = list(split.trees)
        num_trees = min(settings.max_trees or len(ids), len(ids))
        chosen = [ids[i] for i in np.linspace(0, len(ids) - 1, num_trees).astype(int)]
        labeled = labeled_steps({tree_id: split.trees[tree_id] for tree_id in chosen})
        assert labeled.labels is not None
        decided = labeled.take(np.flatnonzero(labeled.labels != 0.5))
        steps, _ = _fitting(decided, prm)
        of_chosen = np.flatnonzero(np.isin(split.pairs.tree, chosen))
        pairs, kept = _fitting(split.pairs.take(of_chosen), prm)
        kinds = split.kinds[of_chosen][kept]
        left_out = {
            "undecided_steps": len(labeled) - len(decided),
            "too_long_steps": len(decided) - len(steps),
            "too_long_pairs": len(of_chosen) - len(pairs),
        }
        right = steps.right()
        if right.all() or not right.any():
            steps_found = "no labeled step" if not len(right) else f"only {'right' if right.all() else 'wrong'} steps"
            raise DataError(
                f"The validation split has {steps_found} (left out: {left_out}): give it a larger share in data.split, "
                'or train without validation (validation.split = "").'
            )
        nodes = zip(steps.tree.tolist(), steps.chosen.tolist(), strict=True)
        is_sure = np.array([split.trees[tree].nodes[node].estimate is None for tree, node in nodes], bool)
        if settings.threshold is None and not (is_sure & right).any():
            log.warning(
                "validation: all labels come from rollouts, which call wrong steps right, so no threshold is chosen; "
                "PRMs keep the base PRM's. Set validation.threshold, or validate on steps labeled by people."
            )
        return cls(steps, pairs, kinds, left_out, is_sure)

    def content_key(self) -> str:
        """A hash of the data."""
        return f"{self.steps.content_key()} {self.pairs.content_key()}"

    def describe(self) -> str:
        """What is measured and what is left out, in one line."""
        left_out = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.left_out.items() if count)
        return f"validation: {len(self.steps)} steps and {len(self.pairs)} pairs; left out: {left_out or 'nothing'}"

    @property
    def num_trees(self) -> int:
        """The number of trees to score: those with labeled steps, plus those with pairs."""
        return len(np.unique(self.steps.tree)) + len(np.unique(self.pairs.tree))

    def measure(
        self, store: ScoreStore, settings: ValidationSettings, share: Share, advance: Advance
    ) -> dict[str, Any]:
        """Measure the store's PRM, and choose its threshold; if no label is sure, it keeps its own."""
        right = self.steps.right()
        scores = sigmoid(score_examples(store, self.steps, share=share, advance=advance)[:, 0])
        threshold, sure = settings.threshold, self.is_sure
        if threshold is None:
            threshold = Ranking.of(right[sure], scores[sure]).threshold(Target("tpr", settings.tpr))
        if np.isnan(threshold):
            threshold = choose_threshold(None, card_values(store.scorer)).value
        half, chosen = (sum_counts(right, scores > cutoff) for cutoff in (0.5, threshold))
        result: dict[str, Any] = {
            "trees": len(np.unique(self.steps.tree)), "steps": len(right), "right_steps": int(right.sum()),
            **self.left_out, **self.rankings(right, scores),
            "fpr_at_0.5": float(fpr(half)), "fnr_at_0.5": float(fnr(half)),
            "threshold": float(threshold), "fpr": float(fpr(chosen)), "fnr": float(fnr(chosen)),
        }  # fmt: skip
        if len(self.pairs):
            chosen_N, rejected_N = score_examples(store, self.pairs, share=share, advance=advance).T
            right_N = pairwise_accuracy(chosen_N, rejected_N)
            result |= {"pairs": len(self.pairs), "pairwise_accuracy": float(right_N.mean())}
            for kind in sorted(set(self.kinds)):
                result[f"pairwise_accuracy_{kind}"] = float(right_N[self.kinds == kind].mean())
        return result

    def rankings(self, right: Bools, scores: Floats) -> dict[str, float]:
        """Metrics that need no threshold; the AUROCs with the ends of their 95 % intervals over problems. Those without
        data are left out: AUROC within prefix, if no prefix has a right and a wrong step."""
        trees = self.steps.trees
        nodes = list(zip(self.steps.tree.tolist(), self.steps.chosen.tolist(), strict=True))
        prefixes, _ = number_clusters((tree, trees[tree].parents[node]) for tree, node in nodes)
        problems, num_problems = number_clusters(trees[tree].problem for tree, _ in nodes)
        draws, names = cluster_draws(num_problems), tuple({**AUROCS, **RANKINGS})
        table = measure_rankings(right, scores, prefixes, problems, draws, names)
        found = {name: measured.value for name, measured in table.items()}
        for name in AUROCS:
            ends = table[name].interval()
            found |= {f"{name}_low": ends.low, f"{name}_high": ends.high}
        return {name: value for name, value in found.items() if not np.isnan(value)}


def best_round(results: Mapping[str, Mapping[str, Any]], criterion: str) -> str:
    """The round with the best value of the criterion; of equals, the earlier one."""
    if missing := [name for name, result in results.items() if criterion not in result]:
        raise DataError(
            f"validation.criterion = {criterion!r} was not measured in {missing}: the validation split has no pairs. "
            "Give it a larger share in data.split, or choose another criterion."
        )
    sign = 1 if CRITERIA[criterion] else -1
    return max(results, key=lambda name: sign * results[name][criterion])


def _fitting(examples: Examples, prm: PRM) -> tuple[Examples, np.ndarray]:
    kept = np.setdiff1d(np.arange(len(examples)), too_long(examples, prm.family, prm.context))
    return examples.take(kept), kept
