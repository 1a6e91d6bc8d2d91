"""Export pairs and trees in the formats of other trainers, as a stream of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.console import Advance, ignore
from prism_prm.data.inputs import keep_inputs
from prism_prm.data.tables import check_split, iter_pairs, iter_trees, no_such_node
from prism_prm.errors import ConfigError
from prism_prm.files import atomic_file
from prism_prm.tree import StepPair, StepTree

SEPARATOR = "\n\n"


def trl_stepwise(folder: str | Path, *, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield TRL's prompt / completions / labels: the labeled trunk, and every other labeled candidate with its prefix.

    A row needs a label for each of its steps, so the trunk ends before the first step without one. Labels are true or
    false if all labels of a row are 0 or 1, and soft otherwise.
    """
    check_split(folder, split)
    for tree in iter_trees(folder, split=split):
        num_labeled = next((i for i, n in enumerate(tree.trunk) if tree.nodes[n].label is None), len(tree.trunk))
        on_trunk = set(tree.trunk)
        others = [tree.path(node) for node in range(len(tree.nodes)) if node not in on_trunk]
        for path in (tree.trunk[:num_labeled], *others):
            labels = [tree.nodes[node].label for node in path]
            if not path or None in labels:
                continue
            hard = all(label in (0.0, 1.0) for label in labels)
            yield {
                "prompt": tree.problem,
                "completions": tree.texts(path),
                "labels": [bool(label) for label in labels] if hard else labels,
            }


def trl_preference(folder: str | Path, *, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield TRL's prompt / chosen / rejected: the prompt is the problem and the earlier steps, the rest one step."""
    for pair, tree, rejected in _pairs_with_texts(folder, split):
        prompt = [tree.problem, *tree.texts(tree.path(tree.parents[pair.chosen]))]
        yield {
            "prompt": "".join(part + SEPARATOR for part in prompt),
            "chosen": tree.nodes[pair.chosen].text,
            "rejected": rejected,
        }


def plain(folder: str | Path, *, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield everything about each pair, with its texts."""
    for pair, tree, rejected in _pairs_with_texts(folder, split):
        yield {
            "pair_id": pair.pair_id, "tree_id": pair.tree_id, "name": tree.name, "kind": pair.kind,
            "position": pair.position, "problem": tree.problem,
            "prefix": tree.texts(tree.path(tree.parents[pair.chosen])), "chosen": tree.nodes[pair.chosen].text,
            "rejected": rejected,
        }  # fmt: skip


def export_pairs(
    folder: str | Path,
    format: str,
    out: str | Path,
    *,
    split: str | None = None,
    advance: Advance = ignore,
) -> int:
    """Write pairs or labeled solutions as JSON lines for other trainers; returns the number of records.

    Args:
        folder: a folder written by `build_pairs`.
        format: trl-stepwise, trl-preference or jsonl (everything about each pair).
        out: the file to write.
        split: write only this split. By default all.
        advance: a callback, called with the number of newly written records.

    Example:
        >>> summary = build_pairs("labeled.jsonl", "pairs")
        >>> export_pairs("pairs", "trl-preference", "pairs.jsonl") == summary["pairs"]["total"]
        True
    """
    if format not in EXPORTS:
        raise ConfigError(f"Unknown format {format!r}. Known: {', '.join(EXPORTS)}.")
    keep_inputs([folder], [out])
    count = 0
    with atomic_file(out) as aside, aside.open("wb") as file:
        for count, record in enumerate(EXPORTS[format](folder, split=split), start=1):
            file.write(msgspec.json.encode(record) + b"\n")
            if count % 1000 == 0:
                advance(1000)
        advance(count % 1000)
    return count


EXPORTS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "trl-stepwise": trl_stepwise,
    "trl-preference": trl_preference,
    "jsonl": plain,
}
"""Format name → a function that yields the records of a folder of `prism pairs`."""


def _pairs_with_texts(folder: str | Path, split: str | None) -> Iterator[tuple[StepPair, StepTree, str]]:
    """Yield every pair with its tree and the text of its rejected step.

    Pairs come tree by tree, so one pass over both tables is enough; only random negatives, which come last and refer
    to any tree, need all trees in memory.
    """
    check_split(folder, split)
    trees = iter_trees(folder)
    tree: StepTree | None = None
    all_trees: dict[int, StepTree] = {}
    for pair in iter_pairs(folder, split=split):
        if pair.kind == "random":
            all_trees = all_trees or {tree.tree_id: tree for tree in iter_trees(folder)}
            tree, other = all_trees.get(pair.tree_id), all_trees.get(pair.rejected_tree)
        else:
            if tree is None or tree.tree_id != pair.tree_id:
                tree = next((each for each in trees if each.tree_id == pair.tree_id), None)
            other = tree
        for owner, tree_id, node in ((tree, pair.tree_id, pair.chosen), (other, pair.rejected_tree, pair.rejected)):
            if owner is None or not 0 <= node < len(owner.nodes):
                raise no_such_node(folder, pair.pair_id, tree_id, node, 0 if owner is None else len(owner.nodes))
        assert tree is not None
        assert other is not None
        yield pair, tree, other.nodes[pair.rejected].text
