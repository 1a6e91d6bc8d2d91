"""The objectives against values computed by hand, and their gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prism_prm.errors import ConfigError
from prism_prm.losses import Objective, pointwise, step_contrastive


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_step_contrastive_by_hand() -> None:
    loss = Objective().of_pairs(tensor(logit(0.85), logit(0.40)), tensor(logit(0.80), logit(0.45)))
    expected = [math.log(1 + math.exp(-0.05)), math.log(1 + math.exp(0.05))]
    assert loss.tolist() == pytest.approx(expected, abs=1e-12)


def test_on_probabilities_the_loss_has_a_floor_and_on_log_odds_it_has_none() -> None:
    chosen, rejected = tensor(60.0), tensor(-60.0)
    assert Objective().of_pairs(chosen, rejected).item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-12)
    assert Objective(space="log-odds").of_pairs(chosen, rejected).item() < 1e-50


def test_temperature_and_margin() -> None:
    loss = Objective(space="log-odds", temperature=0.5, margin=0.3).of_pairs(tensor(1.0), tensor(0.2))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-(0.8 - 0.3) / 0.5)), abs=1e-12)


def test_pointwise_by_hand_hard_soft_and_weighted() -> None:
    odds = tensor(logit(0.9), logit(0.9), logit(0.3))
    labels = torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64)
    expected = [-math.log(0.9), -math.log(0.1), -0.25 * math.log(0.3) - 0.75 * math.log(0.7)]
    assert pointwise(odds, labels).tolist() == pytest.approx(expected, abs=1e-12)
    weighted = [-2 * math.log(0.9), -3 * math.log(0.1), -2 * 0.25 * math.log(0.3) - 3 * 0.75 * math.log(0.7)]
    objective = Objective("bce", on="labels", positive_weight=2, negative_weight=3)
    assert objective.of_steps(odds, labels).tolist() == pytest.approx(weighted, abs=1e-12)


def test_bce_on_pairs_is_the_mean_of_its_two_steps() -> None:
    loss = Objective("bce").of_pairs(tensor(logit(0.9)), tensor(logit(0.2)))
    assert loss.item() == pytest.approx((-math.log(0.9) - math.log(0.8)) / 2, abs=1e-12)


def test_hybrid_adds_the_anchor() -> None:
    chosen, rejected = tensor(logit(0.9)), tensor(logit(0.2))
    contrastive = math.log(1 + math.exp(-0.7))
    both = Objective("hybrid", anchor_weight=0.5).of_pairs(chosen, rejected).item()
    assert both == pytest.approx(contrastive + 0.5 * (-math.log(0.9) - math.log(0.8)) / 2, abs=1e-12)
    one = Objective("hybrid", anchor_weight=2, anchor_on="chosen").of_pairs(chosen, rejected).item()
    assert one == pytest.approx(contrastive - 2 * math.log(0.9), abs=1e-12)


@given(centre=st.floats(-0.5, 0.5), margin=st.floats(-1, 1))
def test_gradient_is_minus_sigma_of_minus_margin_and_zero_at_the_centre(centre: float, margin: float) -> None:
    centre_, margin_ = tensor(centre), tensor(margin)
    step_contrastive(centre_ + margin_ / 2, centre_ - margin_ / 2).sum().backward()
    assert margin_.grad is not None
    assert centre_.grad is not None
    assert margin_.grad.item() == pytest.approx(-1 / (1 + math.exp(margin)), abs=1e-12)
    assert centre_.grad.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(space="log-odds", temperature=0.7, margin=0.1),
        Objective("bce", positive_weight=2.0),
        Objective("hybrid", anchor_weight=0.3),
        Objective("hybrid", anchor_on="chosen"),
    ],
)
def test_gradients_by_finite_differences(objective: Objective) -> None:
    assert torch.autograd.gradcheck(objective.of_pairs, (tensor(0.3, -2.0, 4.0), tensor(-0.4, 1.0, 3.5)))


def test_no_overflow_at_extreme_log_odds() -> None:
    for objective in (Objective(space="log-odds"), Objective("bce"), Objective("hybrid")):
        loss = objective.of_pairs(tensor(-1e4, 1e4), tensor(1e4, -1e4))
        loss.sum().backward()
        assert torch.isfinite(loss).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sc", "on": "labels"}, "needs name = 'bce'"),
        ({"temperature": 0.0}, "temperature = 0.0: must be above 0"),
        ({"anchor_weight": -1.0}, "must be 0 or more"),
    ],
)
def test_impossible_objectives(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**settings)  # type: ignore[arg-type]
