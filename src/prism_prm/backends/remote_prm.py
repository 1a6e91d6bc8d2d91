"""PRMs behind a server, with retries and timeouts like those of policies.

`prism:http://host:8000#model` is a `prism serve` server. It knows the layout, so it gets plain text, and it computes
steps that requests share once. A client of it needs neither torch nor transformers. For vLLM, see `vllm_prm`.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prism_prm.aggregate import CardValues, check_aggregator
from prism_prm.calibration import Calibration
from prism_prm.config import from_mapping
from prism_prm.console import Advance
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.load_settings import OnTooLong
from prism_prm.net import RetryPolicy, Server, TooMuchError
from prism_prm.scorer import Scorer, ScorerWithBar, TreeScores
from prism_prm.segments import DEFAULT_SEGMENTER, SCORED
from prism_prm.tree import ROOT, StepTree

ITEMS_AT_ONCE = 32
"""The maximum number of trees per request."""
CHARACTERS_AT_ONCE = 200_000
"""The maximum number of characters per request, unless one tree has more; far below the limits of servers."""
CLOSE = 0.01
"""The allowed difference between a server's probabilities and local ones; servers may use 16 bits."""
SAMPLE = ("1+1+2-1", ["1+1=2", "2+2=3", "3-1=2"])
"""A solution that every tokenizer can read."""
SIZES_KNOWN = 200_000
"""The number of problems and steps whose token counts are cached."""


SendBatch = Callable[[Sequence[int], bool], Awaitable[int]]
"""(numbers of items, whether the request can be split) → the number of trees it completed."""


class RemotePRM(ScorerWithBar):
    """A PRM behind a server."""

    card: CardValues

    def __init__(self, server: Server, model: str, on_too_long: OnTooLong) -> None:
        self.server = server
        self.on_too_long: OnTooLong = on_too_long
        (cards,) = server.together([server.ask("GET", "/v1/models", _models)])
        cards = [card for card in cards if card.get("owned_by") != "prism-search"]
        names = [str(card["id"]) for card in cards]
        if model not in names and (model or len(names) > 1):
            raise ConfigError(
                f"{server.shown}: {f'it has no model {model!r}' if model else 'it has several models'}; name one of "
                f"{', '.join(names)} after a #, e.g. {server.shown}#{names[0]}"
            )
        self.served = cards[names.index(model) if model else 0]
        """The server's entry for the model."""
        self.model = str(self.served["id"])

    @abstractmethod
    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], scores: list[TreeScores]
    ) -> tuple[dict[int, int], SendBatch]:
        """Number the items to score and return their sizes in characters, and a function that sends some of them.

        That function fills in `scores`.
        """

    def close(self) -> None:
        self.server.close()

    def _score(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], advance: Advance) -> list[TreeScores]:
        scores = [
            TreeScores(
                self.outputs, np.full((len(tree.nodes), len(self.outputs)), np.nan), calibration=self.card.calibration
            )
            for tree in trees
        ]
        sizes, send = self._prepare(trees, wanted, scores)

        async def send_and_report(batch: Sequence[int]) -> None:
            advance(await _send_in_halves(batch, send))

        self.server.together([send_and_report(batch) for batch in _batches(sizes)])
        return scores


async def _send_in_halves(batch: Sequence[int], send: SendBatch) -> int:
    """Send a batch and return the number of completed trees; split it in halves if it is too much for the server."""
    try:
        return await send(batch, len(batch) > 1)
    except TooMuchError:
        if len(batch) == 1:
            raise
    half = len(batch) // 2
    return await _send_in_halves(batch[:half], send) + await _send_in_halves(batch[half:], send)


def _batches(sizes: Mapping[int, int]) -> list[list[int]]:
    """Group item numbers into requests, limited in count and size."""
    batches: list[list[int]] = []
    room = 0
    for number, size in sizes.items():
        if not batches or size > room or len(batches[-1]) == ITEMS_AT_ONCE:
            batches.append([])
            room = CHARACTERS_AT_ONCE
        batches[-1].append(number)
        room -= size
    return batches


