"""`vllm:http://host:8000#model`: a PRM behind vLLM, which gets token ids that our own family code has laid out.

vLLM gives a row of probabilities for each step tag, or for each token if it was started without one. It gives no row,
and no error, for a tag that it does not know, so rows are counted.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prism_prm.chosen import CardValues
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.http import Server
from prism_prm.lm.files import load_tokenizer, readable, tokenizer_text
from prism_prm.packing import EncodedTree, encode_tree
from prism_prm.places import no_connection
from prism_prm.prms.card import find_card, first_is_right
from prism_prm.protocol import TreeScores
from prism_prm.records import ROOT, StepTree
from prism_prm.scorer.remote import RemotePRM, by_halves, chosen_model, portions, server_models
from prism_prm.scorer.settings import OnTooLong
from prism_prm.scorer.whole_trees import PackItem, fit

SMALLEST = 1e-38
"""Stands for a probability that a server has rounded to 0."""
_WANTED = ("tokenizer*", "*.jinja", "special_tokens_map.json", "config.json", "prism.json", "vocab*", "merges.txt")


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
        super().__init__(server, on_too_long)
        served = chosen_model(server_models(server), model, server.shown)
        self.model, self._root = str(served["id"]), str(served.get("root") or "")
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
        limit = served.get("max_model_len")
        self.context = context or (limit if isinstance(limit, int) and limit > 0 else 2**31)

    def identity(self) -> str:
        """What the server says of the model, where it is, and our layout; its weights cannot be seen from here."""
        family = self.family
        layout = family.name, family.sha256, sorted(family.chosen.items()), family.compat, self._sign
        served = self.server.shown, self.model, self._root
        said = repr((served, layout, tokenizer_text(family.text.tokenizer), self.context, self.on_too_long))
        return f"vllm:{hashlib.blake2b(said.encode(), digest_size=16).hexdigest()}"

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step after this many others fits the family's layout."""
        try:
            self.family.step_ids(step, depth)
        except DataError:
            return False
        return True

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""
        encoded = encode_tree(tree, self.family)
        return len(encoded.prompt) + sum(map(len, encoded.ids))

    def _requests(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], found: list[TreeScores | None]
    ) -> Iterable[Coroutine[Any, Any, int]]:
        paths: list[_Path] = []
        for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)):
            items, too_long = fit(tree, i, nodes, self.family, self.context, self.on_too_long)
            found[i] = TreeScores(self.outputs, self._nothing(tree), tuple(too_long))
            paths += [path for item in items for path in _paths(item)]
        left = Counter(path.tree for path in paths)
        for part in portions(range(len(paths)), [4 * len(path.ids) for path in paths]):
            yield by_halves(part, lambda some, can_split: self._ask([paths[i] for i in some], can_split, found, left))

    async def _ask(
        self, paths: Sequence[_Path], can_split: bool, found: list[TreeScores | None], left: Counter[int]
    ) -> int:
        body = {
            "model": self.model,
            "input": [path.ids for path in paths],
            "task": "token_classify",
            "add_special_tokens": False,
        }
        rows = await self.server.ask("POST", "/pooling", lambda answer: _rows(answer, paths), body, can_split=can_split)
        done = 0
        for path, values in zip(paths, rows, strict=True):
            scores = found[path.tree]
            assert scores is not None, "filled in before any request"
            for node, value in zip(path.nodes, values, strict=True):
                if node is not None:
                    scores.log_odds_NO[node, 0] = self._sign * value
            left[path.tree] -= 1
            done += left[path.tree] == 0
        return done


class _Path:
    """A sequence to send: from the prompt to a node that nothing wanted follows."""

    def __init__(self, item: PackItem, leaf: int, wanted: set[int]) -> None:
        encoded = item.tree
        way: list[int] = []
        while leaf != ROOT:
            way.append(leaf)
            leaf = encoded.parents[leaf]
        way.reverse()
        self.tree = item.index
        self.ids = [*encoded.prompt, *(token for node in way for token in encoded.ids[node])]
        self.reads = [encoded.starts[node] + encoded.reads[node] for node in way]
        self.nodes = [_stands_for(item, encoded, node) if node in wanted else None for node in way]
        """For each step of the sequence the node whose score is taken from it."""


def _stands_for(item: PackItem, encoded: EncodedTree, node: int) -> int:
    assert item.is_node is None or node == len(encoded.ids) - 1, "only the last of a shortened path is wanted"
    return node if item.is_node is None else item.is_node


def _paths(item: PackItem) -> list[_Path]:
    wanted = {node for group in item.groups for node in group}
    followed: set[int] = set()
    for node in wanted:
        above = item.tree.parents[node]
        while above != ROOT and above not in followed:
            followed.add(above)
            above = item.tree.parents[above]
    taken: set[int] = set()
    paths = []
    for leaf in sorted(wanted - followed):
        path = _Path(item, leaf, wanted - taken)
        taken |= {node for node in path.nodes if node is not None} if item.is_node is None else set()
        paths.append(path)
    return paths


def _rows(answer: dict[str, Any], paths: Sequence[_Path]) -> list[list[float]]:
    """The log-odds of each step of each sequence; a ValueError where the answer makes no sense."""
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != len(paths) or not all(isinstance(one, dict) for one in data):
        raise ValueError(f"the answer has not one result for each of {len(paths)} sequences; is this vLLM's /pooling?")
    return [_read(one.get("data"), path) for one, path in zip(data, paths, strict=True)]


def _read(rows: Any, path: _Path) -> list[float]:
    if isinstance(rows, list) and len(rows) == len(path.ids) != len(path.reads):  # a row for each token
        rows = [rows[read] for read in path.reads]
    if not isinstance(rows, list) or len(rows) != len(path.reads):
        count = len(rows) if isinstance(rows, list) else "no"
        raise ModelError(
            f"the server gave {count} rows for {len(path.reads)} steps. Start vLLM with --pooler-config "
            f"'{{\"step_tag_id\": {path.ids[path.reads[-1]]}}}'."
        )
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or not all(isinstance(p, int | float) for p in row):
            raise ValueError(f"a row is not [P(wrong), P(right)]: {str(row)[:80]}")
        wrong, right = map(float, row)
        if not (0 <= wrong <= 1 and 0 <= right <= 1 and abs(wrong + right - 1) < 0.02):
            raise ValueError(f"a row is no probabilities: {row}")
        found.append(math.log(max(right, SMALLEST)) - math.log(max(wrong, SMALLEST)))
    return found


def _layout(place: str, family: str | None, settings: Mapping[str, str] | None) -> tuple[Any, Any, Any, bool]:
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
