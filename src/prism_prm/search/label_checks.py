"""Keep only labels that a second opinion confirms (another policy's rollouts, or a scorer), and measure label noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prism_prm.console import Advance, ignore
from prism_prm.scorer import Scorer
from prism_prm.stats import Interval, wilson
from prism_prm.tree import StepTree


def keep_agreed(trees: Sequence[StepTree], others: Sequence[StepTree], counts: Counter[str]) -> list[StepTree]:
    """The trees without labels that `others`, the same trees, do not confirm: those on the other side of ½, or missing.

    Estimates and texts stay. `counts` counts labels that were kept and dropped, by reason.
    """
    kept = []
    for tree, other in zip(trees, others, strict=True):
        assert len(tree.nodes) == len(other.nodes), "a second opinion is about the same steps"
        steps = list(tree.nodes)
        for i, (step, second) in enumerate(zip(tree.nodes, other.nodes, strict=True)):
            if step.label is None:
                continue
            if second.label is None:
                reason = "no second opinion"
            elif (step.label > 0.5) == (second.label > 0.5):
                reason = "agreed"
            else:
                reason = f"only the {'first' if step.label > 0.5 else 'second'} calls it right"
            counts[reason] += 1
            if reason != "agreed":
                steps[i] = replace(step, label=None)
        kept.append(replace(tree, nodes=tuple(steps)))
    return kept


def label_by_scores(
    trees: Sequence[StepTree],
    scorer: Scorer,
    threshold: float = 0.5,
    *,
    store: Path | None = None,
    advance: Advance = ignore,
) -> list[StepTree]:
    """The same trees with labels by a scorer (a PRM or a critic): steps are right above a threshold.

    Only steps that have a label are scored. A `store` caches the scores.
    """
    from prism_prm.store import Request, ScoreStore

    wanted = [[i for i, step in enumerate(tree.nodes) if step.label is not None] for tree in trees]
    if store is None:
        all_scores = scorer.score_trees(trees, wanted, advance=advance)
    else:
        requests = [Request(tree, nodes) for tree, nodes in zip(trees, wanted, strict=True)]
        all_scores = ScoreStore(store, scorer).score(requests, advance=advance)
    labeled = []
    for tree, scores in zip(trees, all_scores, strict=True):
        probabilities = scores.probability.tolist()
        labels = [None if p != p else float(p > threshold) for p in probabilities]  # NaN: it could not be scored
        steps = tuple(replace(step, label=label) for step, label in zip(tree.nodes, labels, strict=True))
        labeled.append(replace(tree, nodes=steps))
    return labeled


LAST_POSITION = 9
"""Steps at this position and later are one group."""


@dataclass(slots=True)
class Confusion:
    """Counts of true and estimated labels."""

    right: int = 0
    right_called_wrong: int = 0
    wrong: int = 0
    wrong_called_right: int = 0

    def add(self, truth: bool, label: bool) -> None:
        """Count a step."""
        if truth:
            self.right += 1
            self.right_called_wrong += not label
        else:
            self.wrong += 1
            self.wrong_called_right += label

    @property
    def fpr(self) -> Interval:
        """The fraction of wrong steps that are called right."""
        return _rate(self.wrong_called_right, self.wrong)

    @property
    def fnr(self) -> Interval:
        """The fraction of right steps that are called wrong."""
        return _rate(self.right_called_wrong, self.right)


def _rate(part: int, whole: int) -> Interval:
    if not whole:
        return Interval(math.nan, math.nan, math.nan, 0)
    return Interval(part / whole, *wilson(part, whole), whole)


@dataclass(slots=True)
class LabelNoise:
    """The error rates of labels, by group, with Wilson intervals over steps."""

    groups: dict[str, Confusion] = field(default_factory=dict)
    """"all"; "position 1", …; and by whether the step's solution has the right answer."""
    solved: int = 0
    """Solutions with the right answer for which it is known whether they have a wrong step."""
    solved_wrongly: int = 0
    """Those of them with a wrong step."""
    solved_wrongly_unnoticed: int = 0
    """Those of these whose wrong steps are all called right."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of what was left out, by reason."""


def measure_noise(exact: Sequence[StepTree], labeled: Sequence[StepTree], reached: Iterable[bool | None]) -> LabelNoise:
    """Compare the labels of the same trees. `reached` is whether each tree's solution has the right answer."""
    noise = LabelNoise({"all": Confusion()})
    for truth, guess, right in zip(exact, labeled, reached, strict=True):
        depths = truth.depths()
        for i, (real, estimated) in enumerate(zip(truth.nodes, guess.nodes, strict=True)):
            if real.label is None or real.label == 0.5:
                noise.counts["steps without an exact label"] += 1
                continue
            if estimated.label is None:
                noise.counts["steps without a label from rollouts"] += 1
                continue
            depth = depths[i]
            position = f"position {depth + 1}" if depth < LAST_POSITION else f"position {LAST_POSITION + 1} and on"
            outcome = "solutions with the right answer" if right else "other solutions"
            for name in ("all", position, outcome if i in truth.trunk else "alternatives"):
                noise.groups.setdefault(name, Confusion()).add(real.label > 0.5, estimated.label > 0.5)
        trunk = [(truth.nodes[i].label, guess.nodes[i].label) for i in truth.trunk]
        wrong = [label for real, label in trunk if real is not None and real < 0.5]
        if right and trunk and (wrong or all(real is not None for real, _ in trunk)):
            noise.solved += 1
            noise.solved_wrongly += bool(wrong)
            noise.solved_wrongly_unnoticed += bool(wrong) and all(label is not None and label > 0.5 for label in wrong)

    def rank(group: str) -> tuple[int, int, str]:
        """The sort key: all, then positions by number, then the rest."""
        kind, _, rest = group.partition(" ")
        is_numbered = kind == "position"
        return (0 if group == "all" else 1 if is_numbered else 2), int(rest.split()[0]) if is_numbered else 0, group

    noise.groups = {name: noise.groups[name] for name in sorted(noise.groups, key=rank)}
    return noise
