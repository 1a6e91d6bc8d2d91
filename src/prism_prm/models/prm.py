"""`PRM`: a process reward model to score with, train, and save.

Whole trees are made to fit the context, packed, and run in batches by token budget; every score is checked. A path
longer than the context is an error by default, else a counted choice; never a made-up score.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.models.card import Card, model_card
from prism_prm.models.families.base import Family
from prism_prm.models.load_lm import halving
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.models.module import PrmModule, hash_model
from prism_prm.models.packing import (
    EncodedTree,
    Group,
    Layout,
    Row,
    batch_rows,
    describe,
    encode_tree,
    merge_rows,
    pack,
)
from prism_prm.models.prm_folder import push_folder, save_folder
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import ROOT, Step, StepTree

if TYPE_CHECKING:
    from prism_prm.models.session import Session

log = logging.getLogger(__name__)

TREES_AT_ONCE = 512
"""Trees are laid out and sorted by length within chunks of this many, so that memory stays bounded."""


class PRM(Scorer):
    """A PRM: its differentiable module, its family's layout, and how to score with them.

    `load_prm` and `PRM.from_pretrained` read one, `init_prm` makes one.
    """

    def __init__(
        self,
        module: PrmModule,
        family: Family,
        card: Card,
        *,
        token_budget: int | None = None,
        context: int | None = None,
        on_too_long: OnTooLong = "error",
        cache: CacheSettings | None = None,
    ) -> None:
        check_choice(on_too_long)
        self.module = module
        self.cache = LowerCache(module, cache) if cache else None
        """The cache of frozen-layer activations, or None."""
        self.family = family
        self.outputs = family.outputs
        self.card: Card = card
        self.token_budget = token_budget or (8192 if module.device.type == "cpu" else 16384)
        """Tokens of one forward pass, padding included."""
        self.context: int = context or module.config.max_position_embeddings
        """The longest path that is scored."""
        self.on_too_long: OnTooLong = on_too_long

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> PRM:
        """Load a PRM from a folder or a hub id.

        Args:
            name: folder or hub id of a PRM or a LoRA adapter, or the folder of a `prism train` run.
            options: those of `load_prm`.

        Example:
            >>> prm = PRM.from_pretrained("my-prm", context=512)
            >>> prm.outputs
            ('correct',)
        """
        from prism_prm import load_prm

        prm = load_prm(name, **options)
        if not isinstance(prm, PRM):
            raise ConfigError(f"{name}: a PRM behind a server has no weights here; open it with load_prm")
        return prm

    @property
    def tokenizer(self) -> Any:
        return self.family.text.tokenizer

    def encode_tree(self, tree: StepTree) -> EncodedTree:
        """The tree's token ids; cheap, and independent of the weights."""
        return encode_tree(tree, self.family)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or only of the wanted ones.

        Args:
            trees: problems with their trees of steps.
            wanted: for each tree the nodes to score; default: all.
            progress: show a progress bar on standard error.
            advance: called with the number of further trees that are done.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [found] = prm.score_trees([StepTree.chain("1 + 2?", ["Add.", "3"])], wanted=[[1]])
            >>> found.scored, found.outputs
            ([1], ('correct',))
        """
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        results: list[TreeScores] = []
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar, self.module.scoring():
            for start in range(0, len(trees), TREES_AT_ONCE):
                some = slice(start, start + TREES_AT_ONCE)
                results += score_chunk(self, trees[some], wanted[some])
                bar(len(results) - start)
                advance(len(results) - start)
        return results

    def fill_cache(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> None:
        """Keep what scoring or training on these nodes will ask of the lower layers."""
        assert self.cache is not None, "a PRM is loaded with a cache or without"
        items, _ = fit_all(self, trees, wanted)
        with self.module.scoring():
            self.cache.fill(rows_of(self, items), self.token_budget)

    def session(self, problems: Sequence[str]) -> Session:
        """Open growing trees of steps, one per problem, with a KV cache: only new tokens go through the model.

        Args:
            problems: the texts of the problems; the session's `roots` are in the same order.

        Example:
            >>> prm = load_prm("my-prm")
            >>> with prm.session(["1 + 2?"]) as session:
            ...     [first] = session.extend([(session.roots[0], "Add.")])
            ...     second, other = session.extend([(first, "3"), (first, "4")])
            >>> second.steps(), other.steps()
            (['Add.', '3'], ['Add.', '4'])
        """
        if isinstance(problems, str):
            raise DataError("a session takes a list of problems; for one problem: session([problem])")
        from prism_prm.models.check_packing import check_session
        from prism_prm.models.session import Session

        check_session(self.module)
        return Session(self, problems)

    def model_hash(self) -> str:
        """A hash of the model: weights as loaded, config, tokenizer, family and its settings."""
        return hash_model(self.module, self.family)

    def save(
        self,
        folder: str | Path,
        *,
        state: Mapping[str, Tensor] | None = None,
        threshold: float | None = None,
        aggregator: str | None = None,
        readme: str | None = None,
    ) -> None:
        """Write the PRM's folder atomically: safetensors, config, tokenizer, card and README.

        `save` and `save_pretrained` are the same method.

        Args:
            folder: the folder to write, for `load_prm`.
            state: the weights, if they are sharded over devices; default: the module's own.
            threshold: a step counts as right above this; default: the card's.
            aggregator: how step scores become a solution's score; default: the card's.
            readme: the text of README.md; default: a short one.

        Example:
            >>> prm = init_prm("my-lm")
            >>> prm.save_pretrained("new-prm", aggregator="mean")
            >>> load_prm("new-prm").card.aggregator
            'mean'
        """
        card = replace(
            self.card,
            threshold=self.card.threshold if threshold is None else threshold,
            aggregator=self.card.aggregator if aggregator is None else aggregator,
        )
        readme = readme or model_card(card, self.family.architecture(self.module.config))
        save_folder(Path(folder), self.module, self.family, card, state, readme)
        self.card = card

    save_pretrained = save

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        message: str = "Upload a PRM",
        token: str | None = None,
        api: Any = None,
    ) -> str:
        """Upload the PRM's folder to the Hugging Face hub; returns the URL of the commit.

        Args:
            repo_id: "owner/name", or a name in your own account; created if it does not exist.
            private: whether a new repository is private.
            message: the commit message.
            token: the hub token; default: that of `hf auth login`.
            api: a `huggingface_hub.HfApi` to use instead, with its own token.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.push_to_hub("me/my-prm")  # doctest: +SKIP
            'https://huggingface.co/me/my-prm/commit/…'
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "prm")
            return push_folder(Path(folder) / "prm", repo_id, private=private, message=message, token=token, api=api)

    def identity(self) -> str:
        """A hash of everything that determines scores: the model, its context, and the treatment of longer paths."""
        said = repr((self.model_hash(), self.context, self.on_too_long))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step after this many others fits the family's layout; one without a token does not."""
        return self.family.can_read(step, depth)

    def notes(self) -> list[str]:
        """What was left out of the scores."""
        count = self.family.text.num_unread
        return [f"{count:,} characters were not read, because the PRM's tokenizer does not know them"] * bool(count)

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""
        return self.encode_tree(tree).num_tokens


