"""Served models: they turn requests into trees to score, and score batches of these.

A PRM works on token ids, with a prefix cache. For any other scorer (a critic, a remote PRM), the items of one problem
are merged into a tree, unless it reads whole solutions: requests of other clients must not change a verdict.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import calibration_of, card_values, choose_aggregator, choose_threshold
from prism_prm.backends.remote_prm import SAMPLE
from prism_prm.errors import DataError, ModelError
from prism_prm.models.families.base import CACHE_BYTES, Family, quote_parts
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.packing import EncodedTree, encode_tree
from prism_prm.models.prefix_cache import PrefixCache, merge_encoded, merge_trees, score_merged
from prism_prm.models.prm import PRM, fit, score_encoded, score_items
from prism_prm.scorer import Scorer
from prism_prm.segments import CLOSE, DEFAULT_SEGMENTER, OPEN, SCORED
from prism_prm.tree import StepTree

log = logging.getLogger(__name__)

OTHERS_ITEMS = 16
"""The batch size of scorers other than PRMs: between batches the engine checks whether a client still waits."""
TRIED = 1024
"""Tokens in the batch that measures a PRM's speed at startup."""
CHARACTERS = 4
"""Characters per token, roughly."""


@dataclass(frozen=True, slots=True)
class ServedItem:
    """A tree to score."""

    tree: StepTree | None
    """None if the client sent token ids."""
    encoded: EncodedTree | None
    """None if the scorer is not a PRM."""
    tokens: int
    """A guess if the scorer is not a PRM: only its server knows."""
    on_too_long: OnTooLong = "error"
    """What to do with steps beyond the context."""
    again: int = 0
    """Tokens that are read again for steps beyond the context, in windows."""
    warnings: tuple[str, ...] = ()
    """Messages for the client about parts that were not scored."""
    is_apart: bool = False
    """Whether it has thinking that is not scored, so that its parts are laid out separately."""

    @property
    def cost(self) -> int:
        """Tokens that the model reads without a cache."""
        return self.tokens + self.again


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The scores of an item."""

    log_odds_NO: np.ndarray
    """NaN for a step that is too long, or was not judged."""
    tokens: int
    too_long: tuple[int, ...] = ()
    cached_tokens: int = 0


class ServedModel:
    """A scorer under the name that clients use."""

    batch_items: int | None = OTHERS_ITEMS
    """The most items per batch; None for no limit."""
    cache: PrefixCache | None = None

    def __init__(self, name: str, scorer: Scorer) -> None:
        self.name = name
        self.scorer = scorer
        card = card_values(scorer)
        self.aggregator = choose_aggregator(None, card).value
        self.segmenter = DEFAULT_SEGMENTER if card is None else card.segmenter
        self.thinking = SCORED if card is None else card.thinking
        self.threshold = choose_threshold(None, card).value
        self.calibration = calibration_of(scorer)
        self.identity = self.model_hash = scorer.identity()

    def item(self, tree: StepTree, system: str | None = None, on_too_long: OnTooLong | None = None) -> ServedItem:  # noqa: ARG002
        """A tree to score; a `system` message replaces the PRM's own, and is ignored if the PRM has none."""
        letters = len(tree.problem) + sum(len(step.text) for step in tree.nodes)
        return ServedItem(tree, None, 1 + letters // CHARACTERS, warnings=self._ignored(system))

    def text(self, text: str, *, add_special_tokens: bool) -> ServedItem:  # noqa: ARG002
        """A text with control tokens, laid out by the client."""
        return self.sequence(())

    def sequence(self, ids: Sequence[int]) -> ServedItem:  # noqa: ARG002
        """Token ids, scored at every step tag, like vLLM."""
        raise DataError(f"{self.name!r} takes messages and steps; it has no tokens of its own", reason="wrong-type")

    def counted(self, item: ServedItem) -> ServedItem:
        """The item with exact token counts, which may need a request to the scorer's server."""
        assert item.tree is not None, "only PRMs take sequences"
        return replace(item, tokens=self.scorer.count_tokens(item.tree))

    def work(self, owner: Hashable, item: ServedItem) -> int:  # noqa: ARG002
        """Tokens that the model has to read for an item, as far as known before scoring."""
        return item.cost

    def try_out(self) -> tuple[int, float]:
        """(tokens, seconds) of a sample batch; (0, 0) for a scorer behind a server."""
        return 0, 0.0

    def score(
        self,
        asked: Sequence[tuple[Hashable, ServedItem]],
        is_over: Callable[[], bool] = lambda: False,  # noqa: ARG002
    ) -> list[ItemScores]:
        """Score (owner, item) pairs. Prefixes that items of one owner share are computed once.

        `is_over` is called between the parts of a long item; TimeoutError if no client waits any more.
        """
        trees = []
        for _, item in asked:
            assert item.tree is not None, "only PRMs take sequences"
            trees.append(item.tree)
        reads_all = self.scorer.reads_whole_solutions

        def score(merged: Sequence[StepTree]) -> list[np.ndarray]:
            """The log-odds of each node, and one more column: whether it is too long."""
            found = self.scorer.score_trees(merged)
            return [
                np.column_stack([one.log_odds_NO, np.isin(np.arange(len(one.log_odds_NO)), one.too_long)])
                for one in found
            ]

        found = score_merged(trees, lambda i: i if reads_all else (asked[i][0], trees[i].problem), merge_trees, score)
        return [
            ItemScores(values[:, :-1], self.scorer.count_tokens(tree), tuple(np.flatnonzero(values[:, -1]).tolist()))
            for values, tree in zip(found, trees, strict=True)
        ]

    def _ignored(self, system: str | None) -> tuple[str, ...]:
        return (f"{self.name} reads no system message, so the request's was ignored",) if system else ()


class ServedPRM(ServedModel):
    """A PRM in this process, with a prefix cache if one is configured and the architecture supports it."""

    batch_items = None

    def __init__(self, name: str, prm: PRM, cache_bytes: int = 0) -> None:
        super().__init__(name, prm)
        self.prm = prm
        self.model_hash = prm.model_hash()
        # Without its text cache, which would grow without limit and reveal by timing which texts other keys have sent.
        self.family = prm.family.with_cache(0)
        self._changed: list[Path] = []
        """Changed files that were logged already."""
        if cache_bytes and prm.cache is None:
            with contextlib.suppress(ModelError):
                self.cache = PrefixCache(prm, cache_bytes)

    def item(self, tree: StepTree, system: str | None = None, on_too_long: OnTooLong | None = None) -> ServedItem:
        prm, family = self.prm, self.family
        expected = family.chosen.get("system")
        warnings = () if expected else self._ignored(system)
        if system is not None and expected and system != expected:
            settings = {**family.chosen, "system": system}
            family = type(family)(family.text.tokenizer, compat=family.compat, settings=settings).with_cache(0)
        encoded = encode_tree(tree, family)
        texts = [tree.problem, *(step.text for step in tree.nodes)]
        warnings += self._unread([part for text in texts for part in family.text.unread(text)])
        choice = on_too_long or prm.on_too_long
        num_long = sum(encoded.path_tokens(node) > prm.context for node in range(len(encoded.ids)))
        is_apart = prm.card.thinking != SCORED and any(OPEN in text or CLOSE in text for text in texts[1:])
        if num_long and choice == "error" and not is_apart:
            fit(tree, 0, range(len(tree.nodes)), family, prm.context, "error")  # raises with the number of the step
        elif num_long and family is not self.family:
            raise DataError("too long for the model's context with a custom system message", reason="too-long")
        again = 0
        if is_apart or (num_long and choice == "window"):
            items, _ = fit(tree, 0, range(len(tree.nodes)), family, prm.context, choice, prm.card.thinking)
            again = sum(one.tree.num_tokens for one in items if one.nodes is not None)
        return ServedItem(tree, encoded, encoded.num_tokens, choice, again, warnings, is_apart)

    def text(self, text: str, *, add_special_tokens: bool) -> ServedItem:
        encoder = self.prm.family.text
        warnings = self._unread(encoder.unread(text, as_plain=False))
        return replace(self.sequence(encoder.layout(text, add_special_tokens=add_special_tokens)), warnings=warnings)

    def _unread(self, parts: Sequence[str]) -> tuple[str, ...]:
        return (f"{self.name}'s tokenizer cannot read {quote_parts(parts)}, so these were not scored",) * bool(parts)

    def sequence(self, ids: Sequence[int]) -> ServedItem:
        prm = self.prm
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
        return ServedItem(None, encoded, len(ids))

    def counted(self, item: ServedItem) -> ServedItem:
        return item

    def work(self, owner: Hashable, item: ServedItem) -> int:
        if self.cache is None or item.encoded is None:
            return item.cost
        return item.cost - self.cache.held_tokens(owner, item.encoded)

    def try_out(self) -> tuple[int, float]:
        tree = self.prm.encode_tree(StepTree.chain(*SAMPLE))
        if _longest(tree) > self.prm.context:
            return 0, 0.0
        count = math.ceil(TRIED / tree.num_tokens)
        score_encoded(self.prm, [tree])  # warm-up
        started = time.monotonic()
        score_encoded(self.prm, [tree] * count)
        return count * tree.num_tokens, time.monotonic() - started

    def score(
        self, asked: Sequence[tuple[Hashable, ServedItem]], is_over: Callable[[], bool] = lambda: False
    ) -> list[ItemScores]:
        self._log_changed_files()
        found: dict[int, ItemScores] = {}
        fitting: list[tuple[int, Hashable, EncodedTree]] = []
        for i, (owner, item) in enumerate(asked):
            assert item.encoded is not None, "items of a PRM are encoded"
            if _longest(item.encoded) <= self.prm.context and not item.is_apart:
                fitting.append((i, owner, item.encoded))
            else:
                found[i] = self._score_too_long(item, is_over)
        pairs = [(owner, tree) for _, owner, tree in fitting]
        kept = [None] * len(pairs) if self.cache is None else self.cache.score(pairs)
        left = [pair for pair, one in zip(pairs, kept, strict=True) if one is None]
        packed = iter(
            score_merged(
                [tree for _, tree in left],
                lambda i: (left[i][0], left[i][1].prompt),
                merge_encoded,
                lambda trees: score_encoded(self.prm, trees),
            )
        )
        for (i, _, _), one in zip(fitting, kept, strict=True):
            tokens = asked[i][1].tokens
            found[i] = (
                ItemScores(next(packed), tokens)
                if one is None
                else ItemScores(one.log_odds_NO, tokens, cached_tokens=one.cached_tokens)
            )
        return [found[i] for i in range(len(asked))]

    def _log_changed_files(self) -> None:
        """Log once that the PRM's files have changed, since the old weights are still served."""
        files = self.prm.module.files
        changed = [] if files is None else files.changed()
        if changed and changed != self._changed:
            log.warning(
                "%s: %s changed since it was loaded; the old weights (hash %s) are served until a restart",
                self.name, ", ".join(map(str, changed)), self.model_hash,
            )  # fmt: skip
        self._changed = changed

    def _score_too_long(self, item: ServedItem, is_over: Callable[[], bool]) -> ItemScores:
        """Score an item with steps beyond the context, in several forward passes."""
        prm, tree = self.prm, item.tree
        assert tree is not None, "sequences that are too long were rejected"
        nodes = range(len(tree.nodes))
        # Many parts of one solution are encoded, so their steps are cached meanwhile.
        family = prm.family.with_cache(CACHE_BYTES)
        items, too_long = fit(tree, 0, nodes, family, prm.context, item.on_too_long, prm.card.thinking)
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
        return ItemScores(scores_NO, item.tokens, tuple(too_long))


def served_model(name: str, scorer: Scorer, cache_bytes: int = 0) -> ServedModel:
    """Wrap a scorer for serving."""
    return ServedPRM(name, scorer, cache_bytes) if isinstance(scorer, PRM) else ServedModel(name, scorer)


def _longest(tree: EncodedTree) -> int:
    return max((tree.path_tokens(node) for node in range(len(tree.ids))), default=0)


@lru_cache(maxsize=64)
def _step_tag(family: Family) -> int:
    """The token that ends every step; DataError if the family has none."""
    tags: set[Any] = set()
    for depth, text in enumerate(SAMPLE[1]):
        ids, read = family.step_ids(text, depth)
        tags.add(ids[read] if read == len(ids) - 1 else None)
    if len(tags) != 1 or None in tags:
        raise DataError(
            f"the family {family.name!r} has no token that ends every step, so it cannot score token ids and plain "
            "text; send messages, or problem and steps to /v1/steps",
            reason="wrong-type",
        )
    (tag,) = tags
    return int(tag)
