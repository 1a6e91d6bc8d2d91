from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem
from prism_prm.errors import ConfigError, DataError
from prism_prm.search.curves import Curve, check_ns, compute_curves, count_smaller
from prism_prm.search.grade_pool import Grade, GradedPool
from prism_prm.search.select import SELECTORS, Candidates


def graded_pool(*problems: str) -> GradedPool:
    """A pool from words whose letters are answers; "a" is right, "-" is none."""
    entries = tuple(
        PoolProblem(TaskProblem(f"{i}", "a"), tuple(Solution((c,), c) for c in word)) for i, word in enumerate(problems)
    )
    grades = tuple(tuple(Grade(c, "boxed", c == "a", "abcd".find(c), "ok") for c in word) for word in problems)
    return GradedPool(Pool(entries), grades)


def by_name(curves: list[Curve]) -> dict[tuple[str, str, str], Curve]:
    return {(curve.method, curve.prm, curve.aggregator): curve for curve in curves}


def test_a_pool_with_known_sums() -> None:
    """Three a and one b; two a, one b and none; scores put the b first in both."""
    graded = graded_pool("aaab", "aab-")
    scores = [np.array([s]) for s in (0.1, 0.2, 0.3, 0.9, 0.4, 0.3, 0.9, 0.1)]
    curves = by_name(compute_curves(graded, {"prm": scores}, aggregators=["last"], num_draws=4000))
    assert curves["mean", "", ""].values.tolist() == [[0.75, 0.5]] * 3
    assert curves["oracle", "", ""].values == pytest.approx(np.array([[3 / 4, 1 / 2], [1, 5 / 6], [1, 1]]))
    assert curves["best-of-n", "prm", "last"].values == pytest.approx(
        np.array([[3 / 4, 1 / 2], [1 / 2, 1 / 2], [0, 0]])
    )
    majority = curves["majority", "", ""].values
    assert majority[0].tolist() == [0.75, 0.5], "one solution: exact"
    assert majority[1] == pytest.approx([3 / 4, (1 + 2 + 2 / 2) / 6], abs=0.03)
    assert majority[2] == pytest.approx([1, 1])
    # 0.9 against 0.1 + 0.2 + 0.3, and against 0.4 + 0.3: b wins whenever it is drawn
    assert curves["weighted", "prm", "last"].values[2] == pytest.approx([0, 0])
    assert [point.value for point in curves["oracle", "", ""].points] == pytest.approx([0.625, 11 / 12, 1])
    assert [point.num_clusters for point in curves["mean", "", ""].points] == [2, 2, 2]


def test_unscored_solutions_rank_last_and_have_no_weight() -> None:
    graded = graded_pool("abb")
    curves = by_name(compute_curves(graded, {"prm": [np.array([0.1]), None, None]}, aggregators=["min"]))
    assert curves["best-of-n", "prm", "min"].values[-1].tolist() == [1.0]
    assert curves["weighted", "prm", "min"].values[-1].tolist() == [1.0]
    assert curves["majority", "", ""].values[-1].tolist() == [0.0]


def test_equal_scores_make_the_weighted_vote_a_majority_vote() -> None:
    graded = graded_pool("aabbc", "abcd-")
    scores = [np.array([0.7])] * 10
    curves = by_name(compute_curves(graded, {"prm": scores}, aggregators=["mean"]))
    assert (curves["weighted", "prm", "mean"].values == curves["majority", "", ""].values).all()


def test_two_prms_are_compared_on_the_same_draws() -> None:
    graded = graded_pool(*["ab"] * 20)
    good, bad = [np.array([p]) for p in (0.9, 0.1)], [np.array([p]) for p in (0.1, 0.9)]
    curves = by_name(compute_curves(graded, {"good": good * 20, "bad": bad * 20}, aggregators=["last"], ns=[2]))
    gain = curves["best-of-n", "good", "last"].minus(curves["best-of-n", "bad", "last"], 2)
    assert (gain.difference, gain.low, gain.high) == (1, 1, 1)
    assert gain.p < 0.01
    none = curves["best-of-n", "good", "last"].minus(curves["weighted", "good", "last"], 2)
    assert (none.difference, none.p) == (0, 1)


def test_a_problem_without_a_solution_is_not_solved() -> None:
    """It counts, for every n and every way to select, and does not limit n."""
    graded = graded_pool("aa", "", "ab")
    scores = [np.array([p]) for p in (0.1, 0.2, 0.9, 0.3)]
    curves = by_name(compute_curves(graded, {"prm": scores}, aggregators=["last"], num_draws=10))
    assert {curve.ns for curve in curves.values()} == {(1, 2)}
    assert all(curve.values[:, 1].tolist() == [0, 0] for curve in curves.values())
    at_two = {method: curve.values[1].tolist() for (method, _, _), curve in curves.items() if method != "majority"}
    assert at_two == {"mean": [1, 0, 0.5], "oracle": [1, 0, 1], "best-of-n": [1, 0, 1], "weighted": [1, 0, 1]}
    assert curves["mean", "", ""].points[0].value == pytest.approx(0.5)
    assert compute_curves(graded, {}, aggregators=["last"], ns=[2])[0].ns == (2,)
    with pytest.raises(DataError, match="none of the 2 problems has a solution"):
        compute_curves(graded_pool("", ""), {}, aggregators=["last"])


