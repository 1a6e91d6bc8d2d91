"""A served model: how requests become trees to score, and how a batch of them is scored with what they share.

A PRM works on token ids, with a prefix cache. Any other scorer (a critic, a remote PRM) gets one tree per problem,
unless it reads whole solutions: what others ask must not change a verdict.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.chosen import card_values, choose_aggregator, choose_threshold
from prism_prm.errors import DataError, ModelError
from prism_prm.packing import EncodedTree, encode_tree
from prism_prm.prms.base import REMEMBERED, Family, listed
from prism_prm.protocol import Scorer, TreeScores
from prism_prm.records import StepTree
from prism_prm.scorer.merging import merge_encoded, merge_trees, score_merged
from prism_prm.scorer.prefix_cache import PrefixCache
from prism_prm.scorer.prm import PRM
from prism_prm.scorer.remote import SAMPLE
from prism_prm.scorer.settings import OnTooLong
from prism_prm.scorer.whole_trees import fit, score_encoded, score_items

log = logging.getLogger(__name__)

OTHERS_ITEMS = 16
"""Items that a scorer other than a PRM gets together: between batches it is seen whether anyone still waits."""
TRIED = 1024
"""Tokens by which a PRM's rate is measured before the first request."""
CHARACTERS = 4
"""Of a token, roughly."""


