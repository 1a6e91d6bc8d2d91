"""Expectations against brute force: every ordered draw of n solutions, each decided by the library's own functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.search.curves import best_of, chance_of_none, draw_orders, pass_at, vote_accuracy
from prism_prm.search.select import best_of_n, vote


def brute_force(size: int, n: int, is_right: Callable[[tuple[int, ...]], bool]) -> float:
    return float(np.mean([is_right(draw) for draw in itertools.permutations(range(size), n)]))


def all_orders(size: int) -> np.ndarray:
    return np.array(list(itertools.permutations(range(size))))


POOLS = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.lists(st.booleans(), min_size=size, max_size=size),
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=size, max_size=size),
        st.lists(st.integers(-1, 2), min_size=size, max_size=size),
    )
)


@given(POOLS)
@settings(deadline=None)
def test_everything_equals_brute_force_on_small_pools(pool: tuple[list[bool], list[float], list[int]]) -> None:
    given_correct, scores, groups = pool
    size = len(scores)
    keys = [None if group < 0 else str(group) for group in groups]
    correct = np.array([right and key is not None for right, key in zip(given_correct, keys, strict=True)])
    weights, numbers = np.array(scores), np.array(groups)
    ns = list(range(1, size + 1))

    def vote_is_right(draw: tuple[int, ...]) -> bool:
        winner = vote([keys[i] for i in draw], weights[list(draw)])
        return winner is not None and bool(correct[draw[winner]])

    expected_oracle = [brute_force(size, n, lambda draw: bool(correct[list(draw)].any())) for n in ns]
    expected_best = [brute_force(size, n, lambda draw: bool(correct[draw[best_of_n(weights[list(draw)])]])) for n in ns]
    expected_vote = [brute_force(size, n, vote_is_right) for n in ns]
    assert pass_at(correct, ns) == pytest.approx(expected_oracle, abs=1e-12)
    assert best_of(correct, weights, ns) == pytest.approx(expected_best, abs=1e-12)
    # All orders at once instead of random ones: the averages must then be exact.
    assert vote_accuracy(numbers, correct, weights, ns, all_orders(size)) == pytest.approx(expected_vote, abs=1e-12)


def test_chances_are_ratios_of_binomials() -> None:
    for n in (1, 3, 10):
        expected = [math.comb(10 - r, n) / math.comb(10, n) for r in range(11)]
        assert chance_of_none(10, n) == pytest.approx(expected, abs=1e-15)


def test_a_pool_with_known_sums() -> None:
    """Scores 4 > 3 > 2 > 1, right are the second and the last; of 2 drawn the best is right in 2 + 0 of 6 pairs."""
    correct, scores = np.array([False, True, False, True]), np.array([4.0, 3.0, 2.0, 1.0])
    assert best_of(correct, scores, [1, 2, 3, 4]) == pytest.approx([2 / 4, 2 / 6, 1 / 4, 0])
    assert pass_at(correct, [1, 2, 3, 4]) == pytest.approx([1 / 2, 5 / 6, 1, 1])


def test_tied_scores_share_their_chance() -> None:
    correct = np.array([True, False, False])
    assert best_of(correct, np.zeros(3), [1, 2, 3]) == pytest.approx([1 / 3] * 3)


def test_draws_are_seeded_permutations_that_come_near_the_exact_value() -> None:
    orders = draw_orders(8, 20_000, [0, 5])
    assert (np.sort(orders, axis=1) == np.arange(8)).all()
    assert (orders == draw_orders(8, 20_000, [0, 5])).all()
    assert (orders != draw_orders(8, 20_000, [0, 6])).any()
    groups = np.array([0, 0, 0, 1, 1, 2, 2, -1])
    correct = groups == 0
    weights = np.array([0.2, 0.3, 0.9, 0.8, 0.7, 0.1, 0.4, 1.0])
    keys = [None if group < 0 else str(group) for group in groups]

    def is_right(draw: tuple[int, ...]) -> bool:
        winner = vote([keys[i] for i in draw], weights[list(draw)])
        return winner is not None and bool(correct[draw[winner]])

    exact = [brute_force(8, n, is_right) for n in (1, 2, 4)]
    assert vote_accuracy(groups, correct, weights, [1, 2, 4], orders) == pytest.approx(exact, abs=0.012)


def test_a_wrong_answer_may_share_a_group_with_a_right_one() -> None:
    """50% is right where 50 is asked for, and yet votes with 0.5: who speaks for the group decides."""
    groups, correct = np.array([0, 0]), np.array([True, False])
    assert vote_accuracy(groups, correct, np.array([0.9, 0.1]), [1, 2], all_orders(2)) == pytest.approx([0.5, 1.0])
    assert vote_accuracy(groups, correct, np.ones(2), [1, 2], all_orders(2)) == pytest.approx([0.5, 0.5])


def test_a_right_solution_without_a_vote_is_not_selected() -> None:
    """A program can crash on a public test and pass the hidden ones."""
    orders = draw_orders(2, 200, [0])
    nobody = vote_accuracy(np.array([-1, -1]), np.array([True, False]), np.ones(2), [1, 2], orders)
    assert nobody.tolist() == [0.0, 0.0]
    one = vote_accuracy(np.array([-1, 0]), np.array([True, True]), np.ones(2), [1, 2], orders)
    assert one[1] == 1.0
    assert one[0] == pytest.approx(0.5, abs=0.1)
