"""The plan of updates: every pair once, the stated number of pairs, never too many of one tree."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.errors import ConfigError
from prism_prm.training.plan import plan_updates, share


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    per_update=st.integers(1, 20),
    per_tree=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_every_pair_once_and_no_tree_too_often(sizes: list[int], per_update: int, per_tree: int, seed: int) -> None:
    trees = np.repeat(np.arange(len(sizes)), sizes)
    updates = plan_updates(trees, per_update=per_update, per_tree=per_tree, seed=(seed,))
    assert sorted(np.concatenate(updates).tolist()) == list(range(len(trees)))
    for update in updates:
        assert 1 <= len(update) <= per_update
        assert max(Counter(trees[update].tolist()).values()) <= per_tree


def test_updates_are_full_while_trees_last() -> None:
    trees = np.repeat(np.arange(100), 10)
    updates = plan_updates(trees, per_update=64, per_tree=4, seed=(0,))
    assert [len(update) for update in updates] == [64] * 15 + [40]


def test_one_big_tree_makes_short_updates_rather_than_break_the_limit() -> None:
    updates = plan_updates(np.zeros(7, dtype=int), per_update=5, per_tree=2, seed=(0,))
    assert [len(update) for update in updates] == [2, 2, 2, 1]


def test_the_seed_decides() -> None:
    trees = np.repeat(np.arange(20), 5)
    one, again, other = (
        [update.tolist() for update in plan_updates(trees, per_update=8, per_tree=3, seed=seed)]
        for seed in ((1, 0), (1, 0), (1, 1))
    )
    assert one == again != other


def test_pairs_of_a_tree_come_in_groups() -> None:
    trees = np.repeat(np.arange(50), 8)
    updates = plan_updates(trees, per_update=16, per_tree=8, seed=(0,))
    assert all(len(set(trees[update].tolist())) == 2 for update in updates)


def test_no_pairs_make_no_updates() -> None:
    assert plan_updates(np.array([], dtype=int), per_update=4, per_tree=2, seed=(0,)) == []


def test_impossible_numbers() -> None:
    with pytest.raises(ConfigError, match="per_tree is 0"):
        plan_updates(np.zeros(3, dtype=int), per_update=4, per_tree=0, seed=(0,))


def test_share_evens_the_load() -> None:
    owner = share(np.array([5.0, 3.0, 2.0, 2.0, 2.0]), 2)
    assert owner.tolist() == [0, 1, 1, 0, 1]
    assert share(np.array([1.0, 2.0]), 1).tolist() == [0, 0]
