"""Paths longer than a model's context: an error by default, else a counted choice. Never a made-up score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from prism_prm.errors import ConfigError, DataError
from prism_prm.packing import EncodedTree, Group, Layout, describe, encode_tree
from prism_prm.records import StepTree

OnTooLong = Literal["error", "drop-left-steps", "skip"]


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
        items += [_shortened(tree, index, node, family, context) for node in long]
    return items, long


def _shortened(tree: StepTree, index: int, node: int, family: Layout, context: int) -> Item:
    """The longest end of the node's path that fits, laid out as a solution of its own."""
    path = tree.path(node)
    for first in range(1, len(path)):
        encoded = encode_tree(StepTree.chain(tree.problem, [tree.nodes[n] for n in path[first:]]), family)
        last = len(path) - first - 1
        if encoded.path_tokens(last) <= context:
            return Item(encoded, [(last,)], index, node)
    raise DataError(
        f"{describe(tree, node)}: the problem and this step alone exceed the model's context of {context} tokens",
        reason="too-long",
    )
