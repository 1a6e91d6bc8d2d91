"""Training examples: pairs of steps, all steps of a prefix, or labeled steps, as columns, with the trees that hold
their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prism_prm.arrays import Ints
from prism_prm.data.tables import check_pairs, check_split, iter_trees, read_pairs
from prism_prm.errors import DataError
from prism_prm.tree import Step, StepTree

COLUMNS = ("ids", "tree", "chosen", "rejected", "rejected_tree", "labels")


NO_STEP = -1
"""Fills up the rows of prefixes with fewer steps than others."""


@dataclass(frozen=True)
class Examples:
    """N pairs; N labeled steps (`labels` is not None, only `chosen` is used); N prefixes (see `by_prefix`); or N
    solutions (see `outcomes`)."""

    trees: Mapping[int, StepTree]
    """All trees that the columns refer to, by id."""
    ids: Ints
    """The pair's id, or the step's ordinal, for messages and logs."""
    tree: Ints
    chosen: Ints
    rejected: Ints
    rejected_tree: Ints
    labels: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Ints) -> Examples:
        """Select examples, in the given order."""
        taken = {name: column[indices] for name in COLUMNS if (column := getattr(self, name)) is not None}
        return replace(self, **taken)

    def content_key(self) -> str:
        """Hash the examples in their order: ids, nodes, labels and the content of their trees."""
        digest = hashlib.blake2b(digest_size=16)
        for name in COLUMNS:
            column = getattr(self, name)
            digest.update(f"{name} {None if column is None else len(column)} ".encode())
            digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
        trees = np.unique(np.concatenate([self.tree, self.rejected_tree.ravel()]))
        for tree_id in trees[trees != NO_STEP].tolist():
            digest.update(f"{tree_id} {self.trees[tree_id].content_hash()} ".encode())
        return digest.hexdigest()

    def right(self) -> NDArray[np.bool_]:
        """Return which labeled steps are right."""
        assert self.labels is not None, "pairs have no labels"
        return self.labels > 0.5

    @property
    def in_lists(self) -> bool:
        """Whether an example is a prefix with any number of right and wrong steps, or a solution."""
        return self.chosen.ndim == 2

    def by_prefix(self) -> Examples:
        """Join the pairs of each prefix: `chosen`, `rejected` and `rejected_tree` get a row per prefix, filled up with
        NO_STEP. The id of a prefix is that of its first pair."""
        assert self.labels is None, "only pairs share prefixes"
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (tree, chosen) in enumerate(zip(self.tree.tolist(), self.chosen.tolist(), strict=True)):
            groups.setdefault((tree, self.trees[tree].parents[chosen]), []).append(i)
        right = [list(dict.fromkeys(self.chosen[pairs].tolist())) for pairs in groups.values()]
        wrong = [
            list(dict.fromkeys(zip(self.rejected[pairs].tolist(), self.rejected_tree[pairs].tolist(), strict=True)))
            for pairs in groups.values()
        ]
        first = np.array([pairs[0] for pairs in groups.values()], dtype=np.int64)
        rejected, rejected_tree = (_rows([[step[k] for step in steps] for steps in wrong]) for k in (0, 1))
        return Examples(self.trees, self.ids[first], self.tree[first], _rows(right), rejected, rejected_tree)

    def by_tree(self) -> list[Ints]:
        """Return the indices of each tree's examples."""
        order = np.argsort(self.tree, kind="stable")
        starts = np.flatnonzero(np.diff(self.tree[order], prepend=-1))
        return [part for part in np.split(order, starts[1:]) if len(part)]


def _rows(lists: Sequence[Sequence[int]]) -> Ints:
    """Lists as the rows of one array, filled up with NO_STEP."""
    rows = np.full((len(lists), max(map(len, lists), default=0)), NO_STEP)
    for row, values in zip(rows, lists, strict=True):
        row[: len(values)] = values
    return rows


def labeled_steps(trees: Mapping[int, StepTree]) -> Examples:
    """Return every step that has a label, once."""
    rows = [
        (tree_id, node, step.label)
        for tree_id, tree in trees.items()
        for node, step in enumerate(tree.nodes)
        if step.label is not None
    ]
    tree = np.array([row[0] for row in rows], dtype=np.int64)
    node = np.array([row[1] for row in rows], dtype=np.int64)
    labels = np.array([row[2] for row in rows], dtype=np.float64)
    return Examples(trees, np.arange(len(rows)), tree, node, node, tree, labels)


