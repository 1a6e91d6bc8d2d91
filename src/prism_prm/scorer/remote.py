"""What remote PRMs share: a scorer behind a server, with the retries and time-outs that policies have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import check_aggregator, solution_score
from prism_prm.chosen import CardValues
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.http import Server, TooMuchError
from prism_prm.protocol import Scorer, ScoresSolutions, TreeScores, sigmoid
from prism_prm.records import StepTree
from prism_prm.scorer.settings import OnTooLong

ITEMS_AT_ONCE = 32
"""Trees of one request."""
CHARACTERS_AT_ONCE = 200_000
"""Of one request, unless one tree has more: far below the size that servers accept."""
CLOSE = 0.01
"""How far a server's probabilities may be from a local reading: servers may use 16 bits."""
SAMPLE = ("1+1+2-1", ["1+1=2", "2+2=3", "3-1=2"])
"""A solution that every tokenizer can read."""


@dataclass(eq=False, slots=True)
class RemoteStep:
    """A step of a session with a server, or a problem itself (a root)."""

    problem: int
    parent: RemoteStep | None
    text: str
    depth: int
    num_tokens: int
    log_odds: tuple[float, ...] = ()

    @property
    def probability(self) -> float:
        """P(the step is right)."""
        return float(sigmoid(np.asarray(self.log_odds[0])))

    def steps(self) -> list[str]:
        """The texts from the first step to here."""
        texts: list[str] = []
        node: RemoteStep | None = self
        while node is not None and node.parent is not None:
            texts.append(node.text)
            node = node.parent
        return texts[::-1]


class RemotePRM(ScoresSolutions):
    """A scorer whose model is elsewhere."""

    outputs: tuple[str, ...] = ("correct",)
    context: int
    card: CardValues

    def __init__(self, server: Server, on_too_long: OnTooLong) -> None:
        self.server = server
        self.on_too_long: OnTooLong = on_too_long

    @abstractmethod
    def identity(self) -> str:
        """Equal for models that score alike."""

    @abstractmethod
    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step after this many others fits the layout."""

    @abstractmethod
    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""

    @abstractmethod
    def _requests(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores | None]
    ) -> Iterable[Coroutine[Any, Any, int]]:
        """Requests that fill in `found`; each gives how many trees it has completed."""

    def model_hash(self) -> str:
        """What tells models apart in tables."""
        return self.identity()

    def close(self) -> None:
        """End all connections."""
        self.server.close()

    def solution_score(self, problem: str, steps: Sequence[str], how: str | None = None) -> float:
        """The score of a whole solution, by the PRM's own aggregator unless told otherwise."""
        how = self.card.aggregator if how is None else how
        check_aggregator(how)
        return solution_score(self.score(problem, steps), how)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or only of the wanted ones."""
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        found: list[TreeScores | None] = [None] * len(trees)
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar:

            async def counted(request: Coroutine[Any, Any, int]) -> None:
                done = await request
                bar(done)
                advance(done)

            self.server.together([counted(one) for one in self._requests(trees, wanted, found)])
        return [
            TreeScores(self.outputs, self._nothing(tree)) if scores is None else scores
            for scores, tree in zip(found, trees, strict=True)
        ]

    def _nothing(self, tree: StepTree) -> np.ndarray:
        return np.full((len(tree.nodes), len(self.outputs)), np.nan)

    def session(self, problems: Sequence[str]) -> RemoteSession:
        """Growing trees of steps; the server keeps what it has computed, for as long as it has room."""
        if isinstance(problems, str):
            raise DataError("a session takes a list of problems; for one problem: session([problem])")
        return RemoteSession(self, problems)


class RemoteSession:
    """Growing trees of steps, one per problem; nothing is held here but texts and scores."""

    def __init__(self, prm: RemotePRM, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = list(problems)
        self.roots = [RemoteStep(i, None, "", -1, 0) for i in range(len(self.problems))]

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def extend(self, steps: Iterable[tuple[RemoteStep, str]]) -> list[RemoteStep]:
        """Score one more step after each given one; equal steps after one are scored once and share their node."""
        new: dict[tuple[RemoteStep, str], RemoteStep] = {}
        nodes = []
        for parent, text in steps:
            if (parent, text) not in new:
                new[parent, text] = RemoteStep(parent.problem, parent, text, parent.depth + 1, 0)
            nodes.append(new[parent, text])
        chains = [StepTree.chain(self.problems[node.problem], node.steps()) for node in new.values()]
        scores = self.prm.score_trees(chains, [[node.depth] for node in new.values()])
        for node, chain, found in zip(new.values(), chains, scores, strict=True):
            node.log_odds = tuple(found.log_odds_NO[-1].tolist())
            before = self.prm.count_tokens(StepTree.chain(chain.problem, chain.nodes[:-1]))
            node.num_tokens = self.prm.count_tokens(chain) - before
            if not node.depth:
                self.roots[node.problem].num_tokens = before
        return nodes

    def keep(self, nodes: Iterable[RemoteStep]) -> None:
        """Nothing is held here."""

    def drop(self, nodes: Iterable[RemoteStep]) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """Nothing is held here."""


async def by_halves(part: Sequence[int], ask: Callable[[Sequence[int], bool], Awaitable[int]]) -> int:
    """How many trees `ask` completes; what is too much for the server is asked for in halves."""
    try:
        return await ask(part, len(part) > 1)
    except TooMuchError:
        if len(part) == 1:
            raise
    half = len(part) // 2
    return await by_halves(part[:half], ask) + await by_halves(part[half:], ask)


def portions(numbers: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The numbers in parts for one request each, by how many there are and how large they are."""
    parts: list[list[int]] = []
    room = 0
    for number, size in zip(numbers, sizes, strict=True):
        if not parts or size > room or len(parts[-1]) == ITEMS_AT_ONCE:
            parts.append([])
            room = CHARACTERS_AT_ONCE
        parts[-1].append(number)
        room -= size
    return parts


def _read_models(answer: dict[str, Any]) -> list[dict[str, Any]]:
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(one, dict) and isinstance(one.get("id"), str) for one in data):
        raise ValueError(f"the answer has no list of models; its fields: {sorted(answer)}")
    if not data:
        raise ValueError("the server has no models yet")
    return data


def chosen_model(cards: Sequence[dict[str, Any]], wanted: str, where: str) -> dict[str, Any]:
    """The wanted model of a server, or its only one."""
    names = [str(card["id"]) for card in cards]
    if not wanted and len(cards) == 1:
        return cards[0]
    if wanted not in names:
        raise ConfigError(
            f"{where}: {'it has several models' if not wanted else f'it has no model {wanted!r}'}; name one of "
            f"{', '.join(names)} behind a #, e.g. {where}#{names[0]}"
        )
    return cards[names.index(wanted)]


def server_models(server: Server) -> list[dict[str, Any]]:
    """What a server says of its models."""
    (cards,) = server.together([server.ask("GET", "/v1/models", _read_models)])
    return cards


def compare_with(remote: RemotePRM, local: Scorer) -> float:
    """The largest difference of a probability between a server's reading of a solution and a local one."""
    there, here = remote.score(*SAMPLE), local.score(*SAMPLE)
    difference = float(np.max(np.abs(np.array(there) - np.array(here))))
    if not difference <= CLOSE:  # NaN is no agreement
        raise ModelError(
            f"{remote.server.shown}: its scores differ by {difference:.2g} from those of the local PRM: "
            f"{np.round(there, 4).tolist()} instead of {np.round(here, 4).tolist()}. Is it the same model and layout?"
        )
    return difference
