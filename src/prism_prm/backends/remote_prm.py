"""PRMs behind a server, with the retries and time-outs that policies have.

- `prism:http://host:8000#model` is a server of ours. It knows the layout, so strings are sent; steps that many requests
  share are computed once there.
- `vllm:http://host:8000#model` is vLLM, which gets token ids that our own family code has laid out. It gives a row of
  probabilities for each step tag, or for each token if it was started without one. It gives no row, and no error, for a
  tag that it does not know, so rows are counted.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import CardValues, check_aggregator
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.card import Card, find_card, first_is_right
from prism_prm.models.families.base import Family
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.model_files import load_tokenizer, readable, tokenizer_text
from prism_prm.models.packing import encode_tree
from prism_prm.models.prm import PackItem, fit
from prism_prm.net import Server, TooMuchError
from prism_prm.paths import no_connection
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import ROOT, StepTree

ITEMS_AT_ONCE = 32
"""Trees of one request."""
CHARACTERS_AT_ONCE = 200_000
"""Of one request, unless one tree has more: far below the size that servers accept."""
CLOSE = 0.01
"""How far a server's probabilities may be from a local reading: servers may use 16 bits."""
SAMPLE = ("1+1+2-1", ["1+1=2", "2+2=3", "3-1=2"])
"""A solution that every tokenizer can read."""
SIZES_KNOWN = 200_000
"""Problems and steps whose numbers of tokens are remembered."""
SMALLEST = 1e-38
"""Stands for a probability that a server has rounded to 0."""
_WANTED = ("tokenizer*", "*.jinja", "special_tokens_map.json", "config.json", "prism.json", "vocab*", "merges.txt")


Ask = Callable[[Sequence[int], bool], Awaitable[int]]
"""(numbers, whether the request can be split) → how many trees it has completed."""


class RemotePRM(Scorer):
    """A PRM behind a server, which keeps what it has computed for as long as it has room."""

    card: CardValues

    def __init__(self, server: Server, model: str, on_too_long: OnTooLong) -> None:
        self.server = server
        self.on_too_long: OnTooLong = on_too_long
        (cards,) = server.together([server.ask("GET", "/v1/models", _models)])
        names = [str(card["id"]) for card in cards]
        if model not in names and (model or len(names) > 1):
            raise ConfigError(
                f"{server.shown}: {f'it has no model {model!r}' if model else 'it has several models'}; name one of "
                f"{', '.join(names)} behind a #, e.g. {server.shown}#{names[0]}"
            )
        self.served = cards[names.index(model) if model else 0]
        """What the server says of the model."""
        self.model = str(self.served["id"])

    @abstractmethod
    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores]
    ) -> tuple[dict[int, int], Ask]:
        """What to ask for, as numbers with their sizes in characters, and a function that asks for some of it and fills
        in `found`.
        """

    def close(self) -> None:
        self.server.close()

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        found = [TreeScores(self.outputs, np.full((len(tree.nodes), len(self.outputs)), np.nan)) for tree in trees]
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar:

            async def counted(part: Sequence[int]) -> None:
                done = await _by_halves(part, ask)
                bar(done)
                advance(done)

            sizes, ask = self._prepare(trees, wanted, found)
            self.server.together([counted(part) for part in _batches(sizes)])
        return found


async def _by_halves(part: Sequence[int], ask: Ask) -> int:
    """How many trees `ask` completes; a request that is too much for the server is split in halves."""
    try:
        return await ask(part, len(part) > 1)
    except TooMuchError:
        if len(part) == 1:
            raise
    half = len(part) // 2
    return await _by_halves(part[:half], ask) + await _by_halves(part[half:], ask)


def _batches(sizes: Mapping[int, int]) -> list[list[int]]:
    """The numbers in batches of one request each, limited in count and size."""
    parts: list[list[int]] = []
    room = 0
    for number, size in sizes.items():
        if not parts or size > room or len(parts[-1]) == ITEMS_AT_ONCE:
            parts.append([])
            room = CHARACTERS_AT_ONCE
        parts[-1].append(number)
        room -= size
    return parts


def _models(answer: dict[str, Any]) -> list[dict[str, Any]]:
    data = answer.get("data")
    if not isinstance(data, list) or not all(isinstance(one, dict) and isinstance(one.get("id"), str) for one in data):
        raise ValueError(f"the answer has no list of models; its fields: {sorted(answer)}")
    if not data:
        raise ValueError("the server has no models yet")
    return data


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


