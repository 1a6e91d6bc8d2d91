"""What validation measures on, and what it leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from some_pairs import random_examples

from prism_prm.errors import DataError
from prism_prm.pairs.examples import Split, as_one_tree
from prism_prm.training.recipe import ValidationSettings
from prism_prm.training.validation import Validation

Tiny = Callable[..., Any]


def a_split() -> Split:
    """One step of the first tree is as likely right as wrong."""
    pairs = random_examples()
    tree = pairs.trees[0]
    nodes = (replace(tree.nodes[0], label=0.5), *tree.nodes[1:])
    trees = {**pairs.trees, 0: replace(tree, nodes=nodes)}
    return Split(trees, replace(pairs, trees=trees), np.array(["annotated"] * len(pairs), dtype=object))


def test_what_is_left_out_is_counted(tiny_prm: Tiny) -> None:
    prm = copy.copy(tiny_prm("qwen", "qwen2"))
    split = a_split()
    everything = Validation.of(split, prm, ValidationSettings())
    num_steps = sum(len(tree.nodes) for tree in split.trees.values())
    assert everything.left_out == {"undecided_steps": 1, "too_long_steps": 0, "too_long_pairs": 0}
    assert (len(everything.steps), len(everything.pairs)) == (num_steps - 1, len(split.pairs))
    assert everything.described() == (
        f"validation: {num_steps - 1} steps and {len(split.pairs)} pairs; left out: 1 undecided steps"
    )

    encoded = {tree_id: prm.encode_tree(tree) for tree_id, tree in split.trees.items()}
    lengths = {
        (tree_id, node): encoded[tree_id].path_tokens(node)
        for tree_id, tree in split.trees.items()
        for node in range(len(tree.nodes))
    }
    prm.context = int(np.median(list(lengths.values())))
    long_steps = sum(length > prm.context for key, length in lengths.items() if key != (0, 0))
    long_pairs = 0
    for indices in split.pairs.by_tree():
        tree, groups = as_one_tree(split.pairs, indices)
        path_tokens = prm.encode_tree(tree).path_tokens
        long_pairs += sum(max(map(path_tokens, group)) > prm.context for group in groups)
    some = Validation.of(split, prm, ValidationSettings())
    assert some.left_out == {"undecided_steps": 1, "too_long_steps": long_steps, "too_long_pairs": long_pairs}
    assert long_steps > 10
    assert long_pairs > 10
    assert (len(some.steps), len(some.pairs)) == (num_steps - 1 - long_steps, len(split.pairs) - long_pairs)
    assert len(some.kinds) == len(some.pairs)
    assert f"{long_steps} too long steps, {long_pairs} too long pairs" in some.described()


def test_a_split_of_which_nothing_fits_says_so(tiny_prm: Tiny) -> None:
    prm = copy.copy(tiny_prm("qwen", "qwen2"))
    prm.context = 1
    with pytest.raises(DataError, match=r"no labelled step \(left out: .*'too_long_steps': 74"):
        Validation.of(a_split(), prm, ValidationSettings())
