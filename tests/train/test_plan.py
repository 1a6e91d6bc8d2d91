"""The plan of updates: every pair once, the stated number of pairs, never too many of one tree."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.data.tables import read_pairs
from prism_prm.errors import ConfigError
from prism_prm.train.batches import over_limit, plan_updates, share, tree_groups

GOLDEN = (
    [[17, 12, 18, 15, 13, 16], [14, 10, 11, 0, 3, 1], [2, 4, 20, 21, 19, 9], [8, 6, 7, 5]],
    [[10, 11, 5, 9, 8, 6], [20, 21, 19, 17, 12, 18], [7, 14, 15, 13, 0, 3], [16, 1, 2, 4]],
)
"""Plans of 22 pairs without a limit, and with at most 3 of a tree."""


def test_updates_are_full_while_trees_last() -> None:
    trees = np.repeat(np.arange(100), 10)
    updates = plan_updates(trees, per_update=64, per_tree=4, seed=(0,))
    assert [len(update) for update in updates] == [64] * 15 + [40]


def most_of_a_tree(trees: np.ndarray, updates: list[np.ndarray]) -> Counter[int]:
    """Tree → how many of its pairs are at most in one update."""
    found = Counter[int]()
    for update in updates:
        found |= Counter(trees[update].tolist())
    return found


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    per_update=st.integers(1, 20),
    per_tree=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_updates_are_even_and_a_tree_has_no_more_in_them_than_it_must(
    sizes: list[int], per_update: int, per_tree: int, seed: int
) -> None:
    trees = np.repeat(np.arange(len(sizes)), sizes)
    updates = plan_updates(trees, per_update=per_update, per_tree=per_tree, seed=(seed,))
    assert sorted(np.concatenate(updates).tolist()) == list(range(len(trees)))
    lengths = [len(update) for update in updates]
    assert max(lengths) <= per_update
    block = min(per_tree, per_update)
    needed = math.ceil(len(trees) / per_update)
    assert len(updates) <= max(needed + 1, math.ceil(math.ceil(len(trees) / block) / (per_update // block)))
    assert len(updates) <= needed + 1 or max(lengths) - min(lengths) <= block
    for tree, most in most_of_a_tree(trees, updates).items():
        assert most <= max(per_tree, block * math.ceil(sizes[tree] / (block * len(updates))))


def test_independent_pairs_come_in_updates_of_even_size() -> None:
    """A third of the pairs is of one tree in ten; updates that hold a pair per tree are full nevertheless."""
    trees = np.repeat(np.arange(100), [95] * 10 + [20] * 90)
    updates = plan_updates(trees, per_update=25, per_tree=1, seed=(0,))
    assert [len(update) for update in updates] == [25] * 110
    assert max(most_of_a_tree(trees, updates).values()) == 1


def test_a_limit_that_cannot_be_met_is_broken_by_as_little_as_possible() -> None:
    trees = np.repeat(np.arange(40), [150] + [10] * 39)
    updates = plan_updates(trees, per_update=8, per_tree=1, seed=(0,))
    assert sorted(len(update) for update in updates) == [7] * 4 + [8] * 64
    most = most_of_a_tree(trees, updates)
    assert most.pop(0) == 3, "150 pairs in 68 updates"
    assert set(most.values()) == {1}
    assert over_limit(trees, updates, 1) == (1, 3)
    alone = plan_updates(np.zeros(7, dtype=int), per_update=5, per_tree=2, seed=(0,))
    assert sorted(len(update) for update in alone) == [3, 4]
    assert over_limit(np.zeros(7, dtype=int), alone, 2) == (1, 4)
    assert over_limit(trees, updates, 3) == (0, 0)


def test_planning_is_near_linear() -> None:
    """Looking at all waiting pairs for each update would take minutes here."""
    trees = np.repeat(np.arange(11), [60_000] + [200] * 10)
    updates = plan_updates(trees, per_update=62, per_tree=1, seed=(0,))
    assert [len(update) for update in updates] == [62] * 1000
    assert over_limit(trees, updates, 1) == (1, 60)


def plan_by_scanning(trees: np.ndarray, per_update: int, per_tree: int, seed: tuple[int, ...]) -> list[list[int]]:
    """The obvious way: every update takes groups in order, leaving out what its trees have too much of."""
    waiting = [group.tolist() for group in tree_groups(trees, min(per_tree, per_update), np.random.default_rng(seed))]
    updates = []
    while waiting:
        update: list[int] = []
        taken, left = Counter[int](), []
        for group in waiting:
            tree = int(trees[group[0]])
            count = min(per_update - len(update), per_tree - taken[tree], len(group))
            update += group[:count]
            taken[tree] += count
            if group[count:]:
                left.append(group[count:])
        waiting = left
        updates.append(update)
    return updates


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    per_update=st.integers(1, 20),
    per_tree=st.integers(1, 25),
    seed=st.integers(0, 5),
)
def test_a_random_order_that_fills_its_updates_is_kept(
    sizes: list[int], per_update: int, per_tree: int, seed: int
) -> None:
    trees = np.repeat(np.arange(len(sizes)), sizes)
    scanned = plan_by_scanning(trees, per_update, per_tree, (seed,))
    planned = plan_updates(trees, per_update=per_update, per_tree=per_tree, seed=(seed,))
    if len(scanned) <= math.ceil(len(trees) / per_update) + 1:
        assert [update.tolist() for update in planned] == scanned
    else:
        assert len(planned) < len(scanned) or max(map(len, planned)) - min(map(len, planned)) <= per_tree


def test_the_plan_is_the_golden_one() -> None:
    trees = np.repeat(np.arange(6), [5, 1, 4, 2, 7, 3])
    unlimited = plan_updates(trees, per_update=6, per_tree=6, seed=(3, 0))
    limited = plan_updates(trees, per_update=6, per_tree=3, seed=(3, 0))
    assert [update.tolist() for update in unlimited] == GOLDEN[0]
    assert [update.tolist() for update in limited] == GOLDEN[1]


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


def test_independent_pairs_of_prm800k(real_data: Path, tmp_path: Path) -> None:
    """Trees of very different sizes: the four with more pairs than there are updates must come twice in some."""
    from prism_prm.data.build_pairs import PairRecipe, build_pairs
    from prism_prm.data.pair_rules import PairSettings
    from prism_prm.data.reader import Reader

    build_pairs(Reader([real_data / "prm800k" / "phase1_train.jsonl"]), tmp_path, PairRecipe(PairSettings()))
    trees = read_pairs(tmp_path)["tree_id"].to_numpy()
    updates = plan_updates(trees, per_update=64, per_tree=1, seed=(0, 0))
    too_many = sum(size > len(updates) for size in Counter(trees.tolist()).values())
    assert {len(update) for update in updates} <= {63, 64}
    assert over_limit(trees, updates, 1) == (too_many, 2)
    assert too_many == 4
