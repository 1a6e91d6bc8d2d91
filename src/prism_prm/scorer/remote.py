"""What remote PRMs share: a scorer behind a server, with the retries and time-outs that policies have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import numpy as np

from prism_prm.chosen import CardValues
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, ModelError
from prism_prm.http import Server, TooMuchError
from prism_prm.protocol import Scorer, TreeScores
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


class RemotePRM(Scorer):
    """A PRM behind a server, which keeps what it has computed for as long as it has room."""

    card: CardValues

    def __init__(self, server: Server, on_too_long: OnTooLong) -> None:
        self.server = server
        self.on_too_long: OnTooLong = on_too_long

    @abstractmethod
    def _requests(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores | None]
    ) -> Iterable[Coroutine[Any, Any, int]]:
        """Requests that fill in `found`; each gives how many trees it has completed."""

    def close(self) -> None:
        """End all connections."""
        self.server.close()

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
