"""`Scorer`: the base class of everything that scores steps.

Subclasses: `PRM` (`models/prm.py`), PRMs behind a server (`backends/remote_prm.py`), critics (`backends/critic.py`),
ensembles (`backends/ensemble.py`), a PRM on a Ray cluster (`backends/open_scorer.py`) and the oracles of the embedded
world (`lab/world/oracle.py`). To write your own, implement `identity`, `score_trees` and `count_tokens`, and override
the rest as needed.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from prism_prm.aggregate import CardLike, card_values, choose_aggregator, solution_score
from prism_prm.calibration import Calibration, right_probability, sigmoid
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, DataError
from prism_prm.job import Workers
from prism_prm.tree import StepTree

Solution = StepTree | tuple[str, Sequence[str]] | Mapping[str, Any]
"""What `score_many` takes: (problem, steps), {"problem": …, "steps": […]}, or a tree."""


def as_trees(solutions: Sequence[Solution]) -> list[StepTree]:
    """Convert solutions to numbered trees; DataError for anything else."""
    if isinstance(solutions, Mapping | StepTree):
        raise DataError("expected a list of solutions, found one solution; put it in a list", reason="wrong-type")
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
            raise _no_solution(number, f"a string, {solution[:40]!r}")
        case [problem, steps]:
            pass
        case _:
            raise _no_solution(number, f"a {type(solution).__name__} of {len(solution)}")
    try:
        if not isinstance(problem, str):
            raise DataError(f"the problem must be a string, not of type {type(problem).__name__}")
        tree = StepTree.chain(problem, steps, tree_id=number)
        for i, step in enumerate(tree.nodes):
            if not isinstance(step.text, str):
                raise DataError(f"step {i} must be a string, not of type {type(step.text).__name__}")
    except DataError as error:
        raise DataError(f"solution {number}: {error}", reason="wrong-type") from error
    return tree


def _no_solution(number: int, found: str) -> DataError:
    expected = '(problem, [step, …]), {"problem": …, "steps": […]} or a StepTree'
    return DataError(f"solution {number}: expected {expected}, found {found}", reason="wrong-type")


@dataclass(frozen=True, slots=True)
class TreeScores:
    """The scores of one tree, one row per node.

    A score is NaN only if the node was not requested, was skipped by `on_too_long="skip"`, is thinking
    that is only context (`card.thinking`), or was not judged.
    """

    outputs: tuple[str, ...]
    log_odds_NO: np.ndarray
    too_long: tuple[int, ...] = ()
    """Nodes whose path exceeds the context: not scored, or scored in a window."""
    unjudged: tuple[int, ...] = ()
    """Requested nodes on which a critic gave no verdict, or that a PRM reads only as context; their scores are NaN."""
    calibration: Calibration | None = None
    """The PRM's calibration, which `probability` applies; log-odds are always the model's own."""

    @property
    def probability(self) -> np.ndarray:
        """P(the step is right) of each node, calibrated if the PRM is."""
        return right_probability(self.log_odds_NO[:, 0], self.calibration)

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
    """A step of a session, or a root (the problem itself)."""

    @property
    def depth(self) -> int:
        """The number of steps before it; -1 for a root."""

    @property
    def probability(self) -> float:
        """P(the step is right), calibrated if the PRM is; NaN if it was too long to score."""

    @property
    def log_odds(self) -> tuple[float, ...]:
        """The model's own named log-odds."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that it adds to its prefix."""


StepT = TypeVar("StepT", bound=ScoredStep)