Prm = PRM
"""Deprecated alias of `PRM`."""


Named = Callable[[int, int], str]
"""(tree, node) of a read → how to name it in a message."""


def fit_all(
    prm: PRM, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]
) -> tuple[list[PackItem], list[tuple[int, ...]]]:
    """Items for some nodes of each tree, and for each tree the nodes that were too long."""
    items: list[PackItem] = []
    too_long: list[tuple[int, ...]] = []
    for i, (tree, wanted) in enumerate(zip(trees, nodes, strict=True)):
        fitting, long = fit(tree, i, wanted, prm.family, prm.context, prm.on_too_long)
        items += fitting
        too_long.append(tuple(long))
    return items, too_long


def rows_of(prm: PRM, items: Sequence[PackItem]) -> list[Row]:
    """The items packed for the PRM's attention and token budget."""
    trees, groups = [item.tree for item in items], [item.groups for item in items]
    return pack(trees, prm.token_budget, groups, pair_cost=pair_cost(prm.module))


def score_chunk(prm: PRM, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]) -> list[TreeScores]:
    """The scores of some nodes of each tree: all trees are laid out, sorted by length and run together."""
    items, too_long = fit_all(prm, trees, nodes)
    if any(too_long):
        done = "left unscored" if prm.on_too_long == "skip" else "scored without their earliest steps"
        first = next(describe(tree, long[0]) for tree, long in zip(trees, too_long, strict=True) if long)
        log.warning(
            "%d steps exceed the context of %d tokens: %s; the first: %s",
            sum(map(len, too_long)), prm.context, done, first,
        )  # fmt: skip
    scores = score_items(prm, items, [len(tree.nodes) for tree in trees], lambda i, node: describe(trees[i], node))
    return [TreeScores(prm.outputs, *found) for found in zip(scores, too_long, strict=True)]


