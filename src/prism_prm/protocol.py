"""The protocol of a scorer and the scores it gives: all that search, re-ranking and evaluation need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError, DataError
from prism_prm.records import StepTree

Solution = StepTree | tuple[str, Sequence[str]] | Mapping[str, Any]
"""What `score_many` takes: (problem, steps), {"problem": …, "steps": […]}, or a tree that is one."""


def as_trees(solutions: Sequence[Solution]) -> list[StepTree]:
    """The solutions as trees, numbered through; whatever is none is an error that says what it is."""
    if isinstance(solutions, Mapping | StepTree):
        raise DataError("this is one solution; give a list of solutions", reason="wrong-type")
    return [_as_tree(solution, number) for number, solution in enumerate(solutions)]


def _as_tree(solution: Solution, number: int) -> StepTree:
    if isinstance(solution, StepTree):
        return solution
    match solution:
        case {"problem": problem, "steps": steps}:
            pass
        case Mapping():
            raise _no_solution(number, f"a dict with the keys {list(solution)}")
        case str():
            raise _no_solution(number, f"a text, {solution[:40]!r}")
        case [problem, steps]:
            pass
        case _:
            raise _no_solution(number, f"a {type(solution).__name__} of {len(solution)}")
    try:
        if not isinstance(problem, str):
            raise DataError(f"the problem must be a text, not of type {type(problem).__name__}")
        tree = StepTree.chain(problem, steps, tree_id=number)
        for i, step in enumerate(tree.nodes):
            if not isinstance(step.text, str):
                raise DataError(f"step {i} must be a text, not of type {type(step.text).__name__}")
    except DataError as error:
        raise DataError(f"solution {number}: {error}", reason="wrong-type") from error
    return tree


def _no_solution(number: int, found: str) -> DataError:
    expected = '(problem, [step, …]), {"problem": …, "steps": […]} or a StepTree'
    return DataError(f"solution {number}: expected {expected}, found {found}", reason="wrong-type")


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """Probabilities of log-odds, without overflow."""
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds >= 0, 1.0, small) / (1.0 + small))


@dataclass(frozen=True, slots=True)
class TreeScores:
    """The scores of one tree, one row per node.

    A node that was not requested, was left out by `on_too_long="skip"` or was not judged is NaN; otherwise a score is
    never NaN.
    """

    outputs: tuple[str, ...]
    log_odds_NO: np.ndarray
    too_long: tuple[int, ...] = ()
    """Nodes whose path exceeds the context: left unscored, or scored without their earliest steps."""
    unjudged: tuple[int, ...] = ()
    """Nodes on which a critic gave no verdict: requested, and NaN."""

    @property
    def probability(self) -> np.ndarray:
        """P(the step is right) of each node."""
        return sigmoid(self.log_odds_NO[:, 0])

    def named(self, output: str) -> np.ndarray:
        """The probability of one named output, such as ReasonEval's redundancy, for each node."""
        if output not in self.outputs:
            raise ConfigError(f"This PRM has no output {output!r}; it has: {', '.join(self.outputs)}.")
        return sigmoid(self.log_odds_NO[:, self.outputs.index(output)])

    @property
    def scored(self) -> list[int]:
        """The nodes that have a score."""
        return np.flatnonzero(~np.isnan(self.log_odds_NO[:, 0])).tolist()


class ScoredStep(Protocol):
    """A step of a session, or a problem itself (a root)."""

    @property
    def depth(self) -> int:
        """How many steps come before it; -1 for a root."""

    @property
    def probability(self) -> float:
        """P(the step is right); NaN if it was too long to score."""

    @property
    def log_odds(self) -> tuple[float, ...]:
        """The named log-odds behind it."""

    @property
    def num_tokens(self) -> int:
        """How many tokens it adds to those before it."""


StepT = TypeVar("StepT", bound=ScoredStep)


class StepSession(Protocol[StepT]):
    """Growing trees of steps, one per problem; what was computed for a step is kept until it is dropped."""

    @property
    def roots(self) -> Sequence[StepT]:
        """One per problem, to be extended by first steps."""

    def extend(self, steps: Iterable[tuple[StepT, str]]) -> list[StepT]:
        """Score one more step after each given one; equal steps after one are scored once and share their node."""

    def keep(self, nodes: Iterable[StepT]) -> None:
        """Let go of everything but these and the roots."""

    def drop(self, nodes: Iterable[StepT]) -> None:
        """Let go of these."""

    def close(self) -> None:
        """Let go of everything."""


class Scorer(Protocol):
    """Scores the steps of solutions.

    If it also has a `card`, as a `PRM` does, the card's `aggregator` and `threshold` are the defaults for its scores.
    A scorer whose scores depend on later steps too says so by `reads_whole_solutions`; one that judges no step after
    the first wrong one by `judges_every_step` (False).
    """

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the log-odds; the first is that the step is right."""

    @property
    def context(self) -> int:
        """The longest path that is scored, in tokens."""

    def identity(self) -> str:
        """Equal for scorers that score alike: what decides whether earlier scores may be used."""

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """P(the step is right) for each step of one solution."""

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = False) -> list[list[float]]:
        """P(right) for each step of each solution, in the order given."""

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or only of the wanted ones; `advance` is called with finished trees."""

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Growing trees of steps, one per problem."""

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step after this many others fits the layout, regardless of its length."""

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""


class ScoresSolutions(ABC):
    """Scores of solutions, for scorers that score trees."""

    @abstractmethod
    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """As in `Scorer`."""

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """P(right) of each step of one solution; NaN where a step was not judged."""
        return self.score_many([(problem, steps)])[0]

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = False) -> list[list[float]]:
        """P(right) of each step of each solution, in the order given."""
        return [found.probability.tolist() for found in self.score_trees(as_trees(solutions), progress=progress)]


def notes_of(scorer: Scorer) -> list[str]:
    """What a scorer has to say about its scores in lines, as a critic does about its cost; most say nothing."""
    said = getattr(scorer, "notes", None)
    return [] if said is None else list(said())


def summary_of(scorer: object, trees: Iterable[StepTree] | None = None) -> dict[str, Any] | None:
    """What a critic says for metrics.json about itself and its verdicts on some trees, or on all that it was asked
    about; None for others.
    """
    said = getattr(scorer, "summary", None)
    return None if said is None else dict(said(trees))


def tokens_of(scorer: Scorer, trees: Iterable[StepTree]) -> int:
    """Tokens that the scores of some trees take: read once by a PRM, read and written by a critic."""
    together = getattr(scorer, "count_all", None)  # where each question is a message to another process
    return int(together(list(trees))) if together else sum(scorer.count_tokens(tree) for tree in trees)


def can_score_all(scorer: Scorer, tree: StepTree) -> bool:
    """Whether a scorer can read all steps of a solution."""
    return all(scorer.can_score(step.text, depth) for depth, step in enumerate(tree.nodes))