class StepSession(Protocol[StepT]):
    """Growing trees of steps, one per problem. The state of a step is cached until it is dropped.

    A subclass that caches nothing need not override `keep`, `drop` and `close`.
    """

    roots: list[StepT]
    """One per problem, to be extended by first steps."""

    def extend(self, steps: Iterable[tuple[StepT, str]]) -> list[StepT]:
        """Score a new step after each given step; equal steps after the same one are scored once and share a node."""

    def keep(self, nodes: Iterable[StepT]) -> None:  # noqa: ARG002
        """Free everything but these nodes and the roots."""
        return

    def drop(self, nodes: Iterable[StepT]) -> None:  # noqa: ARG002
        """Free these nodes."""
        return

    def close(self) -> None:
        """Free everything."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Scorer(ABC):
    """Scores the steps of solutions."""

    outputs: tuple[str, ...] = ("correct",)
    """Names of the log-odds; the first is "the step is right"."""
    context: int = 2**31
    """The longest path that is scored, in tokens."""
    on_too_long: str = "error"
    """What to do with a step beyond the context: "error", "window" or "skip" (NaN)."""
    card: CardLike | None = None
    """Provides the default aggregator and threshold, and the calibration."""
    reads_whole_solutions: bool = False
    """Whether the score of a step depends on later steps."""
    judges_every_step: bool = True
    """False if steps after the first wrong one are not judged."""
    by_sample: bool = False
    """Whether equal solutions may get different scores, depending on their `tree_id`."""
    workers: Workers[Scorer] | None = None
    """The workers that hold the model, if not this process."""

    @abstractmethod
    def identity(self) -> str:
        """Equal for scorers that give the same scores; cached scores are reused by it."""

    @abstractmethod
    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """Score all nodes of each tree, or only the wanted ones; `advance` gets the number of finished trees."""

    @abstractmethod
    def count_tokens(self, tree: StepTree) -> int:
        """The number of tokens read to score a tree: a PRM reads the problem and every step once."""

    def model_hash(self) -> str:
        """A hash of the model alone, without its settings, if there is one."""
        return self.identity()

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """P(the step is right) for each step of one solution; NaN if a step was not judged.

        Args:
            problem: the problem's text.
            steps: the texts of the steps, in order; `split_steps` cuts a whole solution into them.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [0 <= score <= 1 for score in prm.score("What is 2 + 3 * 4?", ["3 * 4 = 12.", "2 + 12 = 15."])]
            [True, True]
        """
        return self.score_many([(problem, steps)])[0]

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = False) -> list[list[float]]:
        """P(the step is right) for each step of each solution, in the given order; batched by length.

        Args:
            solutions: each (problem, steps), {"problem": …, "steps": […]} or a `StepTree`.
            progress: show a progress bar on standard error.

        Example:
            >>> prm = load_prm("my-prm")
            >>> found = prm.score_many([("1 + 2?", ["1 + 2 = 3"]), {"problem": "2?", "steps": ["It is", "2"]}])
            >>> [len(scores) for scores in found]
            [1, 2]
        """
        return [found.probability.tolist() for found in self.score_trees(as_trees(solutions), progress=progress)]

    def solution_score(self, problem: str, steps: Sequence[str], how: str | None = None) -> float:
        """The score of a whole solution: its step scores, combined by the card's aggregator (`card.aggregator`).

        Args:
            problem: the problem's text.
            steps: the texts of the steps, in order.
            how: an aggregator other than the card's, a key of `AGGREGATORS`.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.card.aggregator
            'product'
            >>> 0 < prm.solution_score("1 + 2?", ["Add.", "3"]) < min(prm.score("1 + 2?", ["Add.", "3"]))
            True
        """
        how = choose_aggregator(how, card_values(self)).value
        return solution_score(self.score(problem, steps), how, steps)

    def session(self, problems: Sequence[str]) -> StepSession[Any]:
        """Open a session. By default nothing is cached: each new step is scored with its whole path."""
        if isinstance(problems, str):
            raise DataError("a session takes a list of problems; for one problem: session([problem])")
        return PathSession(self, problems)

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        """Whether a step at this depth can be encoded, regardless of its length."""
        return bool(step.strip())

    def can_score_all(self, solutions: Sequence[StepTree]) -> list[bool]:
        """For each solution, whether all its steps can be encoded."""
        return [all(self.can_score(step.text, depth) for depth, step in enumerate(tree.nodes)) for tree in solutions]

    def count_all(self, trees: Sequence[StepTree]) -> int:
        """The number of tokens read to score all these trees."""
        return sum(map(self.count_tokens, trees))

    def notes(self) -> list[str]:
        """Notes for users about the scores, e.g. what a critic has cost."""
        return []

    def summary(self, trees: Iterable[StepTree] | None = None) -> dict[str, Any] | None:  # noqa: ARG002
        """For metrics.json: a critic's settings and its verdicts on these trees, or on all; None for PRMs."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close connections, if there are any."""


