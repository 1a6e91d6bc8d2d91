"""The given value, else the card's, else ours; and it is said which."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from prism_prm.aggregate import CardValues, card_values, choose_aggregator, choose_threshold, log_score, solution_score
from prism_prm.errors import ConfigError
from prism_prm.models.card import Card

CARD = CardValues("product", 0.3)


def test_what_is_given_wins_then_the_card_then_the_default() -> None:
    assert str(choose_aggregator("last", CARD)) == "last, as given"
    assert str(choose_aggregator(None, CARD)) == "product, from the PRM's card"
    assert str(choose_aggregator(None, None)) == "min, the default, since no card sets it"
    assert str(choose_threshold(0.0, CARD)) == "0.0, as given"
    assert str(choose_threshold(None, CARD)) == "0.3, from the PRM's card"
    assert str(choose_threshold(None, None)) == "0.5, the default, since no card sets it"


def test_only_a_scorer_with_a_card_has_its_values() -> None:
    @dataclass
    class Mine:
        card: Card

    assert card_values(Mine(Card("qwen", threshold=0.3, aggregator="product"))) == CARD
    assert card_values(None) is None


def test_only_aggregators_that_there_are_can_be_named() -> None:
    for name in ("prod", "max"):
        with pytest.raises(
            ConfigError, match=f"Unknown aggregator '{name}'. Known: last, min, product, mean, soft-min"
        ):
            choose_aggregator(name, None)
        with pytest.raises(ConfigError, match=f"Unknown aggregator '{name}'"):
            Card("qwen", aggregator=name)
    for refused in (lambda: choose_aggregator("", None), lambda: Card("qwen", aggregator="")):
        with pytest.raises(ConfigError, match="aggregator"):
            refused()


def test_a_solution_is_as_good_as_its_worst_step_by_default() -> None:
    assert solution_score([0.2, 0.9]) == pytest.approx(0.2)
    assert log_score([0.2, 0.9]) == log_score([0.2, 0.9], "min")
