"""The tree that a search grows for one problem, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prism_prm.aggregate import is_scored, log_score
from prism_prm.backends.policy import Sampling, Written, solution_start
from prism_prm.data.pools import Solution
from prism_prm.segments import DEFAULT_SEGMENTER, complete_steps, split_text
from prism_prm.steps import cut_steps, ends_in_code, trimmed


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
    grown_from: SearchNode | None = None
    """The node that was expanded. Nodes between it and this one are further steps of the same written text."""
    state: Any = field(default=None, repr=False)
    """The policy's state; None once the node is dropped."""
    scored: Any = field(default=None, repr=False)
    """The node in the PRM's session; None once the node is dropped."""

    @property
    def is_finished(self) -> bool:
        """Whether the solution ended, or was cut off."""
        return self.written.ending != "stop"

    @property
    def score(self) -> float:
        """P(right) of the step; NaN if it has none."""
        return math.nan if self.probability is None else self.probability

    def nodes(self) -> list[SearchNode]:
        """The steps on the path to here that are not empty."""
        path: list[SearchNode] = []
        node: SearchNode | None = self
        while node is not None and node.parent is not None:
            if node.step:
                path.append(node)
            node = node.parent
        return path[::-1]

    def new_nodes(self) -> list[SearchNode]:
        """The steps that were written together, the last of which is this node."""
        found, node = [self], self.parent
        while node is not None and node is not self.grown_from:
            found.append(node)
            node = node.parent
        return found[::-1]

    def falls_below(self, score: float) -> bool:
        """Whether a step on the path to here scores below `score`."""
        return score > -math.inf and any(node.score < score for node in self.nodes())

    def probabilities(self) -> list[float] | None:
        """P(right) of every step, NaN for thinking that is only context; None unless the PRM has scored all others."""
        nodes = self.nodes()
        values = [node.probability for node in nodes]
        known = [value for value in values if value is not None]
        is_whole = len(known) == len(values) and is_scored(known, [node.step for node in nodes])
        return known if is_whole else None

    def log_score(self, aggregator: str) -> float:
        """The log of the path's score; −inf without a score."""
        values = self.probabilities()
        return -math.inf if values is None else log_score(values, aggregator, [node.step for node in self.nodes()])


def root(prompt: str) -> SearchNode:
    """A problem before its first step."""
    return SearchNode(None, (), Written("", "stop", 0, 0.0), prompt, 0, 0.0, solution_start(prompt))


def child(parent: SearchNode, number: int, written: Written, sampling: Sampling, *, whole: bool = False) -> SearchNode:
    """What was written after a node: one more step, or several, of which the last is returned.

    `whole`: it was written to the end of the solution, whatever stop strings it has.
    """
    total = None
    if parent.log_likelihood is not None and written.log_likelihood is not None:
        total = parent.log_likelihood + written.log_likelihood
    # Only the node holds the state, so that dropping the node frees the policy's memory.
    state, stateless = written.state, replace(written, state=None)
    num_tokens = parent.num_tokens + written.num_tokens
    text, start = parent.text + written.text, parent.start
    path = (*parent.path, number)
    if sampling.cuts_at_stop and whole:
        steps = cut_steps(text[start:], sampling.stop)[len(parent.nodes()) :] or [""]
    elif sampling.cuts_at_stop:
        begun = text[start : len(parent.text)] if parent.parent is None else ""  # thinking that the prompt began
        steps = [trimmed(begun + written.text, in_code=ends_in_code(parent.text[start:]))]
    else:
        cut = complete_steps if written.ending == "stop" else split_text
        steps = cut(text[start:], sampling.segmenter or DEFAULT_SEGMENTER)[len(parent.nodes()) :] or [""]
    before = parent
    for step in steps[:-1]:
        nothing = Written("", "stop", 0, 0.0)
        before = SearchNode(before, path, nothing, parent.text, parent.num_tokens, parent.log_likelihood, start, step)
    return SearchNode(
        before, path, stateless, text, num_tokens, total, start, steps[-1], state=state, grown_from=parent
    )


def merge(nodes: Sequence[SearchNode]) -> list[SearchNode]:
    """Merge nodes with the same text after the same node into the first of them."""
    distinct = {(id(node.grown_from), node.written.text, node.written.ending): node for node in reversed(nodes)}
    return list(distinct.values())[::-1]


@dataclass(frozen=True, slots=True)
class FoundSolution:
    """A solution that a search found."""

    steps: tuple[str, ...]
    scores: tuple[float | None, ...] | None
    """P(right) of each step, None for thinking that is only context; None unless the PRM has scored all others."""
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
        known = None if scores is None else tuple(None if math.isnan(score) else score for score in scores)
        return cls(
            tuple(node.step for node in nodes), known, leaf.num_tokens, leaf.written.ending == "end",
            leaf.log_likelihood,
            None if known is None or None in known else tuple(node.log_odds for node in nodes),
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