@dataclass(frozen=True, slots=True)
class Item:
    """A tree to score."""

    tree: StepTree | None
    """None where the client sent token ids."""
    encoded: EncodedTree | None
    """None where the scorer is no PRM."""
    tokens: int
    """Where the scorer is no PRM: roughly, since only its server knows."""
    on_too_long: OnTooLong = "error"
    """What to do with steps beyond the context, where there are any."""
    again: int = 0
    """Tokens that are read once more for steps beyond the context, each as a solution of its own; at most."""
    warnings: tuple[str, ...] = ()
    """What of the request was not scored, in sentences for the client."""

    @property
    def cost(self) -> int:
        """Tokens that the model reads if none are in its cache."""
        return self.tokens + self.again


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The scores of an item."""

    log_odds_NO: np.ndarray
    """NaN where a step was too long to score, or not judged."""
    too_long: tuple[int, ...] = ()
    cached_tokens: int = 0
    tokens: int | None = None
    """Where only the scorer knows them, once it has scored."""


class ServedModel:
    """A scorer under the name that clients use."""

    def __init__(self, name: str, scorer: Scorer, cache_bytes: int = 0) -> None:
        self.name = name
        self.scorer = scorer
        card = card_values(scorer)
        self.aggregator = choose_aggregator(None, card).value
        self.threshold = choose_threshold(None, card).value
        self.identity = scorer.identity()
        self.model_hash = scorer.model_hash()
        self.cache = _cache(scorer, cache_bytes)
        self.family = scorer.family.remembering(0) if isinstance(scorer, PRM) else None
        """Remembers no texts: they would add up, and the time that one takes would tell whether another key sent it."""
        self.batch_items: int | None = None if isinstance(scorer, PRM) else OTHERS_ITEMS
        """How many items it gets together; None for as many as there are."""
        self._changed: list[Path] = []
        """Files of which the log says that they have changed."""

    def item(self, tree: StepTree, system: str | None = None, on_too_long: OnTooLong | None = None) -> Item:
        """A tree to score; a `system` message replaces the one that the PRM reads, and is ignored if it reads none."""
        prm = self.scorer
        expected = self.family.chosen.get("system") if self.family else None
        warnings = (f"{self.name} reads no system message, so the request's was ignored",) * bool(
            system and not expected
        )
        if not isinstance(prm, PRM):
            return Item(tree, None, _guess_tokens(tree), warnings=warnings)
        family = own = self.family
        assert family is not None, "a PRM has one"
        if system is not None and expected and system != expected:
            family = _with_system(family, system)
        encoded = encode_tree(tree, family)
        texts = [tree.problem, *(step.text for step in tree.nodes)]
        warnings += self._unread([part for text in texts for part in family.text.unread(text)])
        choice = on_too_long or prm.on_too_long
        num_long = sum(encoded.path_tokens(node) > prm.context for node in range(len(encoded.ids)))
        if num_long and choice == "error":
            fit(tree, 0, range(len(tree.nodes)), family, prm.context, "error")  # says which step it is
        elif num_long and family is not own:
            raise DataError("too long for the model's context, with a system message of its own", reason="too-long")
        again = num_long * prm.context if choice == "drop-left-steps" else 0
        return Item(tree, encoded, len(encoded.prompt) + sum(map(len, encoded.ids)), choice, again, warnings)

    def text(self, text: str, *, add_special_tokens: bool) -> Item:
        """A text that the client has laid out, with its control tokens."""
        encoder = self._prm.family.text
        warnings = self._unread(encoder.unread(text, as_plain=False))
        return replace(self.sequence(encoder.layout(text, add_special_tokens=add_special_tokens)), warnings=warnings)

    def _unread(self, parts: Sequence[str]) -> tuple[str, ...]:
        return (f"{self.name}'s tokenizer cannot read {listed(parts)}, so these were not scored",) * bool(parts)

    def sequence(self, ids: Sequence[int]) -> Item:
        """Token ids, read at every step tag, as vLLM does."""
        prm = self._prm
        vocabulary = prm.module.backbone.get_input_embeddings().num_embeddings
        strange = next((i for i in ids if not 0 <= i < vocabulary), None)
        if strange is not None:
            raise DataError(f"the token id {strange} is not one of the model's {vocabulary:,}", reason="out-of-range")
        if len(ids) > prm.context:
            raise DataError(
                f"{len(ids)} tokens, but the model's context is {prm.context}; send fewer or shorter steps",
                reason="too-long",
            )
        tag = _step_tag(prm.family)
        ends = [i + 1 for i, token in enumerate(ids) if token == tag]
        starts = [0, *ends[:-1]]
        steps = tuple(tuple(ids[start:end]) for start, end in zip(starts, ends, strict=False))
        reads = tuple(len(step) - 1 for step in steps)
        encoded = EncodedTree((), steps, reads, tuple(range(-1, len(steps) - 1)), tuple(starts[: len(steps)]))
        return Item(None, encoded, len(ids))

    def counted(self, item: Item) -> Item:
        """The item with its tokens as the scorer counts them, which may have to ask its server."""
        if isinstance(self.scorer, PRM):
            return item
        assert item.tree is not None, "only PRMs take sequences"
        return replace(item, tokens=self.scorer.count_tokens(item.tree))

    def work(self, owner: Hashable, item: Item) -> int:
        """Tokens that the model has to read for an item, as far as can be told before."""
        cached = 0 if self.cache is None or item.encoded is None else self.cache.held_tokens(owner, item.encoded)
        return item.cost - cached

    def try_out(self) -> tuple[int, float]:
        """Tokens of a made-up batch, and the seconds that it takes; (0, 0) for a scorer that asks a server."""
        prm = self.scorer
        if not isinstance(prm, PRM):
            return 0, 0.0
        tree = prm.encode_tree(StepTree.chain(*SAMPLE))
        if _longest(tree) > prm.context:
            return 0, 0.0
        size = len(tree.prompt) + sum(map(len, tree.ids))
        count = math.ceil(TRIED / size)
        score_encoded(prm, [tree])  # the first time takes longer
        started = time.monotonic()
        score_encoded(prm, [tree] * count)
        return count * size, time.monotonic() - started

    @property
    def _prm(self) -> PRM:
        if not isinstance(self.scorer, PRM):
            raise DataError(f"{self.name!r} takes messages and steps; it has no tokens of its own", reason="wrong-type")
        return self.scorer

    def score(
        self, asked: Sequence[tuple[Hashable, Item]], is_over: Callable[[], bool] = lambda: False
    ) -> list[ItemScores]:
        """The scores of each (owner, item). What items of one owner share is computed once.

        TimeoutError where `is_over` says between parts of a long item that nobody waits for it.
        """
        prm = self.scorer
        if not isinstance(prm, PRM):
            return self._score_trees(asked)
        self._watch(prm)
        found: dict[int, ItemScores] = {}
        fitting: list[tuple[int, Hashable, EncodedTree]] = []
        for i, (owner, item) in enumerate(asked):
            assert item.encoded is not None, "items of a PRM are encoded"
            if _longest(item.encoded) <= prm.context:
                fitting.append((i, owner, item.encoded))
            else:
                found[i] = _score_too_long(prm, item, is_over)
        pairs = [(owner, tree) for _, owner, tree in fitting]
        kept = [None] * len(pairs) if self.cache is None else self.cache.score(pairs)
        left = [pair for pair, one in zip(pairs, kept, strict=True) if one is None]
        packed = iter(
            score_merged(
                [tree for _, tree in left],
                lambda i: (left[i][0], left[i][1].prompt),
                merge_encoded,
                lambda trees: score_encoded(prm, trees),
            )
        )
        for (i, _, _), one in zip(fitting, kept, strict=True):
            found[i] = ItemScores(next(packed)) if one is None else ItemScores(one.log_odds_NO, (), one.cached_tokens)
        return [found[i] for i in range(len(asked))]

    def _watch(self, prm: PRM) -> None:
        """Log once that the PRM's files are others now: whoever replaces them may expect scores of the new ones."""
        changed = [] if prm.module.files is None else prm.module.files.changed()
        if changed and changed != self._changed:
            log.warning(
                "%s: %s changed since it was loaded; the weights that were loaded then, with the hash %s, are served "
                "until a restart", self.name, ", ".join(map(str, changed)), self.model_hash,
            )  # fmt: skip
        self._changed = changed

    def _score_trees(self, asked: Sequence[tuple[Hashable, Item]]) -> list[ItemScores]:
        trees = []
        for _, item in asked:
            assert item.tree is not None, "only PRMs take sequences"
            trees.append(item.tree)
        reads_all = self.scorer.reads_whole_solutions
        found = score_merged(
            trees,
            lambda i: i if reads_all else (asked[i][0], trees[i].problem),
            merge_trees,
            lambda merged: list(map(_with_too_long, self.scorer.score_trees(merged))),
        )
        return [
            ItemScores(
                values[:, :-1], tuple(np.flatnonzero(values[:, -1]).tolist()), tokens=self.scorer.count_tokens(tree)
            )
            for values, tree in zip(found, trees, strict=True)
        ]


