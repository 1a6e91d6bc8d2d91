"""Keep the labels on which two opinions agree; the second is another policy's rollouts, or any scorer of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.console import Advance, ignore
from prism_prm.records import Step, StepTree

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer


def keep_agreed(trees: Sequence[StepTree], others: Sequence[StepTree], counts: Counter[str]) -> list[StepTree]:
    """The trees, with labels only where the same steps of `others` have one on the same side of ½.

    Estimates and texts stay; `counts` hears how many labels were kept and dropped, and why.
    """
    kept = []
    for tree, other in zip(trees, others, strict=True):
        assert len(tree.nodes) == len(other.nodes), "a second opinion is about the same steps"
        steps = [_agreed(step, second, counts) for step, second in zip(tree.nodes, other.nodes, strict=True)]
        kept.append(replace(tree, nodes=tuple(steps)))
    return kept


def _agreed(step: Step, second: Step, counts: Counter[str]) -> Step:
    if step.label is None:
        return step
    if second.label is None:
        counts["no second opinion"] += 1
    elif (step.label > 0.5) == (second.label > 0.5):
        counts["agreed"] += 1
        return step
    else:
        counts["only the first calls it right" if step.label > 0.5 else "only the second calls it right"] += 1
    return replace(step, label=None)


def scored_opinion(
    trees: Sequence[StepTree],
    scorer: Scorer,
    threshold: float = 0.5,
    *,
    store: Path | None = None,
    advance: Advance = ignore,
) -> list[StepTree]:
    """The same trees labelled by a scorer (a PRM, a critic): steps are right above a threshold of its probability.

    It is asked only about steps that have a label. With a `store`, what is in there is not scored again.
    """
    from prism_prm.scorer.store import Request, ScoreStore

    wanted = [[i for i, step in enumerate(tree.nodes) if step.label is not None] for tree in trees]
    if store is None:
        all_scores = scorer.score_trees(trees, wanted, advance=advance)
    else:
        requests = [Request(tree, nodes) for tree, nodes in zip(trees, wanted, strict=True)]
        all_scores = ScoreStore(store, scorer).score(requests, advance=advance)
    found = []
    for tree, scores in zip(trees, all_scores, strict=True):
        probabilities = scores.probability.tolist()
        labels = [None if p != p else float(p > threshold) for p in probabilities]  # NaN: it could not be scored
        steps = tuple(replace(step, label=label) for step, label in zip(tree.nodes, labels, strict=True))
        found.append(replace(tree, nodes=steps))
    return found
