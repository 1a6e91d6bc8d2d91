"""What scores steps, as its users see it: search, re-ranking and evaluation need nothing else of a PRM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from prism_prm.records import StepTree
from prism_prm.scorer.results import TreeScores

Solution = StepTree | tuple[str, Sequence[str]]
"""What `score_many` takes: (problem, steps), or a tree that is one."""


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
    """Trees of steps that grow, one per problem; what was computed for a step is kept until it is let go."""

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
    """Scores the steps of solutions."""

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

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = True) -> list[list[float]]:
        """P(right) for each step of each solution, in the order given."""

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Callable[[int], None] | None = None,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or of the wanted ones only; `advance` hears of finished trees."""

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Growing trees of steps, one per problem."""

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step with so many before it has a place in the layout; its length is another matter."""

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""