def _score_too_long(prm: PRM, item: Item, is_over: Callable[[], bool]) -> ItemScores:
    """The scores of an item with steps beyond the context, about one forward pass after the other."""
    tree = item.tree
    assert tree is not None, "sequences that are too long were refused"
    nodes = range(len(tree.nodes))
    # A layout for each of many ends of one solution: their steps are remembered until then.
    family = prm.family.remembering(REMEMBERED)
    items, too_long = fit(tree, 0, nodes, family, prm.context, item.on_too_long)
    scores_NO = np.full((len(nodes), len(prm.outputs)), np.nan)
    at_once = max(1, prm.token_budget // prm.context)
    for start in range(0, len(items), at_once):
        if is_over():
            raise TimeoutError
        with prm.module.scoring():
            (values_NO,) = score_items(
                prm, items[start : start + at_once], [len(nodes)], lambda _, node: f"node {node}"
            )
        scores_NO = np.where(np.isnan(values_NO), scores_NO, values_NO)
    return ItemScores(scores_NO, tuple(too_long))


def _cache(scorer: Scorer, num_bytes: int) -> PrefixCache | None:
    """A prefix cache where one is wanted and the architecture can have one."""
    if not isinstance(scorer, PRM) or not num_bytes or scorer.cache is not None:
        return None
    try:
        return PrefixCache(scorer, num_bytes)
    except ModelError:
        return None


def _guess_tokens(tree: StepTree) -> int:
    return 1 + sum(map(len, [tree.problem, *(step.text for step in tree.nodes)])) // CHARACTERS


def _with_too_long(scores: TreeScores) -> np.ndarray:
    """Log-odds of each node, and whether it is too long, as one more column."""
    is_too_long_N = np.isin(np.arange(len(scores.log_odds_NO)), scores.too_long)
    return np.column_stack([scores.log_odds_NO, is_too_long_N])


def _longest(tree: EncodedTree) -> int:
    return max((tree.path_tokens(node) for node in range(len(tree.ids))), default=0)


def _with_system(family: Family, system: str) -> Family:
    """The family with another system message; only for one that has such a setting."""
    variant: Family = type(family)(
        family.text.tokenizer, compat=family.compat, settings={**family.chosen, "system": system}
    )
    return variant.remembering(0)


@lru_cache(maxsize=64)
def _step_tag(family: Family) -> int:
    """The token that ends every step, where the family has one that does not depend on the step."""
    tags: set[Any] = set()
    for depth, text in enumerate(SAMPLE[1]):
        ids, read = family.step_ids(text, depth)
        tags.add(ids[read] if read == len(ids) - 1 else None)
    if len(tags) != 1 or None in tags:
        raise DataError(
            f"the family {family.name!r} ends steps with no token of their own, so token ids and plain text cannot be "
            "read; send messages, or problem and steps to /v1/steps",
            reason="wrong-type",
        )
    (tag,) = tags
    return int(tag)