def digest(*facts: object) -> str:
    """Hash what determines scores, for `identity`."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


class ScorerWithBar(Scorer):
    """A scorer that implements `_score`; its `score_trees` has the defaults and the progress bar."""

    bar_label = "scoring"

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        with bar_on_stderr(self.bar_label, len(trees), shown=progress) as bar:

            def report(done: int, _more: str = "", /) -> None:
                advance(done)
                bar(done)

            return self._score(trees, wanted, report)

    @abstractmethod
    def _score(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], advance: Advance) -> list[TreeScores]:
        """Score the wanted nodes of each tree."""


@dataclass(frozen=True, slots=True)
class ScorerFacts:
    """A description of a scorer on another worker: enough to store its scores, and to use its card."""

    name: str = ""
    """Its identity; "" for no scorer."""
    outputs: tuple[str, ...] = ()
    context: int = 0
    card: CardLike | None = None
    reads_whole_solutions: bool = False

    @classmethod
    def of(cls, scorer: Scorer) -> ScorerFacts:
        return cls(scorer.identity(), scorer.outputs, scorer.context, scorer.card, scorer.reads_whole_solutions)

    def identity(self) -> str:
        """The identity of the scorer."""
        return self.name


@dataclass(eq=False, slots=True)
class PathStep:
    """A step of a `PathSession`, or a root (the problem itself)."""

    problem: int
    parent: PathStep | None
    text: str
    depth: int
    num_tokens: int
    log_odds: tuple[float, ...] = ()
    probability: float = math.nan
    """P(the step is right)."""

    def steps(self) -> list[str]:
        """The texts from the first step to here."""
        texts: list[str] = []
        node = self
        while node.parent is not None:
            texts.append(node.text)
            node = node.parent
        return texts[::-1]


class PathSession(StepSession[PathStep]):
    """A session that caches nothing but texts and scores: each new step is scored with its whole path."""

    def __init__(self, scorer: Scorer, problems: Sequence[str]) -> None:
        self.scorer = scorer
        self.problems = list(problems)
        self.roots = [PathStep(i, None, "", -1, 0) for i in range(len(self.problems))]

    def extend(self, steps: Iterable[tuple[PathStep, str]]) -> list[PathStep]:
        """Score a new step after each given step; equal steps after the same one are scored once and share a node."""
        new: dict[tuple[PathStep, str], PathStep] = {}
        nodes = []
        for parent, text in steps:
            if (parent, text) not in new:
                new[parent, text] = PathStep(parent.problem, parent, text, parent.depth + 1, 0)
            nodes.append(new[parent, text])
        chains = [StepTree.chain(self.problems[node.problem], node.steps()) for node in new.values()]
        scores = self.scorer.score_trees(chains, [[node.depth] for node in new.values()])
        for node, chain, found in zip(new.values(), chains, scores, strict=True):
            node.log_odds, node.probability = tuple(found.log_odds_NO[-1].tolist()), float(found.probability[-1])
            reads_all = self.scorer.reads_whole_solutions  # then the prefix is read again
            before = 0 if reads_all else self.scorer.count_tokens(StepTree.chain(chain.problem, chain.nodes[:-1]))
            node.num_tokens = self.scorer.count_tokens(chain) - before
            if not node.depth:
                self.roots[node.problem].num_tokens = before
        return nodes
