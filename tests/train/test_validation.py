"""What validation measures on, and what it leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_pairs import random_examples

from prism_prm.calibration import sigmoid
from prism_prm.console import ignore
from prism_prm.data.pair_examples import Split, as_one_tree, labeled_steps
from prism_prm.errors import DataError
from prism_prm.metrics import Ranking, Target
from prism_prm.store import ScoreStore, Share
from prism_prm.train.margins import score_examples
from prism_prm.train.recipe import ValidationSettings
from prism_prm.train.validation import Validation
from prism_prm.tree import Estimate

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
    assert everything.describe() == (
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
    assert f"{long_steps} too long steps, {long_pairs} too long pairs" in some.describe()


def test_a_split_of_which_nothing_fits_says_so(tiny_prm: Tiny) -> None:
    prm = copy.copy(tiny_prm("qwen", "qwen2"))
    prm.context = 1
    with pytest.raises(DataError, match=r"no labeled step \(left out: .*'too_long_steps': 74"):
        Validation.of(a_split(), prm, ValidationSettings())


def test_a_threshold_needs_labels_that_are_not_from_rollouts(
    tiny_prm: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollouts call many wrong steps right, and a threshold that passes 90 % of these passes wrong steps by design."""
    prm = copy.copy(tiny_prm("qwen", "qwen2"))
    prm.card = replace(prm.card, threshold=0.625)
    pairs = random_examples()
    store, settings = ScoreStore(tmp_path, prm), ValidationSettings()

    def threshold(of: Callable[[int], bool]) -> float:
        """Of a split in which the labels of some trees are from rollouts."""
        guess = Estimate(0.5, 8, 0.2, 0.8)
        trees = {
            number: replace(tree, nodes=tuple(replace(node, estimate=guess) for node in tree.nodes))
            if of(number)
            else tree
            for number, tree in pairs.trees.items()
        }
        split = Split(trees, replace(pairs, trees=trees), np.array(["annotated"] * len(pairs), dtype=object))
        found = Validation.of(split, prm, settings)
        return float(found.measure(store, settings, Share(), ignore)["threshold"])

    def expected(of: Callable[[int], bool]) -> float:
        steps = labeled_steps({number: tree for number, tree in pairs.trees.items() if not of(number)})
        scores = sigmoid(score_examples(store, steps)[:, 0])
        return Ranking.of(steps.right(), scores).threshold(Target("tpr", settings.tpr))

    assert threshold(lambda _: False) == expected(lambda _: False)
    assert caplog.records == []
    assert threshold(lambda number: number % 2 == 0) == expected(lambda number: number % 2 == 0)
    assert threshold(lambda _: True) == 0.625
    assert [record.message for record in caplog.records] == [
        "validation: all labels come from rollouts, which call wrong steps right, so no threshold is chosen; PRMs "
        "keep the base PRM's. Set validation.threshold, or validate on steps labeled by people."
    ]
    given = ValidationSettings(threshold=0.25)
    split = Split(pairs.trees, pairs, np.array(["annotated"] * len(pairs), dtype=object))
    assert Validation.of(split, prm, given).measure(store, given, Share(), ignore)["threshold"] == 0.25


def test_auroc_within_prefix_and_problem(tiny_prm: Tiny) -> None:
    """Against the obvious loop over pairs of steps."""
    validation = Validation.of(a_split(), tiny_prm("qwen", "qwen2"), ValidationSettings())
    steps, right = validation.steps, validation.steps.right()
    scores = np.random.default_rng(0).random(len(steps))
    found = validation.rankings(right, scores)
    for name, prefix in (("auroc_prefix", True), ("auroc_problem", False)):
        hits = [
            scores[i] > scores[j]
            for i in np.flatnonzero(right)
            for j in np.flatnonzero(~right)
            if steps.trees[steps.tree[i]].problem == steps.trees[steps.tree[j]].problem
            and (not prefix or steps.tree[i] == steps.tree[j])
            and (not prefix or len({steps.trees[steps.tree[k]].parents[steps.chosen[k]] for k in (i, j)}) == 1)
        ]
        assert len(hits) > 1
        assert found[name] == pytest.approx(np.mean(hits))
        assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"]
    assert found["auroc"] == Ranking.of(right, scores).metrics()["auroc"]