class _Sizes:
    """How many tokens problems, steps or whole trees have, as earlier answers say; by hash, since texts are long."""

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
        super().__init__(server, model, on_too_long)
        card = self.served
        try:
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
        """From earlier answers, or else the server is asked."""
        known = self._sizes.of(tree)
        if known is None:
            body = {"model": self.model, "items": [_item(tree)]}
            self.server.together([self.server.ask("POST", "/v1/tokens", lambda said: self._note([tree], said), body)])
            known = self._sizes.of(tree)
            assert known is not None, "the answer was noted"
        return known

    def _note(self, trees: Sequence[StepTree], answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The answer's items, one per tree, whose sizes are remembered."""
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(trees):
            raise ValueError(f"the answer has not one item for each of {len(trees)} trees")
        for tree, item in zip(trees, items, strict=True):
            self._sizes.note(tree, item)
        return items

    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores]
    ) -> tuple[dict[int, int], Ask]:
        cut = {
            i: _without_others(tree, nodes)
            for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True))
            if len(nodes)
        }

        async def ask(part: Sequence[int], can_split: bool) -> int:
            some = [cut[i][0] for i in part]

            def read(answer: dict[str, Any]) -> list[tuple[np.ndarray, list[int]]]:
                # Scores of different weights must not be mixed; the server, or one behind a proxy, may have others now.
                if (said := answer.get("model_hash", self._weights)) != self._weights:
                    raise ModelError(
                        f"{self.server.shown}: {self.model!r} has other weights than at the beginning ({said} instead "
                        f"of {self._weights}). Serve the first ones again, or run the command again with a new --out."
                    )
                items = self._note(some, answer)
                return [self._rows(item, len(tree.nodes)) for item, tree in zip(items, some, strict=True)]

            body = {"model": self.model, "items": list(map(_item, some)), "on_too_long": self.on_too_long}
            answers = await self.server.ask("POST", "/v1/steps", read, body, can_split=can_split)
            for i, (rows_NO, too_long) in zip(part, answers, strict=True):
                kept, asked_for = cut[i][1], set(wanted[i])
                for row, node in zip(rows_NO, kept, strict=True):
                    if node in asked_for:
                        found[i].log_odds_NO[node] = row
                long = tuple(kept[node] for node in too_long if kept[node] in asked_for)
                found[i] = replace(found[i], too_long=long)
            return len(part)

        return {i: sum(len(step.text) for step in tree.nodes) for i, (tree, _) in cut.items()}, ask

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
    nodes = tuple(tree.nodes[node] for node in kept)
    return StepTree(tree.tree_id, tree.problem, nodes, tuple(place[tree.parents[node]] for node in kept), ()), kept


class VllmPRM(RemotePRM):
    """A PRM behind vLLM."""

    def __init__(
        self,
        server: Server,
        model: str,
        on_too_long: OnTooLong,
        *,
        local: str | None = None,
        family: str | None = None,
        settings: Mapping[str, str] | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__(server, model, on_too_long)
        self._root = str(self.served.get("root") or "")
        place = local or self._root or self.model
        card, kind, tokenizer, is_swapped = _layout(place, family, settings)
        self._sign = -1.0 if is_swapped else 1.0
        """−1 where the first of the two labels is a right step."""
        self.family = kind(tokenizer, compat=card.compat, settings=card.settings)
        if len(self.family.labels) != 2 or self.family.uses_lm_head:
            raise ConfigError(
                f"{place}: vLLM gives probabilities of two labels, and the family {self.family.name!r} is read in "
                "another way; serve it with `prism serve`"
            )
        self.outputs = self.family.outputs
        self.card = CardValues(card.aggregator, card.threshold)
        limit = self.served.get("max_model_len")
        self.context = context or (limit if isinstance(limit, int) and limit > 0 else 2**31)

    def identity(self) -> str:
        """What the server says of the model, where it is, and our layout; its weights cannot be seen from here."""
        family = self.family
        layout = family.name, family.sha256, sorted(family.chosen.items()), family.compat, self._sign
        served = self.server.shown, self.model, self._root
        said = repr((served, layout, tokenizer_text(family.text.tokenizer), self.context, self.on_too_long))
        return f"vllm:{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}"

    def can_score(self, step: str, depth: int) -> bool:
        return self.family.can_read(step, depth)

    def count_tokens(self, tree: StepTree) -> int:
        return encode_tree(tree, self.family).num_tokens

    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores]
    ) -> tuple[dict[int, int], Ask]:
        paths: list[_Path] = []
        for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)):
            items, too_long = fit(tree, i, nodes, self.family, self.context, self.on_too_long)
            found[i] = replace(found[i], too_long=tuple(too_long))
            paths += [path for item in items for path in _paths(item)]
        left = Counter(path.tree for path in paths)

        async def ask(part: Sequence[int], can_split: bool) -> int:
            some = [paths[i] for i in part]
            body = {
                "model": self.model,
                "input": [path.ids for path in some],
                "task": "token_classify",
                "add_special_tokens": False,
            }
            rows = await self.server.ask(
                "POST", "/pooling", lambda answer: _read_pooling(answer, some), body, can_split=can_split
            )
            done = 0
            for path, values in zip(some, rows, strict=True):
                for node, value in zip(path.nodes, values, strict=True):
                    if node is not None:
                        found[path.tree].log_odds_NO[node, 0] = self._sign * value
                left[path.tree] -= 1
                done += left[path.tree] == 0
            return done

        return {i: 4 * len(path.ids) for i, path in enumerate(paths)}, ask