def score_items(prm: PRM, items: Sequence[PackItem], sizes: Sequence[int], named: Named) -> list[np.ndarray]:
    """The log-odds_NO of trees with so many nodes each, from the items that belong to them; NaN where none is read."""

    def owner(item: int, node: int) -> tuple[int, int]:
        stands_for = items[item].is_node
        return items[item].index, node if stands_for is None else stands_for

    def forward(rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            batch = prm.module.collate(rows)
            batch = batch if prm.cache is None else prm.cache.attach(batch, rows)
            log_odds_RO: Tensor = prm.module(batch.to(prm.module.device))
            return log_odds_RO.double().cpu()

    scores = [np.full((size, len(prm.outputs)), np.nan) for size in sizes]
    for batch in batches_of(prm.module, rows_of(prm, items), prm.token_budget):
        for rows, log_odds_RO in halving(
            batch, forward, lambda row: f"a row of {len(row)} tokens with {named(*owner(*row.owners[0]))}"
        ):
            owners = [owner(*read) for row in rows for read in row.owners]
            check_finite(log_odds_RO, owners, named)
            for (index, node), values in zip(owners, log_odds_RO.tolist(), strict=True):
                scores[index][node] = values
    if prm.cache is not None:
        prm.cache.flush()
    return scores


def score_encoded(prm: PRM, trees: Sequence[EncodedTree]) -> list[np.ndarray]:
    """The log-odds_NO of all nodes of trees that are token ids already and fit the context."""
    items = [PackItem(tree, [(node,) for node in range(len(tree.ids))], i) for i, tree in enumerate(trees) if tree.ids]
    with prm.module.scoring():
        return score_items(prm, items, [len(tree.ids) for tree in trees], lambda i, node: f"tree {i}, node {node}")


@dataclass(frozen=True, slots=True)
class PackItem:
    """Something to pack: an encoded tree, the nodes to read, and whose scores these are."""

    tree: EncodedTree
    groups: Sequence[Group]
    index: int
    """Which of the trees to score it belongs to."""
    is_node: int | None = None
    """The node of that tree which this item's last node stands for; None: nodes are the tree's own."""


def check_choice(choice: str) -> None:
    if choice not in get_args(OnTooLong):
        raise ConfigError(f"on_too_long={choice!r} is not one of {', '.join(get_args(OnTooLong))}")


def fit(
    tree: StepTree, index: int, nodes: Sequence[int], family: Layout, context: int, choice: OnTooLong
) -> tuple[list[PackItem], list[int]]:
    """Items whose every path fits the context, and the nodes that were too long."""
    encoded = encode_tree(tree, family)
    long = [node for node in nodes if encoded.path_tokens(node) > context]
    if long and choice == "error":
        raise DataError(
            f"{describe(tree, long[0])}: problem and steps up to here are {encoded.path_tokens(long[0])} tokens, "
            f"but the model's context is {context}. With on_too_long='drop-left-steps' (--on-too-long) its earliest "
            "steps are left out.",
            reason="too-long",
        )
    left_out = set(long)
    groups = [(node,) for node in nodes if node not in left_out]
    items = [PackItem(encoded, groups, index)] if groups else []
    if choice == "drop-left-steps":
        ends = _fitting_ends(tree, long, encoded, family, context)
        for node in long:
            end = ends[node]
            if end is None:
                raise DataError(
                    f"{describe(tree, node)}: the problem and this step alone exceed the model's context of {context} "
                    "tokens",
                    reason="too-long",
                )
            items.append(PackItem(end, [(len(end.ids) - 1,)], index, node))
    return items, long


def _fitting_ends(
    tree: StepTree, long: Sequence[int], encoded: EncodedTree, family: Layout, context: int
) -> dict[int, EncodedTree | None]:
    """For each node the longest end of its path that fits, as a solution of its own; None where not even the node does.

    A path from some first step that is too long at a node is so at every later node too, however the family lays out
    its steps. So the search begins where that for the node before ended, and every node costs about two layouts.
    """
    search: set[int] = set()
    for node in long:
        while node != ROOT and node not in search and encoded.path_tokens(node) > context:
            search.add(node)
            node = tree.parents[node]
    depths = tree.depths()
    firsts: dict[int, int] = {}
    ends: dict[int, EncodedTree | None] = {}
    for node in sorted(search):
        kept: list[Step] = []
        above = node
        for _ in range(depths[node] + 1 - firsts.get(tree.parents[node], 1)):
            kept.append(tree.nodes[above])
            above = tree.parents[above]
        kept.reverse()
        ends[node] = None
        while kept:
            end = encode_tree(StepTree.chain(tree.problem, kept), family)
            if end.path_tokens(len(kept) - 1) <= context:
                ends[node] = end
                break
            kept = kept[1:]
        firsts[node] = depths[node] + 1 - len(kept)
    return ends


def pair_cost(module: PrmModule) -> float:
    """Attention's work per (token, token) of a row, in units of the rest of the work per token.

    It is 0 where only tokens that are seen are paid for: long rows then cost no more. A multiplication counts the same
    in attention as elsewhere: on a CPU with a narrow model it was measured to cost 0.8 of the others.
    """
    if module.in_blocks or module.attention == "flex":
        return 0.0
    config = module.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pair = 4 * config.num_hidden_layers * config.num_attention_heads * head_dim
    embedding = module.backbone.get_input_embeddings().weight.numel()
    token = 2 * (sum(parameter.numel() for parameter in module.backbone.parameters()) - embedding)
    return float(pair / token)


def batches_of(module: PrmModule, rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """The rows of each forward pass."""
    return batch_rows(merge_rows(rows, token_budget) if module.attention == "flex" else rows, token_budget)


def check_finite(log_odds_RO: Tensor, owners: Sequence[tuple[int, int]], named: Named) -> None:
    """Raise if a score is not finite, and say whose it is."""
    bad_R = ~torch.isfinite(log_odds_RO).all(dim=1)
    if bool(bad_R.any()):
        first = int(bad_R.nonzero()[0, 0])
        raise ModelError(
            f"{named(*owners[first])}: the model's score is {log_odds_RO[first].tolist()}, not a finite number "
            "(broken weights, or an overflow of a 16-bit dtype: try bfloat16 or float32)"
        )


def memory_estimate(prm: PRM) -> int:
    """Bytes that scoring takes at its peak, roughly: weights, and the activations and masks of one batch."""
    config = prm.module.config
    weights = sum(p.numel() * p.element_size() for p in prm.module.parameters())
    width = 8 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
    size = next(prm.module.parameters()).element_size()
    mask = 5 * prm.token_budget * min(prm.token_budget, prm.context) if prm.module.attention == "sdpa" else 0
    return int(weights + prm.token_budget * width * size + mask)
