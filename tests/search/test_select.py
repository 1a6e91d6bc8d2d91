from __future__ import annotations

import numpy as np
import pytest

from prism_prm.errors import DataError
from prism_prm.search.select import (
    SELECTORS,
    Candidates,
    best_of_n,
    majority_vote,
    relative_weights,
    vote,
    weighted_vote,
)

SPELLINGS = ["1/2", "3", "0.5", "3", r"\frac{1}{2}", None, r"50\%", "7"]


def test_best_of_n_takes_the_first_of_equals() -> None:
    assert best_of_n([0.1, 0.9, 0.9]) == 1
    assert best_of_n([-np.inf, -np.inf]) == 0


@pytest.mark.parametrize("scores", [[], [0.1, float("nan")], [[0.1]]])
def test_best_of_n_rejects_what_it_cannot_rank(scores: list[float]) -> None:
    with pytest.raises(DataError):
        best_of_n(scores)


def test_equivalent_spellings_vote_together() -> None:
    result = majority_vote(SPELLINGS)
    assert result.weights == {"0.5": 4.0, "3": 2.0, "7": 1.0}
    assert (result.index, result.answer) == (0, "1/2")


def test_weights_decide_and_the_best_member_speaks() -> None:
    result = weighted_vote(SPELLINGS, [0.1, 0.9, 0.2, 0.95, 0.1, 1.0, 0.3, 0.5])
    assert result.weights == pytest.approx({"0.5": 0.7, "3": 1.85, "7": 0.5})
    assert (result.index, result.answer) == (3, "3")


def test_ties_go_to_the_group_seen_first_whatever_the_order_of_adding() -> None:
    assert vote(["a", "b", "b", "a"], np.ones(4)) == 0
    assert vote([None, "b", "a", "a", "b"], np.ones(5)) == 1
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit; that must not decide
    assert vote(["a", "b", "a", "b", "a", "b"], np.array([0.3, 0.1, 0.2, 0.2, 0.1, 0.3])) == 0
    assert vote(["b", "a", "b", "a", "b", "a"], np.array([0.1, 0.3, 0.2, 0.2, 0.3, 0.1])) == 4


def test_nobody_votes() -> None:
    assert vote([None, None], np.ones(2)) is None
    assert majority_vote([None]).answer is None
    assert vote(["a", "b"], np.zeros(2)) == 0


def test_bad_weights_are_rejected() -> None:
    with pytest.raises(DataError, match="not negative"):
        weighted_vote(["1"], [-0.5])
    with pytest.raises(DataError, match="2 scores for 1 answers"):
        weighted_vote(["1"], [0.5, 0.1])


def test_selectors_take_log_scores() -> None:
    keys, log_scores = ["a", "b", "b", "c", "c", "c"], np.log([0.9, 0.5, 0.6, 0.2, 0.2, 0.2])
    assert {name: select(Candidates(keys, log_scores)) for name, select in SELECTORS.items()} == {
        "argmax": 0, "majority": 3, "weighted": 2, "public-tests": 0,
    }  # fmt: skip


def test_relative_weights_do_not_underflow() -> None:
    assert relative_weights([-2000.0, -2000.0 + np.log(0.5)]) == pytest.approx([1.0, 0.5])
    assert relative_weights([-np.inf, -np.inf]).tolist() == [0.0, 0.0]
