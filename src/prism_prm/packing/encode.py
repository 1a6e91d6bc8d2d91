"""Trees as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prism_prm.errors import DataError
from prism_prm.records import ROOT, StepTree


class Layout(Protocol):
    """The part of a PRM family that packing needs."""

    def prompt_ids(self, problem: str) -> list[int]: ...
    def step_ids(self, text: str, index: int) -> tuple[list[int], int]: ...


@dataclass(frozen=True, slots=True)
class EncodedTree:
    """A tree as token ids; cheap to make and to keep."""

    prompt: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    """Per node the ids that it adds to its parent's."""
    reads: tuple[int, ...]
    """Per node the offset in its ids where it is read."""
    parents: tuple[int, ...]
    starts: tuple[int, ...]
    """Per node how many tokens come before it on its path."""

    def path_tokens(self, node: int) -> int:
        """How many tokens are needed to read the node."""
        return self.starts[node] + self.reads[node] + 1


def encode_tree(tree: StepTree, family: Layout) -> EncodedTree:
    """The tree's token ids as the family lays them out."""
    try:
        prompt = tuple(family.prompt_ids(tree.problem))
    except DataError as error:
        raise DataError(f"{describe(tree)}, the problem: {error}", reason=error.reason) from None
    ids: list[tuple[int, ...]] = []
    reads: list[int] = []
    starts: list[int] = []
    for node, (depth, parent) in enumerate(zip(tree.depths(), tree.parents, strict=True)):
        try:
            step, read = family.step_ids(tree.nodes[node].text, depth)
        except DataError as error:
            raise DataError(f"{describe(tree, node)}: {error}", reason=error.reason) from None
        assert 0 <= read < len(step), "a step is read at one of its own tokens"
        ids.append(tuple(step))
        reads.append(read)
        starts.append(len(prompt) if parent == ROOT else starts[parent] + len(ids[parent]))
    return EncodedTree(prompt, tuple(ids), tuple(reads), tree.parents, tuple(starts))


def describe(tree: StepTree, node: int | None = None) -> str:
    """A tree and perhaps one of its nodes, for messages."""
    name = f" ({tree.name})" if tree.name else ""
    place = f"{tree.where}: " if tree.where else ""
    return f"{place}tree {tree.tree_id}{name}" + ("" if node is None else f", node {node}")