def test_the_seed_decides_the_draws() -> None:
    graded = graded_pool("aaabbbccd")
    runs = [compute_curves(graded, {}, aggregators=["last"], num_draws=50, seed=seed)[1].values for seed in (0, 0, 1)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


def test_n_goes_by_powers_of_two_to_the_largest_problem() -> None:
    graded = graded_pool("aaaaaa", "ababab" + "a", "b")
    assert compute_curves(graded, {}, aggregators=["last"])[0].ns == (1, 2, 4, 7)
    assert compute_curves(graded, {}, aggregators=["last"], ns=[6, 3, 3])[0].ns == (3, 6)
    assert count_smaller(graded, (1, 2, 4, 7)) == {2: 1, 4: 1, 7: 2}
    assert check_ns(graded.pool, [7, 1]) == (1, 7)
    with pytest.raises(ConfigError, match=r"n = \[8\] is not possible.*no problem.*more than 7 solutions"):
        check_ns(graded.pool, [1, 8])


WORDS = st.text("ab-", min_size=1, max_size=4)
"""The answers of a problem's solutions."""


@given(st.lists(WORDS, min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_uneven_pools_equal_every_draw_written_out(words: list[str], random: Random) -> None:
    """At each n, a problem with fewer solutions takes all it has; all orders stand in for the votes' random ones."""
    graded = graded_pool(*words)
    own = [[random.choice([0.25, 0.5, 1.0]) for _ in word] for word in words]
    scores = [np.array([score]) for scores in own for score in scores]

    def accuracy(rule: str, word: str, weights: list[float], n: int) -> float:
        draws = list(itertools.permutations(range(len(word)), min(n, len(word))))
        keys = {"best-of-n": "argmax"}
        right = 0
        for draw in draws:
            logs = np.log([weights[i] for i in draw])
            votes = [None if word[i] == "-" else word[i] for i in draw]
            chosen = SELECTORS[keys.get(rule, rule)](Candidates(votes, logs))
            right += chosen is not None and word[draw[chosen]] == "a"
        return right / len(draws)

    with pytest.MonkeyPatch.context() as patch:
        orders = lambda size, *_: np.array(list(itertools.permutations(range(size))))  # noqa: E731
        patch.setattr("prism_prm.search.curves.draw_orders", orders)
        curves = by_name(compute_curves(graded, {"prm": scores}, aggregators=["min"], ns=[1, 2, 3, 4]))
    for rule, prm in (("best-of-n", "prm"), ("weighted", "prm"), ("majority", "")):
        found = curves[rule, prm, "min" if prm else ""].values
        expected = [
            [accuracy(rule, word, weights, n) for word, weights in zip(words, own, strict=True)] for n in (1, 2, 3, 4)
        ]
        assert found == pytest.approx(np.array(expected), abs=1e-12), rule
    oracle = [[np.mean([any(word[i] == "a" for i in draw) for draw in itertools.permutations(range(len(word)),
              min(n, len(word)))]) for word in words] for n in (1, 2, 3, 4)]  # fmt: skip
    assert curves["oracle", "", ""].values == pytest.approx(np.array(oracle), abs=1e-12)


def test_problems_without_a_reference_are_not_measured() -> None:
    whole, half = graded_pool("ab", "b", "aab"), graded_pool("ab", "b", "aab")
    problems, grades = list(half.pool.problems), list(half.grades)
    problems[1] = replace(problems[1], problem=TaskProblem("1"))
    grades[1] = tuple(replace(grade, correct=None) for grade in grades[1])
    half = GradedPool(Pool(tuple(problems)), tuple(grades))
    assert (half.measured, half.num_unmeasured) == ((0, 2), 1)
    scores = {"prm": [np.array([p]) for p in (0.1, 0.2, 0.9, 0.3, 0.1, 0.8)]}
    for some, every in zip(
        compute_curves(half, scores, aggregators=["min"]),
        compute_curves(whole, scores, aggregators=["min"]),
        strict=True,
    ):
        assert (some.values == every.values[:, [0, 2]]).all(), "the others keep their draws and their scores"
        assert some.points[0].num_clusters == 2
    none = GradedPool(Pool((problems[1],)), (grades[1],))
    with pytest.raises(DataError, match="none of the 1 problems has a reference answer"):
        compute_curves(none, {}, aggregators=["min"])
