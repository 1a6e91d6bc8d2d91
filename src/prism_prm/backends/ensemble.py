"""`Ensemble`: a scorer that combines the log-odds of several, by their mean, their minimum, or mean − k · std."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prism_prm.aggregate import CardValues, card_values, segmenter_of
from prism_prm.arrays import Floats
from prism_prm.calibration import sigmoid
from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError
from prism_prm.scorer import ScoredStep, Scorer, StepSession, TreeScores, digest
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.tree import StepTree

_PENALIZED = re.compile(r"mean-(\d+(?:\.\d+)?)std")


def check_rule(rule: str) -> None:
    """Raise ConfigError if the rule is not mean, min, or mean-Kstd with a number K."""
    if rule not in ("mean", "min") and not _PENALIZED.fullmatch(rule):
        raise ConfigError(f"{rule!r} is not a rule of ensembles; use mean, min or, with a number K, mean-Kstd")


def combine(log_odds_MN: Floats, rule: str) -> Floats:
    """Combine M scorers' log-odds of N steps; NaN where a scorer has none.

    The standard deviation is that of the M values (divided by M). So mean-1std of two scorers is their minimum.

    Args:
        log_odds_MN: a row per scorer.
        rule: mean, min, or mean-Kstd with a number K.

    Example:
        >>> combine(np.array([[1.0, 4.0], [3.0, 4.0]]), "mean-1std").tolist()
        [1.0, 4.0]
    """
    check_rule(rule)
    if rule == "min":
        return np.asarray(log_odds_MN.min(axis=0))
    mean_N = log_odds_MN.mean(axis=0)
    penalized = _PENALIZED.fullmatch(rule)
    return np.asarray(mean_N - float(penalized[1]) * log_odds_MN.std(axis=0) if penalized else mean_N)


class Ensemble(Scorer):
    """Scores a step by the combined log-odds of several scorers; a step that one of them cannot score has no score.

    Log-odds are the members' own, without their calibrations.
    """

    def __init__(self, members: Sequence[Scorer], rule: str = "mean") -> None:
        check_rule(rule)
        if len(members) < 2:
            raise ConfigError(f"an ensemble needs at least two scorers; got {len(members)}")
        self.members = tuple(members)
        self.rule = rule
        self.context = min(member.context for member in members)
        choices = {member.on_too_long for member in members}
        # A step that one member skips has no score, whatever the others do with it.
        self.on_too_long = next(choice for choice in ("error", "skip", "window") if choice in choices)
        self.reads_whole_solutions = any(member.reads_whole_solutions for member in members)
        self.judges_every_step = all(member.judges_every_step for member in members)
        self.by_sample = any(member.by_sample for member in members)
        segmenters = {segmenter_of(member): type(member).__name__ for member in members}
        if len(segmenters) > 1:
            found = ", ".join(f"{segmenter} ({name})" for segmenter, name in segmenters.items())
            raise ConfigError(
                f"the members of an ensemble cut texts into steps by different rules: {found}; choose one with "
                "load.segmenter=… (segmenter= in Python)"
            )
        cards = {_uncalibrated(card_values(member)) for member in members}
        [segmenter] = segmenters
        # Where the members' cards differ otherwise, there is no default.
        shared = None if segmenter == DEFAULT_SEGMENTER else CardValues(segmenter=segmenter)
        self.card = cards.pop() if len(cards) == 1 else shared

    def identity(self) -> str:
        return digest(self.rule, [member.identity() for member in self.members])

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        found = [member.score_trees(trees, wanted, progress=progress) for member in self.members]
        advance(len(trees))
        results = []
        for of_tree in zip(*found, strict=True):
            log_odds_N = combine(np.stack([one.log_odds_NO[:, 0] for one in of_tree]), self.rule)
            too_long, unjudged = (
                tuple(sorted({node for one in of_tree for node in getattr(one, why)}))
                for why in ("too_long", "unjudged")
            )
            results.append(TreeScores(self.outputs, log_odds_N[:, None], too_long, unjudged))
        return results

    def count_tokens(self, tree: StepTree) -> int:
        return sum(member.count_tokens(tree) for member in self.members)

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Open a session of each member; all grow together."""
        return EnsembleSession(self, problems)

    def can_score(self, step: str, depth: int) -> bool:
        return all(member.can_score(step, depth) for member in self.members)

    def notes(self) -> list[str]:
        return [note for member in self.members for note in member.notes()]

    def close(self) -> None:
        for member in self.members:
            member.close()


def _uncalibrated(card: CardValues | None) -> CardValues | None:
    if card is None or card.calibration is None:
        return card
    return replace(card, threshold=card.calibration.undo(card.threshold), calibration=None)


@dataclass(eq=False, slots=True)
class EnsembleStep:
    """A step of an `EnsembleSession`, or a root."""

    members: tuple[ScoredStep, ...]
    """The step in each member's session."""
    rule: str

    @property
    def depth(self) -> int:
        """The number of steps before it; -1 for a root."""
        return self.members[0].depth

    @property
    def log_odds(self) -> tuple[float, ...]:
        """The combined log-odds; empty for a root."""
        if self.depth < 0:
            return ()
        return tuple(combine(np.array([member.log_odds[:1] for member in self.members]), self.rule).tolist())

    @property
    def probability(self) -> float:
        """P(the step is right)."""
        return float(sigmoid(np.asarray(self.log_odds[0])))

    @property
    def num_tokens(self) -> int:
        """The number of tokens that it adds to its prefix, in all members."""
        return sum(member.num_tokens for member in self.members)


class EnsembleSession(StepSession[EnsembleStep]):
    """A session of each member of an ensemble."""

    def __init__(self, ensemble: Ensemble, problems: Sequence[str]) -> None:
        self.rule = ensemble.rule
        self.sessions = [member.session(problems) for member in ensemble.members]
        roots = zip(*(session.roots for session in self.sessions), strict=True)
        self.roots = [EnsembleStep(members, self.rule) for members in roots]

    def extend(self, steps: Iterable[tuple[EnsembleStep, str]]) -> list[EnsembleStep]:
        """Score a new step after each given step; equal steps after the same one share a node."""
        asked = list(steps)
        found = [
            session.extend([(parent.members[i], text) for parent, text in asked])
            for i, session in enumerate(self.sessions)
        ]
        new: dict[tuple[EnsembleStep, str], EnsembleStep] = {}
        for key, members in zip(asked, zip(*found, strict=True), strict=True):
            new.setdefault(key, EnsembleStep(members, self.rule))
        return [new[key] for key in asked]

    def keep(self, nodes: Iterable[EnsembleStep]) -> None:
        """Free everything but these nodes and the roots."""
        self._in_each("keep", nodes)

    def drop(self, nodes: Iterable[EnsembleStep]) -> None:
        """Free these nodes."""
        self._in_each("drop", nodes)

    def _in_each(self, what: str, nodes: Iterable[EnsembleStep]) -> None:
        given = list(nodes)
        for i, session in enumerate(self.sessions):
            getattr(session, what)([node.members[i] for node in given])

    def close(self) -> None:
        """Free everything."""
        for session in self.sessions:
            session.close()
