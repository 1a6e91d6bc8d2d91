"""Pairs beyond the context are read after the last steps that fit."""

from __future__ import annotations

import numpy as np
import pytest

from prism_prm.data.pair_examples import Examples, as_one_tree
from prism_prm.models.packing import encode_tree
from prism_prm.train.batches import in_windows, too_long
from prism_prm.tree import Step, StepTree


class Letters:
    """A token per character, and one after each step, where it is read."""

    def prompt_ids(self, problem: str) -> list[int]:
        return [0] * len(problem)

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        return [0] * (len(text) + 1), len(text)


def examples() -> Examples:
    """Six steps of three tokens; after the first and after all, right and wrong candidates; one is too big for all."""
    texts = ["a1", "a2", "a3", "a4", "a5", "a6", "ok", "no", "bad", "x" * 30, "b2"]
    parents = (-1, 0, 1, 2, 3, 4, 5, 5, 5, 5, 0)
    tree = StepTree(7, "Q", tuple(Step(text) for text in texts), parents, ())
    columns = [np.array(values) for values in ([0, 1, 2, 3], [7] * 4, [6, 6, 1, 6], [7, 8, 10, 9], [7] * 4)]
    return Examples({7: tree}, *columns)


def test_long_pairs_share_the_prefix_of_their_window() -> None:
    family, context = Letters(), 16  # the problem and four steps and a half
    pairs = examples()
    long = too_long(pairs, family, context)
    assert long.tolist() == [0, 1, 3]
    shorter, too_big = in_windows(pairs, long, family, context)
    assert too_big.tolist() == [3]
    assert (shorter.tree.tolist(), shorter.ids.tolist()) == ([8, 8, 7, 7], [0, 1, 2, 3])
    tree, groups = as_one_tree(shorter, [0, 1])
    # a6 does not fit, so its window starts two steps before: half of the room is 7.5 tokens. The others fit there, too.
    assert tree.texts(range(len(tree.nodes))) == ["a4", "a5", "a6", "ok", "no", "bad"]
    assert tree.parents == (-1, 0, 1, 2, 2, 2)
    assert groups == [(3, 4), (3, 5)]
    assert max(map(encode_tree(tree, family).path_tokens, range(6))) <= context
    assert len(shorter.by_prefix().ids) == 3, "pairs of one prefix stay together"
    assert shorter.content_key() != pairs.content_key()


def test_labeled_steps_are_read_in_windows() -> None:
    tree = StepTree.chain("Q", [Step(f"a{i}", label=1.0) for i in range(8)], tree_id=3)
    nodes = np.arange(8)
    steps = Examples({3: tree}, nodes, np.full(8, 3), nodes, nodes, np.full(8, 3), np.ones(8))
    long = too_long(steps, Letters(), 16)
    assert long.tolist() == [5, 6, 7]
    shorter, too_big = in_windows(steps, long, Letters(), 16)
    assert not len(too_big)
    for i, first in ((5, 3), (6, 3), (7, 3)):
        short, ((node,),) = as_one_tree(shorter, [i])
        assert short.texts(short.path(node)) == [f"a{k}" for k in range(first, i + 1)]
        assert short.nodes[node].label == pytest.approx(1.0)
