"""`prism:http://host:8000#model`, a PRM behind a server of ours.

The server knows the layout, so texts are sent; steps that many requests share are computed once there.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import numpy as np

from prism_prm.aggregate import check_aggregator
from prism_prm.chosen import CardValues
from prism_prm.errors import ModelError
from prism_prm.http import Server
from prism_prm.protocol import TreeScores
from prism_prm.records import ROOT, Step, StepTree
from prism_prm.scorer.remote import RemotePRM, by_halves, chosen_model, portions, server_models
from prism_prm.scorer.settings import OnTooLong

SIZES_KNOWN = 200_000
"""Problems and steps whose numbers of tokens are remembered."""


class _Sizes:
    """How many tokens problems, steps or whole trees have, as earlier answers have told; by hash, as texts are long."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def note(self, tree: StepTree, item: Any) -> None:
        """Remember an answer's item; a ValueError where it makes no sense."""
        if len(self._known) > SIZES_KNOWN:  # the oldest leave; one tree has far fewer
            self._known = dict(itertools.islice(self._known.items(), SIZES_KNOWN // 2, None))
        if not isinstance(item, dict) or not isinstance(item.get("tokens"), int):
            raise ValueError("an item of the answer has no number of tokens")
        prompt, steps = item.get("prompt_tokens"), item.get("step_tokens")
        if steps is None:
            self._known[hash(tree)] = item["tokens"]
            return
        if not isinstance(prompt, int) or not isinstance(steps, list) or len(steps) != len(tree.nodes):
            raise ValueError(f"the answer has not one size for each of {len(tree.nodes)} steps")
        self._known[hash(tree.problem)] = prompt
        self._known |= {
            hash((depth, step.text)): int(size)
            for depth, step, size in zip(tree.depths(), tree.nodes, steps, strict=True)
        }

    def of(self, tree: StepTree) -> int | None:
        """The tokens of a tree, where they are known: those of a step depend on its text and place alone."""
        if (whole := self._known.get(hash(tree))) is not None:
            return whole
        keys = [hash(tree.problem), *(hash((d, step.text)) for d, step in zip(tree.depths(), tree.nodes, strict=True))]
        return sum(self._known[key] for key in keys) if all(key in self._known for key in keys) else None


class PrismPRM(RemotePRM):
    """A PRM behind a server of ours."""

    def __init__(self, server: Server, model: str, on_too_long: OnTooLong) -> None:
        super().__init__(server, on_too_long)
        card = chosen_model(server_models(server), model, server.shown)
        try:
            self.model = str(card["id"])
            self.outputs = tuple(map(str, card["outputs"]))
            self.context = int(card["max_model_len"])
            self.card = CardValues(str(card["aggregator"]), float(card["threshold"]))
            self._identity = str(card["identity"])
            self._weights = str(card["model_hash"])
        except (KeyError, TypeError, ValueError):
            raise ModelError(
                f"{server.shown}: its list of models is not that of `prism serve`; for vLLM write vllm: instead of "
                "prism:"
            ) from None
        check_aggregator(self.card.aggregator)
        self._sizes = _Sizes()

    def identity(self) -> str:
        """That of the served PRM; a step that is too long may be treated otherwise here."""
        return f"{self._identity}:{self.on_too_long}"

    def count_tokens(self, tree: StepTree) -> int:
        """As earlier answers have told, or else the server."""
        known = self._sizes.of(tree)
        if known is None:
            body = {"model": self.model, "items": [_item(tree)]}
            self.server.together([self.server.ask("POST", "/v1/tokens", lambda said: self._note([tree], said), body)])
            known = self._sizes.of(tree)
            assert known is not None, "what was told is noted"
        return known

    def _note(self, trees: Sequence[StepTree], answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The answer's items, one per tree, whose sizes are remembered."""
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(trees):
            raise ValueError(f"the answer has not one item for each of {len(trees)} trees")
        for tree, item in zip(trees, items, strict=True):
            self._sizes.note(tree, item)
        return items

    def _requests(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores | None]
    ) -> Iterable[Coroutine[Any, Any, int]]:
        cut = [_without_others(tree, nodes) for tree, nodes in zip(trees, wanted, strict=True)]
        asked = [i for i, nodes in enumerate(wanted) if len(nodes)]
        for part in portions(asked, [sum(map(len, cut[i][0].texts(range(len(cut[i][0].nodes))))) for i in asked]):
            yield by_halves(part, lambda some, can_split: self._ask(some, can_split, trees, cut, wanted, found))

    async def _ask(
        self, part: Sequence[int], can_split: bool, trees: Sequence[StepTree],
        cut: Sequence[tuple[StepTree, list[int]]], wanted: Sequence[Sequence[int]], found: list[TreeScores | None],
    ) -> int:  # fmt: skip
        some = [cut[i][0] for i in part]
        body = {"model": self.model, "items": list(map(_item, some)), "on_too_long": self.on_too_long}

        def read(answer: dict[str, Any]) -> list[tuple[np.ndarray, list[int]]]:
            self._check_weights(answer)
            items = self._note(some, answer)
            return [self._rows(item, len(tree.nodes)) for item, tree in zip(items, some, strict=True)]

        answers = await self.server.ask("POST", "/v1/steps", read, body, can_split=can_split)
        for i, (rows_NO, too_long) in zip(part, answers, strict=True):
            kept = cut[i][1]
            values_NO = self._nothing(trees[i])
            asked_for = set(wanted[i])
            for row, node in zip(rows_NO, kept, strict=True):
                if node in asked_for:
                    values_NO[node] = row
            long = tuple(kept[node] for node in too_long if kept[node] in asked_for)
            found[i] = TreeScores(self.outputs, values_NO, long)
        return len(part)

    def _check_weights(self, answer: dict[str, Any]) -> None:
        """Scores of different weights must not be mixed; the server, or one behind a proxy, may have others now."""
        said = answer.get("model_hash", self._weights)
        if said != self._weights:
            raise ModelError(
                f"{self.server.shown}: {self.model!r} has other weights than at the beginning ({said} instead of "
                f"{self._weights}). Serve the first ones again, or run the command again with a new --out."
            )

    def _rows(self, item: dict[str, Any], count: int) -> tuple[np.ndarray, list[int]]:
        """The log-odds_NO of an item, and the nodes that were too long; a ValueError where it makes no sense."""
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


def _without_others(tree: StepTree, wanted: Sequence[int]) -> tuple[StepTree, list[int]]:
    """The tree with only the wanted nodes and those before them, and which nodes these are."""
    needed: set[int] = set()
    for node in wanted:
        while node != ROOT and node not in needed:
            needed.add(node)
            node = tree.parents[node]
    kept = sorted(needed)
    place = {node: i for i, node in enumerate(kept)} | {ROOT: ROOT}
    nodes: tuple[Step, ...] = tuple(tree.nodes[node] for node in kept)
    return StepTree(tree.tree_id, tree.problem, nodes, tuple(place[tree.parents[node]] for node in kept), ()), kept