def _models(answer: dict[str, Any]) -> list[dict[str, Any]]:
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in data):
        raise ValueError(f"the answer has no list of models; its fields: {sorted(answer)}")
    if not data:
        raise ValueError("the server has no models yet")
    return data


def compare_with(remote: RemotePRM, local: Scorer) -> None:
    """Raise if a server's probabilities are not those of a local PRM."""
    there, here = remote.score(*SAMPLE), local.score(*SAMPLE)
    difference = float(np.max(np.abs(np.array(there) - np.array(here))))
    if not difference <= CLOSE:  # NaN fails too
        raise ModelError(
            f"{remote.server.shown}: its scores differ by {difference:.2g} from those of the local PRM: "
            f"{np.round(there, 4).tolist()} instead of {np.round(here, 4).tolist()}. Serve the same model and layout."
        )


class _Sizes:
    """A cache of token counts of problems, steps and trees from earlier answers; by hash, because texts are long."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def add(self, tree: StepTree, item: Any) -> None:
        """Add the counts of an answer's item. Raises ValueError if it is invalid."""
        if len(self._known) > SIZES_KNOWN:  # evict the oldest half; one tree has far fewer
            self._known = dict(itertools.islice(self._known.items(), SIZES_KNOWN // 2, None))
        if not isinstance(item, dict) or not isinstance(item.get("tokens"), int):
            raise ValueError("an item of the answer has no number of tokens")
        prompt, steps = item.get("prompt_tokens"), item.get("step_tokens")
        if steps is None:
            self._known[hash(tree)] = item["tokens"]
            return
        sizes = [prompt, *steps] if isinstance(steps, list) else []
        if len(sizes) != 1 + len(tree.nodes) or not all(isinstance(size, int) for size in sizes):
            raise ValueError(f"the answer has not one size for each of {len(tree.nodes)} steps")
        self._known |= zip(_parts(tree), sizes, strict=True)

    def of(self, tree: StepTree) -> int | None:
        """Return the token count of a tree, or None; a step's count depends only on its text and depth."""
        if (count := self._known.get(hash(tree))) is not None:
            return count
        keys = _parts(tree)
        return sum(self._known[key] for key in keys) if all(key in self._known for key in keys) else None


def _parts(tree: StepTree) -> list[int]:
    """Return the keys of a problem and its steps."""
    return [hash(tree.problem), *(hash((d, step.text)) for d, step in zip(tree.depths(), tree.nodes, strict=True))]


class PrismPRM(RemotePRM):
    """A PRM behind a `prism serve` server."""

    def __init__(self, server: Server, model: str, on_too_long: OnTooLong) -> None:
        super().__init__(server, model, on_too_long)
        card = self.served
        try:
            self.outputs = tuple(map(str, card["outputs"]))
            self.context = int(card["max_model_len"])
            found = card.get("calibration")
            self.card = CardValues(
                str(card["aggregator"]), float(card["threshold"]),
                calibration=None if found is None else from_mapping(Calibration, found),
                segmenter=str(card.get("segmenter", DEFAULT_SEGMENTER)), thinking=str(card.get("thinking", SCORED)),
            )  # fmt: skip
            self._identity = str(card["identity"])
            self._weights = str(card["model_hash"])
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError):
            raise ModelError(
                f"{server.shown}: its list of models is not that of `prism serve`; for vLLM write vllm: instead of "
                "prism:"
            ) from None
        check_aggregator(self.card.aggregator)
        self._sizes = _Sizes()

    def identity(self) -> str:
        """Return the served PRM's identity with this client's `on_too_long`."""
        return f"{self._identity}:{self.on_too_long}"

    def model_hash(self) -> str:
        """Return the hash of the served weights."""
        return self._weights

    def count_tokens(self, tree: StepTree) -> int:
        """Count a tree's tokens, from earlier answers if possible, else by a request."""
        count = self._sizes.of(tree)
        if count is None:
            body = {"model": self.model, "items": [_item(tree)]}
            request = self.server.ask("POST", "/v1/tokens", lambda answer: self._read_items([tree], answer), body)
            self.server.together([request])
            count = self._sizes.of(tree)
            assert count is not None, "_read_items adds it"
        return count

    def _read_items(self, trees: Sequence[StepTree], answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answer's items, one per tree, and cache their token counts."""
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(trees):
            raise ValueError(f"the answer has not one item for each of {len(trees)} trees")
        for tree, item in zip(trees, items, strict=True):
            self._sizes.add(tree, item)
        return items

    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], scores: list[TreeScores]
    ) -> tuple[dict[int, int], SendBatch]:
        pruned = {
            i: _prune(tree, nodes) for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)) if len(nodes)
        }

        async def send(batch: Sequence[int], can_split: bool) -> int:
            to_score = [pruned[i][0] for i in batch]

            def read(answer: dict[str, Any]) -> list[tuple[np.ndarray, list[int]]]:
                # Scores of different weights must not be mixed; the server, or one behind a proxy, may have others now.
                if (model_hash := answer.get("model_hash", self._weights)) != self._weights:
                    raise ModelError(
                        f"{self.server.shown}: the weights of {self.model!r} have changed ({model_hash} instead of "
                        f"{self._weights}). Serve the first ones again, or rerun the command with a new --out."
                    )
                items = self._read_items(to_score, answer)
                return [self._rows(item, len(tree.nodes)) for item, tree in zip(items, to_score, strict=True)]

            body = {"model": self.model, "items": list(map(_item, to_score)), "on_too_long": self.on_too_long}
            answers = await self.server.ask("POST", "/v1/steps", read, body, can_split=can_split)
            for i, (rows_NO, too_long) in zip(batch, answers, strict=True):
                kept, requested = pruned[i][1], set(wanted[i])
                for row, node in zip(rows_NO, kept, strict=True):
                    if node in requested:
                        scores[i].log_odds_NO[node] = row
                long = tuple(kept[node] for node in too_long if kept[node] in requested)
                scores[i] = replace(scores[i], too_long=long)
            return len(batch)

        return {i: sum(len(step.text) for step in tree.nodes) for i, (tree, _) in pruned.items()}, send

    def _rows(self, item: dict[str, Any], count: int) -> tuple[np.ndarray, list[int]]:
        """Return the log-odds_NO of an item and the nodes that were too long. Raises ValueError if it is invalid."""
        rows, too_long = item.get("log_odds"), item.get("too_long", [])
        if not isinstance(rows, list) or len(rows) != count:
            raise ValueError(f"the answer has not one row for each of {count} steps")
        try:
            values = [[np.nan if row[name] is None else float(row[name]) for name in self.outputs] for row in rows]
            return np.array(values, np.float64).reshape(count, len(self.outputs)), [range(count)[i] for i in too_long]
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError(f"the answer's rows are not numbers for {', '.join(self.outputs)}") from None


def _item(tree: StepTree) -> dict[str, Any]:
    return {"problem": tree.problem, "nodes": [step.text for step in tree.nodes], "parents": list(tree.parents)}


def _prune(tree: StepTree, wanted: Sequence[int]) -> tuple[StepTree, list[int]]:
    """Keep only the wanted nodes and their ancestors; also returns which nodes these are."""
    needed: set[int] = set()
    for node in wanted:
        while node != ROOT and node not in needed:
            needed.add(node)
            node = tree.parents[node]
    kept = sorted(needed)
    return tree.only(kept), kept


def open_served(url: str, model: str, on_too_long: OnTooLong, policy: RetryPolicy, concurrency: int) -> PrismPRM:
    """Open a PRM of a `prism serve` server; its key is in $PRISM_API_KEY."""
    return PrismPRM(Server(url, policy, concurrency, key_variable="PRISM_API_KEY"), model, on_too_long)
