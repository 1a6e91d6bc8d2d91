"""The tree that a search grows for one problem, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prism_prm.aggregate import log_score
from prism_prm.backends.policy import Written
from prism_prm.data.pools import Solution
from prism_prm.steps import ends_in_code, trimmed


@dataclass(eq=False, slots=True)
class SearchNode:
    """A step, or the problem itself (the root). A path from the root is a partial solution."""

    parent: SearchNode | None
    path: tuple[int, ...]
    """Child numbers from the root to here, which seed the random numbers of its sample."""
    written: Written
    text: str
    """The whole text up to here, including the prompt."""
    num_tokens: int
    """Tokens written from the root to here."""
    log_likelihood: float | None
    """The log-likelihood of the whole path."""
    start: int
    """The index in the text at which the solution begins, after the prompt."""
    step: str = ""
    """The step without surrounding whitespace; "" if the solution ended without another step."""
    probability: float | None = None
    """P(right) of the step; NaN if the PRM could not score it, None if it was not scored."""
    log_odds: tuple[float, ...] = ()
    """The PRM's named log-odds of the step, if it was scored."""
    number: int = 0
    """Its number among all steps written for the problem, from 1; 0 for the root."""
    num_children: int = 0
    state: Any = field(default=None, repr=False)
    """The policy's state; None once the node is dropped."""
    scored: Any = field(default=None, repr=False)
    """The node in the PRM's session; None once the node is dropped."""

    @property
    def is_finished(self) -> bool:
        """Whether the solution ended, or was cut off."""
        return self.written.ending != "stop"

    def nodes(self) -> list[SearchNode]:
        """The steps on the path to here that are not empty."""
        path: list[SearchNode] = []
        node: SearchNode | None = self
        while node is not None and node.parent is not None:
            if node.step:
                path.append(node)
            node = node.parent
        return path[::-1]

    def probabilities(self) -> list[float] | None:
        """P(right) of every step; None unless the PRM has scored all of them."""
        values = [node.probability for node in self.nodes()]
        known = [value for value in values if value is not None and not math.isnan(value)]
        return known if known and len(known) == len(values) else None

    def log_score(self, aggregator: str) -> float:
        """The log of the path's score; −inf without a score."""
        values = self.probabilities()
        return -math.inf if values is None else log_score(values, aggregator)


def root(prompt: str) -> SearchNode:
    """A problem before its first step."""
    return SearchNode(None, (), Written("", "stop", 0, 0.0), prompt, 0, 0.0, len(prompt))


def child(parent: SearchNode, number: int, written: Written) -> SearchNode:
    """One more step after a node."""
    total = None
    if parent.log_likelihood is not None and written.log_likelihood is not None:
        total = parent.log_likelihood + written.log_likelihood
    # Only the node holds the state, so that dropping the node frees the policy's memory.
    state, stateless = written.state, replace(written, state=None)
    num_tokens = parent.num_tokens + written.num_tokens
    text, start = parent.text + written.text, parent.start
    step = trimmed(written.text, in_code=ends_in_code(parent.text[start:]))
    return SearchNode(parent, (*parent.path, number), stateless, text, num_tokens, total, start, step, state=state)


def merge(nodes: Sequence[SearchNode]) -> list[SearchNode]:
    """Merge nodes with the same text and parent into the first of them."""
    return list({(id(node.parent), node.written.text, node.written.ending): node for node in reversed(nodes)}.values())[
        ::-1
    ]


@dataclass(frozen=True, slots=True)
class FoundSolution:
    """A solution that a search found."""

    steps: tuple[str, ...]
    scores: tuple[float, ...] | None
    """P(right) of each step; None unless the PRM has scored all of them."""
    tokens: int
    ended: bool
    """Whether the policy ended it; else it was cut off."""
    log_likelihood: float | None = None
    log_odds: tuple[tuple[float, ...], ...] | None = None
    """The PRM's named log-odds of each step, for the score store."""

    @classmethod
    def of(cls, leaf: SearchNode) -> FoundSolution:
        """The solution that ends at a node."""
        nodes, scores = leaf.nodes(), leaf.probabilities()
        return cls(
            tuple(node.step for node in nodes), None if scores is None else tuple(scores), leaf.num_tokens,
            leaf.written.ending == "end", leaf.log_likelihood,
            None if scores is None else tuple(node.log_odds for node in nodes),
        )  # fmt: skip

    def to_pool(self) -> Solution:
        """The solution as an entry of a pool."""
        return Solution(self.steps, "\n\n".join(self.steps), scores=self.scores, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search for one problem."""

    problem: int
    solutions: tuple[FoundSolution, ...]
    policy_tokens: int
    """Tokens written by the policy, including dropped beams and lookaheads."""
    prm_tokens: int
    """Tokens run through the PRM; cached key/values do not count again."""
