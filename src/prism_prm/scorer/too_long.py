"""Paths longer than a model's context: an error by default, else a counted choice. Never a made-up score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from prism_prm.errors import ConfigError, DataError
from prism_prm.packing import EncodedTree, Group, Layout, describe, encode_tree
from prism_prm.records import ROOT, Step, StepTree
from prism_prm.scorer.settings import OnTooLong


@dataclass(frozen=True, slots=True)
class Item:
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
) -> tuple[list[Item], list[int]]:
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
    items = [Item(encoded, groups, index)] if groups else []
    if choice == "drop-left-steps":
        items += _shortened(tree, index, long, encoded, family, context)
    return items, long


def _shortened(
    tree: StepTree, index: int, long: Sequence[int], encoded: EncodedTree, family: Layout, context: int
) -> Iterator[Item]:
    """For each node the longest end of its path that fits, laid out as a solution of its own."""
    ends = _fitting_ends(tree, long, encoded, family, context)
    for node in long:
        end = ends[node]
        if end is None:
            raise DataError(
                f"{describe(tree, node)}: the problem and this step alone exceed the model's context of {context} "
                "tokens",
                reason="too-long",
            )
        yield Item(end, [(len(end.ids) - 1,)], index, node)


def _fitting_ends(
    tree: StepTree, long: Sequence[int], encoded: EncodedTree, family: Layout, context: int
) -> dict[int, EncodedTree | None]:
    """For each node the end of its path that fits; None where not even the node alone does.

    A path from some first step that is too long at a node is so at every later node too, however the family lays out
    its steps. So the search begins where that for the node before ended, and every node costs about two layouts.
    """
    wanted, search = set(long), set[int]()
    for node in long:
        while node != ROOT and node not in search and encoded.path_tokens(node) > context:
            search.add(node)
            node = tree.parents[node]
    depths = tree.depths()
    firsts: dict[int, int] = {}
    ends: dict[int, EncodedTree | None] = {}
    for node in sorted(search):
        first = firsts.get(tree.parents[node], 1)
        kept = _last_steps(tree, node, depths[node] + 1 - first)
        end = None
        while kept:
            end = encode_tree(StepTree.chain(tree.problem, kept), family)
            if end.path_tokens(len(kept) - 1) <= context:
                break
            kept, end = kept[1:], None
        firsts[node] = depths[node] + 1 - len(kept)
        if node in wanted:
            ends[node] = end
    return ends


def _last_steps(tree: StepTree, node: int, count: int) -> list[Step]:
    """The last steps of a node's path."""
    steps: list[Step] = []
    for _ in range(count):
        steps.append(tree.nodes[node])
        node = tree.parents[node]
    return steps[::-1]