def outcomes(trees: Mapping[int, StepTree]) -> Examples:
    """Return every solution that is known to be right or wrong, once; its steps fill a row of `chosen`.

    A solution is wrong if one of its steps is, and right if its last step is right and it is not known to be
    unfinished. A label of the last step alone, the verdict on the answer, is enough.
    """
    rows = []
    for tree_id, tree in trees.items():
        labels = [tree.nodes[node].label for node in tree.trunk]
        if any(label is not None and label < 0.5 for label in labels):
            rows.append((tree_id, tree.trunk, 0.0))
        elif labels and labels[-1] is not None and labels[-1] > 0.5 and tree.ended is not False:
            rows.append((tree_id, tree.trunk, 1.0))
    ids = np.array([row[0] for row in rows], dtype=np.int64)
    steps = _rows([row[1] for row in rows])
    return Examples(trees, np.arange(len(rows)), ids, steps, steps, ids, np.array([row[2] for row in rows]))


def as_one_tree(examples: Examples, indices: Sequence[int] | Ints) -> tuple[StepTree, list[tuple[int, ...]]]:
    """Combine examples of ONE tree into a tree to score: the tree with extra leaves, and per example the nodes to read,
    right ones first.

    A rejected step that follows the chosen one's prefix is read where it is. A later step (lookahead) or a step of
    another tree (random) is added as a leaf after that prefix, once for all examples that use it.
    """
    tree = examples.trees[int(examples.tree[indices[0]])]
    leaves: list[tuple[int, Step]] = []
    added: dict[tuple[int, int, int], int] = {}
    groups: list[tuple[int, ...]] = []
    for i in indices:
        columns = (examples.chosen, examples.rejected, examples.rejected_tree)
        right, wrong, others = (np.atleast_1d(column[i]).tolist() for column in columns)
        assert examples.tree[i] == tree.tree_id, "the examples are of one tree"
        nodes = [node for node in right if node != NO_STEP]
        if examples.labels is not None:
            groups.append(tuple(nodes))
            continue
        parent = tree.parents[nodes[0]]
        for rejected, other in zip(wrong, others, strict=True):
            if rejected == NO_STEP:
                break
            if other == tree.tree_id and tree.parents[rejected] == parent:
                nodes.append(rejected)
                continue
            key = (parent, other, rejected)
            if key not in added:
                added[key] = len(tree.nodes) + len(leaves)
                leaves.append((parent, examples.trees[other].nodes[rejected]))
            nodes.append(added[key])
        groups.append(tuple(nodes))
    return (tree.with_leaves(leaves) if leaves else tree), groups


@dataclass(frozen=True)
class Split:
    """The trees and pairs of one split."""

    trees: Mapping[int, StepTree]
    pairs: Examples
    kinds: np.ndarray
    """The kind of each pair."""

    @classmethod
    def read(cls, folder: Path, split: str | None) -> Split:
        """Read the tables that `prism pairs` wrote; None reads all splits."""
        check_split(folder, split)
        trees = {tree.tree_id: tree for tree in iter_trees(folder, split=split)}
        table = read_pairs(folder, split=split)
        columns = ("pair_id", "tree_id", "chosen", "rejected", "rejected_tree")
        arrays = {name: table[name].to_numpy().astype(np.int64) for name in columns}
        check_pairs(folder, arrays, {tree_id: len(tree.nodes) for tree_id, tree in trees.items()})
        return cls(trees, Examples(trees, *arrays.values()), np.array(table["kind"].to_pylist(), dtype=object))

    def examples(self, on: str) -> Examples:
        """Return what an objective trains on: `pairs`, labeled steps (`labels`), or solutions (`outcomes`)."""
        of_trees = {"labels": labeled_steps, "outcomes": outcomes}
        examples = self.pairs if on == "pairs" else of_trees[on](self.trees)
        if not len(examples):
            what = {"labels": "labeled steps", "outcomes": "solutions known to be right or wrong"}.get(on, on)
            raise DataError(f"The training data has no {what} left; see `summary.json` for what was dropped and why.")
        return examples
