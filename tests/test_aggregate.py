from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.aggregate import AGGREGATORS, is_scored, log_score, solution_score
from prism_prm.errors import ConfigError, DataError

STEPS = [0.9, 0.5, 0.8]


@pytest.mark.parametrize(
    ("how", "score"), [("last", 0.8), ("min", 0.5), ("product", 0.36), ("mean", 2.2 / 3), ("soft-min", None)]
)
def test_values_a_person_can_check(how: str, score: float | None) -> None:
    if score is None:  # weights exp(-4), 1, exp(-3), by hand
        e4, e3 = math.exp(-4), math.exp(-3)
        score = (0.9 * e4 + 0.5 + 0.8 * e3) / (e4 + 1 + e3)
    assert solution_score(STEPS, how) == pytest.approx(score, rel=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(sorted(AGGREGATORS)))
def test_every_score_lies_between_product_and_maximum(steps: list[float], how: str) -> None:
    score = solution_score(steps, how, ["a"] * len(steps))
    highest = 1 if how == "adjusted-min" else max(steps)
    assert solution_score(steps, "product") * (1 - 1e-9) <= score <= highest * (1 + 1e-9)
    if how == "adjusted-min":
        assert score >= min(steps) * (1 - 1e-9)
    if how == "soft-min":
        assert min(steps) * (1 - 1e-9) <= score <= solution_score(steps, "mean") * (1 + 1e-9)


def test_min_adjusted_for_the_number_of_steps() -> None:
    """The exponent is 1 / (1 + 1/2 + 1/3) = 6/11 for three steps; one step stays as it is."""
    assert solution_score([0.25], "adjusted-min") == pytest.approx(0.25)
    assert solution_score([0.125, 1.0], "adjusted-min") == pytest.approx(0.25), "0.125 to the power of 2/3"
    assert solution_score(STEPS, "adjusted-min") == pytest.approx(0.5 ** (6 / 11))
    assert solution_score([0.0, 1.0], "adjusted-min") == 0
    assert solution_score([1.0] * 9, "adjusted-min") == 1


@pytest.mark.parametrize("theta", [0.05, 1.0])
def test_adjusted_min_has_the_same_mean_for_every_number_of_steps(theta: float) -> None:
    """Of steps with p = u^θ, u uniform: `min` falls with their number, adjusted-min is −θ on average."""
    rng = np.random.default_rng(0)
    means = {
        how: [np.mean([log_score(steps, how) for steps in rng.random((4000, k)) ** theta]) for k in (1, 4, 16)]
        for how in ("min", "adjusted-min")
    }
    assert means["min"] == pytest.approx([-theta, -theta * 25 / 12, -theta * 3.3807], rel=0.05)
    assert means["adjusted-min"] == pytest.approx([-theta] * 3, rel=0.05)


def test_long_solutions_do_not_all_tie_at_zero() -> None:
    better, worse = [0.1] * 1000, [0.1] * 999 + [0.09]
    assert solution_score(better, "product") == solution_score(worse, "product") == 0.0
    assert log_score(better, "product") == pytest.approx(1000 * math.log(0.1))
    assert log_score(better, "product") > log_score(worse, "product")


def test_a_step_of_probability_zero() -> None:
    assert {how: solution_score([0.0, 1.0], how) for how in ("last", "min", "product", "mean")} == {
        "last": 1.0, "min": 0.0, "product": 0.0, "mean": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("steps", [[], [math.nan], [1.2], [-0.1, 0.5]])
def test_bad_scores_are_an_error_not_a_zero(steps: list[float]) -> None:
    with pytest.raises(DataError):
        log_score(steps, "mean")


def test_an_unknown_aggregator_names_the_known() -> None:
    with pytest.raises(ConfigError, match="last, min, product, mean, soft-min, adjusted-min"):
        solution_score(STEPS, "max")


THOUGHT = ["<think>x = 2", "So 4. Wait, x = 3", "so 6</think>", "x is 3", "The answer is 6."]
SCORES = [0.2, 0.3, 0.6, 0.9, 0.8]


@pytest.mark.parametrize(
    ("how", "score"),
    [
        ("last-k", (0.6 + 0.9 + 0.8) / 3),
        ("mean-of-lowest-k", (0.2 + 0.3 + 0.6) / 3),
        ("response-only", 0.8),
        ("min-after-last-revision", 0.3),
        ("min", 0.2),
    ],
)
def test_aggregators_for_solutions_that_correct_themselves(how: str, score: float) -> None:
    assert solution_score(SCORES, how, THOUGHT) == pytest.approx(score, rel=1e-12)


def test_few_steps_and_solutions_that_still_think() -> None:
    assert solution_score([0.4, 0.6], "last-k") == pytest.approx(0.5)
    assert solution_score([0.4, 0.6], "mean-of-lowest-k") == pytest.approx(0.5)
    assert solution_score([0.2, 0.3], "response-only", ["<think>a", "b"]) == pytest.approx(0.3)
    assert solution_score([0.2, 0.3], "response-only", ["a", "b"]) == pytest.approx(0.2)
    with pytest.raises(ConfigError, match="response-only needs the texts of the steps"):
        solution_score([0.2, 0.3], "response-only")


def test_thinking_that_is_only_context_has_no_scores() -> None:
    nan = math.nan
    assert solution_score([nan, nan, nan, 0.9, 0.8], "min", THOUGHT) == 0.8
    assert is_scored([nan, nan, nan, 0.9, 0.8], THOUGHT)
    assert not is_scored([nan, 0.3, nan, 0.9, 0.8], THOUGHT)
    assert not is_scored([nan, nan, nan, nan, 0.8], THOUGHT)
    assert not is_scored([nan, nan], ["<think>a", "b"])
    assert not is_scored([], [])
    with pytest.raises(DataError, match="probabilities"):
        solution_score([0.2, 0.3, nan, 0.9, 0.8], "min", THOUGHT)
