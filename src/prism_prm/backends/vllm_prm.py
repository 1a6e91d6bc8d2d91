"""PRMs behind vLLM: `vllm:http://host:8000#model`.

The server gets token ids, laid out by the family here. It returns a row of probabilities for each step tag, or for each
token if it was started without a tag. For an unknown tag it returns neither a row nor an error, so rows are counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prism_prm.aggregate import CardValues
from prism_prm.backends.remote_prm import RemotePRM, SendBatch
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.card import Card, find_card, first_is_right
from prism_prm.models.families.base import Family
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.model_files import layout_folder, load_tokenizer, readable, tokenizer_text
from prism_prm.models.packing import encode_tree
from prism_prm.models.prm import PackItem, fit
from prism_prm.net import Server
from prism_prm.scorer import TreeScores, digest
from prism_prm.segments import without_tags
from prism_prm.tree import StepTree

SMALLEST = 1e-38
"""Replaces probabilities that a server has rounded to 0."""


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
        card, kind, tokenizer, is_swapped = _load_layout(place, family, settings)
        self._sign = -1.0 if is_swapped else 1.0
        """−1 if the first of the two labels means a right step."""
        self.family = kind(tokenizer, compat=card.compat, settings=card.settings)
        if len(self.family.labels) != 2 or self.family.uses_lm_head:
            raise ConfigError(
                f"{place}: vLLM returns probabilities of two labels, but the family {self.family.name!r} has no such "
                "head; serve it with `prism serve`"
            )
        self.outputs = self.family.outputs
        self.card = CardValues(
            card.aggregator, card.threshold, calibration=card.calibration, segmenter=card.segmenter,
            thinking=card.thinking,
        )  # fmt: skip
        limit = self.served.get("max_model_len")
        self.context = context or (limit if isinstance(limit, int) and limit > 0 else 2**31)

    def identity(self) -> str:
        """Identify the server, its entry for the model, and the layout; the weights are not visible here."""
        family = self.family
        layout = family.name, family.sha256, sorted(family.chosen.items()), family.compat, self._sign
        served = self.server.shown, self.model, self._root
        choices = self.context, self.on_too_long, self.card.thinking
        return f"vllm:{digest(served, layout, tokenizer_text(family.text.tokenizer), *choices)}"

    def model_hash(self) -> str:
        """Return "": the weights are not visible here."""
        return ""

    def can_score(self, step: str, depth: int) -> bool:
        return self.family.can_read(without_tags(step), depth)

    def count_tokens(self, tree: StepTree) -> int:
        return encode_tree(tree, self.family).num_tokens

    def _prepare(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], scores: list[TreeScores]
    ) -> tuple[dict[int, int], SendBatch]:
        paths: list[_Path] = []
        for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)):
            items, too_long = fit(tree, i, nodes, self.family, self.context, self.on_too_long, self.card.thinking)
            scores[i] = replace(scores[i], too_long=tuple(too_long))
            paths += [path for item in items for path in _paths(item)]
        left = Counter(path.tree for path in paths)

        async def send(batch: Sequence[int], can_split: bool) -> int:
            sent = [paths[i] for i in batch]
            body = {
                "model": self.model,
                "input": [path.ids for path in sent],
                "task": "token_classify",
                "add_special_tokens": False,
            }
            rows = await self.server.ask(
                "POST", "/pooling", lambda answer: _read_pooling(answer, sent), body, can_split=can_split
            )
            done = 0
            for path, values in zip(sent, rows, strict=True):
                for node, value in zip(path.nodes, values, strict=True):
                    if node is not None:
                        scores[path.tree].log_odds_NO[node, 0] = self._sign * value
                left[path.tree] -= 1
                done += left[path.tree] == 0
            return done

        return {i: 4 * len(path.ids) for i, path in enumerate(paths)}, send


@dataclass(frozen=True, slots=True)
class _Path:
    """A sequence to send: from the prompt to a wanted node without wanted descendants."""

    tree: int
    ids: list[int]
    reads: list[int]
    """The position where each step of the sequence is read."""
    nodes: list[int | None]
    """For each step of the sequence, the node that gets its score; None if no node does."""


def _paths(item: PackItem) -> list[_Path]:
    encoded = item.tree
    originals = item.nodes or range(len(encoded.ids))
    left = {node for group in item.groups for node in group}
    inner = {above for node in left for above in encoded.path(node)[:-1]}
    paths = []
    for leaf in sorted(left - inner):
        path = encoded.path(leaf)
        nodes = [originals[node] if node in left else None for node in path]
        left.difference_update(path)
        ids = [*encoded.prompt, *(token for node in path for token in encoded.ids[node])]
        paths.append(_Path(item.index, ids, [encoded.starts[node] + encoded.reads[node] for node in path], nodes))
    return paths


def _read_pooling(answer: dict[str, Any], paths: Sequence[_Path]) -> list[list[float]]:
    """Read the log-odds of each step of each sequence. Raises ValueError if the answer is invalid."""
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != len(paths) or not all(isinstance(result, dict) for result in data):
        raise ValueError(f"the answer has not one result for each of {len(paths)} sequences; is this vLLM's /pooling?")
    log_odds = []
    for result, path in zip(data, paths, strict=True):
        rows = result.get("data")
        if isinstance(rows, list) and len(rows) == len(path.ids) != len(path.reads):  # a row for each token
            rows = [rows[read] for read in path.reads]
        if not isinstance(rows, list) or len(rows) != len(path.reads):
            count = len(rows) if isinstance(rows, list) else "no"
            raise ModelError(
                f"the server returned {count} rows for {len(path.reads)} steps. Start vLLM with --pooler-config "
                f"'{{\"step_tag_id\": {path.ids[path.reads[-1]]}}}'."
            )
        values = []
        for row in rows:
            if not isinstance(row, list) or len(row) != 2 or not all(isinstance(p, int | float) for p in row):
                raise ValueError(f"a row is not [P(wrong), P(right)]: {str(row)[:80]}")
            wrong, right = map(float, row)
            if not (0 <= wrong <= 1 and 0 <= right <= 1 and abs(wrong + right - 1) < 0.02):
                raise ValueError(f"a row does not hold probabilities: {row}")
            values.append(math.log(max(right, SMALLEST)) - math.log(max(wrong, SMALLEST)))
        log_odds.append(values)
    return log_odds


def _load_layout(
    place: str, family: str | None, settings: Mapping[str, str] | None
) -> tuple[Card, type[Family], Any, bool]:
    """Load card, family and tokenizer of a PRM's folder or hub id, and whether its first label means a right step."""
    from transformers import AutoConfig

    try:
        folder = layout_folder(place)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{place}: no tokenizer to lay out steps with ({type(error).__name__}). Name the PRM's folder or hub id "
            "with --set load.local=… (local= in Python)."
        ) from error
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder)
    card, kind = find_card(place, folder, config, family, settings)
    return card, kind, load_tokenizer(folder), kind.names_labels and first_is_right(folder, config)
