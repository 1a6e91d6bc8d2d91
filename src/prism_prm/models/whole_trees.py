"""Whole trees through a PRM: made to fit the context, packed, run in batches by token budget, every score checked.

A path longer than the context is an error by default, else a counted choice; never a made-up score.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from torch import Tensor

from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.models.load_lm import halving
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.module import PrmModule
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
from prism_prm.scorer import TreeScores
from prism_prm.tree import ROOT, Step, StepTree

if TYPE_CHECKING:
    from prism_prm.models.prm import PRM

log = logging.getLogger(__name__)

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
    """A score that is not a number is an error that says whose it is."""
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