@dataclass(frozen=True, slots=True)
class _Path:
    """A sequence to send: from the prompt to a node that nothing wanted follows."""

    tree: int
    ids: list[int]
    reads: list[int]
    """Where each step of the sequence is read."""
    nodes: list[int | None]
    """For each step of the sequence the node whose score is taken from it."""


def _paths(item: PackItem) -> list[_Path]:
    encoded = item.tree
    wanted = {node for group in item.groups for node in group}
    followed: set[int] = set()
    for node in wanted:
        above = encoded.parents[node]
        while above != ROOT and above not in followed:
            followed.add(above)
            above = encoded.parents[above]
    left = set(wanted)
    paths = []
    for leaf in sorted(wanted - followed):
        way: list[int] = []
        node = leaf
        while node != ROOT:
            way.append(node)
            node = encoded.parents[node]
        way.reverse()
        if item.is_node is None:
            nodes = [node if node in left else None for node in way]
            left.difference_update(way)
        else:
            assert wanted == {len(encoded.ids) - 1}, "only the last of a shortened path is wanted"
            nodes = [*[None] * (len(way) - 1), item.is_node]
        ids = [*encoded.prompt, *(token for node in way for token in encoded.ids[node])]
        paths.append(_Path(item.index, ids, [encoded.starts[node] + encoded.reads[node] for node in way], nodes))
    return paths


def _read_pooling(answer: dict[str, Any], paths: Sequence[_Path]) -> list[list[float]]:
    """The log-odds of each step of each sequence; a ValueError where the answer makes no sense."""
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != len(paths) or not all(isinstance(one, dict) for one in data):
        raise ValueError(f"the answer has not one result for each of {len(paths)} sequences; is this vLLM's /pooling?")
    found = []
    for one, path in zip(data, paths, strict=True):
        rows = one.get("data")
        if isinstance(rows, list) and len(rows) == len(path.ids) != len(path.reads):  # a row for each token
            rows = [rows[read] for read in path.reads]
        if not isinstance(rows, list) or len(rows) != len(path.reads):
            count = len(rows) if isinstance(rows, list) else "no"
            raise ModelError(
                f"the server gave {count} rows for {len(path.reads)} steps. Start vLLM with --pooler-config "
                f"'{{\"step_tag_id\": {path.ids[path.reads[-1]]}}}'."
            )
        values = []
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or not all(isinstance(p, int | float) for p in row):
                raise ValueError(f"a row is not [P(wrong), P(right)]: {str(row)[:80]}")
            wrong, right = map(float, row)
            if not (0 <= wrong <= 1 and 0 <= right <= 1 and abs(wrong + right - 1) < 0.02):
                raise ValueError(f"a row is no probabilities: {row}")
            values.append(math.log(max(right, SMALLEST)) - math.log(max(wrong, SMALLEST)))
        found.append(values)
    return found


def _layout(place: str, family: str | None, settings: Mapping[str, str] | None) -> tuple[Card, type[Family], Any, bool]:
    """Card, family and tokenizer of a PRM's folder or hub id, and whether its first label is a right step."""
    from transformers import AutoConfig

    if Path(place).is_dir():
        folder = Path(place)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(place, allow_patterns=list(_WANTED), local_files_only=bool(no_connection()))
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{place}: no tokenizer to lay out steps with ({type(error).__name__}). Name the PRM's folder or hub "
                "id with --local (local= in Python)."
            ) from error
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder)
    card, kind = find_card(place, folder, config, family, settings, None)
    return card, kind, load_tokenizer(folder), kind.names_labels and first_is_right(folder, config)
