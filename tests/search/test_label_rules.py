"""From rollouts to labels: intervals, rules, when to stop, and what that comes to."""

from __future__ import annotations

from math import comb

import pytest

from prism_prm import PrismError
from prism_prm.errors import SettingError
from prism_prm.search.label_rules import (
    LabelSettings,
    RolloutTally,
    expected,
    find_rule,
    first_error_chances,
    is_certain,
    is_decided,
)
from prism_prm.stats import wilson


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_at_the_ends() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 8)[0] == 0.0
    assert wilson(8, 8)[1] == 1.0
    assert wilson(3, 8, 0.5)[0] > wilson(3, 8, 0.95)[0]


@pytest.mark.parametrize(
    ("rule", "labels", "needed"),
    [
        ("any", [0, 1, 1, 1, 1], 1), ("half", [0, 0, 1, 1, 1], 2), ("value>0.25", [0, 0, 1, 1, 1], 2),
        ("value>0.75", [0, 0, 0, 0, 1], 4), ("soft", [0, 0.25, 0.5, 0.75, 1], 1),
    ],
)  # fmt: skip
def test_rules(rule: str, labels: list[float], needed: int) -> None:
    found = find_rule(rule)
    assert [found.label(hits / 4) for hits in range(5)] == labels
    assert found.needed(4) == needed


@pytest.mark.parametrize("rule", ["all", "value>1", "value>-0.1", "value>x", "value>nan", "value>", ">0.5"])
def test_unknown_rules_are_refused(rule: str) -> None:
    with pytest.raises(PrismError, match=r"Unknown label rule .* Known: any, half, soft, or value>T"):
        find_rule(rule)
    with pytest.raises(SettingError, match="rule"):
        LabelSettings(rule=rule)


def test_a_soft_label_has_no_threshold_to_stop_at() -> None:
    assert LabelSettings(rule="soft").rule == "soft"
    with pytest.raises(SettingError, match="adaptive stops at a threshold"):
        LabelSettings(rule="soft", method="adaptive")


def test_a_label_is_certain_when_the_rest_cannot_change_it() -> None:
    some, half = find_rule("any"), find_rule("half")
    assert is_certain(RolloutTally(1, 1), some, 8)
    assert not is_certain(RolloutTally(0, 7), some, 8)
    assert is_certain(RolloutTally(0, 8), some, 8)
    assert [is_certain(RolloutTally(hits, 5), half, 8) for hits in range(6)] == [True, False, False, False, True, True]


def test_a_label_is_decided_when_the_interval_excludes_the_threshold() -> None:
    half = find_rule("half")
    assert not is_decided(RolloutTally(3, 3), half, 64, 0.95)  # from 0.44
    assert is_decided(RolloutTally(4, 4), half, 64, 0.95)  # from 0.51
    assert is_decided(RolloutTally(0, 4), half, 64, 0.95)
    assert is_decided(RolloutTally(2, 2), half, 64, 0.8)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_monte_carlo_is_binomial(value: float) -> None:
    found = expected(value, LabelSettings(rollouts=8, rule="half"))
    assert found.right == pytest.approx(sum(comb(8, k) * value**k * (1 - value) ** (8 - k) for k in range(4, 9)))
    assert found.rollouts == pytest.approx(8)


@pytest.mark.parametrize("per_round", [1, 2, 3])
@pytest.mark.parametrize("value", [0.02, 0.4, 0.95])
def test_stopping_where_the_label_is_certain_changes_no_label(value: float, per_round: int) -> None:
    settings = LabelSettings(rollouts=8, rule="any", per_round=per_round)
    plain = expected(value, settings)
    for method in ("binary", "adaptive"):  # a positive share of rollouts is certain, and nothing else is ever decided
        found = expected(value, LabelSettings(method=method, rollouts=8, rule="any", per_round=per_round))
        assert found.right == pytest.approx(plain.right) == pytest.approx(1 - (1 - value) ** 8)
        assert found.rollouts < 8
    if per_round == 1:  # the first success ends it: a geometric number, cut at 8
        assert found.rollouts == pytest.approx((1 - (1 - value) ** 8) / value)


@pytest.mark.parametrize(("rule", "most"), [("any", 8), ("any", 16), ("any", 32), ("half", 16), ("half", 32)])
def test_adaptive_needs_at_most_half_of_the_rollouts_for_the_same_labels(rule: str, most: int) -> None:
    """Seven right steps in ten of value 0.9, wrong ones of 0.03: about what the embedded world has."""
    ways = [LabelSettings(method=method, rollouts=most, rule=rule) for method in ("monte-carlo", "adaptive")]
    right, wrong = ([expected(value, way) for way in ways] for value in (0.9, 0.03))
    spent = [0.7 * a.rollouts + 0.3 * b.rollouts for a, b in zip(right, wrong, strict=True)]
    accuracy = [0.7 * a.right + 0.3 * (1 - b.right) for a, b in zip(right, wrong, strict=True)]
    assert spent[1] < 0.5 * spent[0]
    assert accuracy[1] == pytest.approx(accuracy[0], abs=0.002)


def test_bisection_by_hand() -> None:
    """Three steps and a wrong answer: the second step is asked first."""
    settings = LabelSettings(method="binary", rollouts=1, rule="any")
    a, b, c = 0.9, 0.6, 0.2
    found = first_error_chances([a, b, c, 0.0], settings, ended=True)
    assert found == pytest.approx([(1 - b) * (1 - a), (1 - b) * a, b * (1 - c), b * c, 0.0])
    unended = first_error_chances([a, b], settings, ended=False)
    assert unended == pytest.approx([(1 - a), a * (1 - b), a * b])
