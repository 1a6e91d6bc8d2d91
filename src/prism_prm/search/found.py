"""The result of a search, as plain records that can be written and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism_prm.pools import Solution
from prism_prm.search.tree import SearchNode, Spent


@dataclass(frozen=True, slots=True)
class FoundSolution:
    """One solution."""

    steps: tuple[str, ...]
    scores: tuple[float, ...] | None
    """P(right) of each step; None where the PRM has not scored all of them."""
    tokens: int
    ended: bool
    """Whether the policy ended it; otherwise it was cut."""
    log_likelihood: float | None = None
    log_odds: tuple[tuple[float, ...], ...] | None = None
    """The PRM's named log-odds of each step, for the score store."""

    def in_pool(self) -> Solution:
        """As a pool holds it."""
        return Solution(self.steps, "\n\n".join(self.steps), scores=self.scores, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """All that a search found for one problem."""

    problem: int
    solutions: tuple[FoundSolution, ...]
    policy_tokens: int
    prm_tokens: int


def found(problem: int, nodes: Sequence[SearchNode], spent: Spent) -> Found:
    """The record of a problem's solutions, in their order."""
    solutions = []
    for node in nodes:
        scores = node.probabilities()
        solutions.append(
            FoundSolution(
                tuple(node.steps()),
                None if scores is None else tuple(scores),
                node.num_tokens,
                node.written.ending == "end",
                node.log_likelihood,
                node.all_log_odds(),
            )
        )
    return Found(problem, tuple(solutions), spent.policy_tokens, spent.prm_tokens)
