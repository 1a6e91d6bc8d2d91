"""The maps of log-odds, against values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.calibration import TILT, Calibration, Method, fit_points, right_probability, sigmoid
from prism_prm.errors import ConfigError, DataError

NEAR = 40 * TILT
"""What the slope on top can change a probability by, at log-odds up to 40."""


def fitted(method: Method, probability: list[float], right: list[int]) -> Calibration:
    at, values = fit_points(method, np.array(probability), np.array(right, bool))
    return Calibration("x.jsonl", "f1", 0.5, method=method, log_odds=at, values=values)


def test_isotonic_by_hand() -> None:
    # With one more right step at 0.1 and one more wrong step at 0.6 the shares are 1/2, 1, 0, 0, 1/2. The third breaks
    # the order: 1, 0, 0 become 1/3, which is below the first 1/2, so the first four become 2/5.
    scores = [0.1, 0.2, 0.3, 0.4, 0.6]
    found = fitted("isotonic", scores, [0, 1, 0, 0, 1]).of_probability(np.array(scores))
    assert found == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.5], abs=NEAR)
    assert (np.diff(found) > 0).all(), "steps of a level keep their order"


def test_isotonic_never_says_0_or_1() -> None:
    found = fitted("isotonic", [0.0] * 9 + [1.0] * 9, [0] * 9 + [1] * 9)
    assert found.of_probability(np.array([0.0, 0.001, 0.999, 1.0])) == pytest.approx([0.1, 0.1, 0.9, 0.9], abs=0.02)


def test_platt_by_hand() -> None:
    # Of the steps with log-odds 1, 3 of 4 are right; with -1, 1 of 4. Platt's targets are 5/6 and 1/6, of which the
    # means are 2/3 and 1/3: the line with slope log 2 through 0.
    one = float(sigmoid(np.array(1.0)))
    found = fitted("platt", [one] * 4 + [1 - one] * 4, [1, 1, 1, 0, 0, 0, 0, 1])
    assert found.apply(np.array([1.0, 0.0, -1.0])) == pytest.approx([math.log(2), 0.0, -math.log(2)], abs=2 * TILT)
    assert found.of_probability(np.array([one])) == pytest.approx([2 / 3], abs=NEAR)
    # Beyond the scores that were seen, nothing becomes more certain.
    assert found.of_probability(np.array([0.999999])) == pytest.approx([2 / 3], abs=NEAR)


def test_platt_has_the_largest_likelihood() -> None:
    rng = np.random.default_rng(0)
    log_odds = rng.normal(size=500) * 3
    right = rng.random(500) < sigmoid(0.4 * log_odds + 1)
    found = fitted("platt", sigmoid(log_odds).tolist(), right.tolist())
    num = right.sum()
    target = np.where(right, (num + 1) / (num + 2), 1 / (500 - num + 2))
    p = found.of_probability(sigmoid(log_odds))
    assert [np.mean(p - target), np.mean((p - target) * log_odds)] == pytest.approx([0, 0], abs=1e-3)


@given(
    st.lists(st.tuples(st.integers(-40, 40), st.booleans()), min_size=2, max_size=40),
    st.sampled_from(["platt", "isotonic"]),
)
def test_a_map_keeps_the_order_and_can_be_undone(rows: list[tuple[int, bool]], method: Method) -> None:
    right = [right for _, right in rows]
    scores = [float(sigmoid(np.array(x / 4))) for x, _ in rows]
    if len(set(right)) < 2:
        return
    try:
        found = fitted(method, scores, [int(r) for r in right])
    except DataError:  # right steps do not score higher
        return
    log_odds = np.linspace(-15, 15, 301)
    mapped = found.apply(log_odds)
    assert (np.diff(mapped) > 0).all()
    probability = right_probability(log_odds, found)
    assert (np.diff(probability) > 0).all()
    assert ((probability > 0) & (probability < 1)).all()
    for at in (0, 77, 150, 300):
        assert found.undo(float(probability[at])) == pytest.approx(float(sigmoid(log_odds[at])), abs=1e-6)


def test_without_a_method_nothing_changes() -> None:
    none = Calibration("x.jsonl", "tpr=0.9", 0.7)
    log_odds = np.array([-800.0, -0.1, 0.0, 37.0, np.nan])
    assert np.array_equal(right_probability(log_odds, none), right_probability(log_odds, None), equal_nan=True)
    assert np.array_equal(right_probability(log_odds, None), sigmoid(log_odds), equal_nan=True)
    assert none.undo(0.7) == 0.7


def test_nan_stays_nan() -> None:
    found = fitted("isotonic", [0.1, 0.9, 0.2, 0.8], [0, 1, 0, 1])
    assert np.isnan(found.apply(np.array([np.nan, 1.0]))).tolist() == [True, False]


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_say_nothing_are_refused(method: Method) -> None:
    with pytest.raises(DataError, match="right steps do not score higher than wrong ones"):
        fitted(method, [0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1])


@pytest.mark.parametrize(
    "bad",
    [
        {"log_odds": (0.0, 1.0)}, {"log_odds": (0.0,), "values": (0.0, 1.0)}, {"log_odds": (1.0, 0.0)},
        {"values": (1.0, 0.0)}, {"log_odds": (0.0, math.inf)}, {"threshold": 1.5}, {"method": "none"}, {"method": "x"},
    ],
)  # fmt: skip
def test_a_senseless_map_is_refused(bad: dict[str, Any]) -> None:
    given = {"log_odds": (0.0, 1.0), "values": (0.0, 1.0), "method": "platt", "threshold": 0.5}
    if bad == {"log_odds": (0.0, 1.0)}:
        bad = {"values": ()}
    with pytest.raises(ConfigError):
        Calibration("x.jsonl", "f1", **{**given, **bad})
