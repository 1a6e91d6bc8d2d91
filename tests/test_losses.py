"""The objectives against values computed by hand, and their gradients against autograd."""

from __future__ import annotations

import itertools
import math
from typing import Any

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


def sides(*rows: str) -> tuple[Tensor, Tensor]:
    """Masks of the right and the wrong steps of prefixes written as "rww."."""
    right, wrong = (torch.tensor([[step == side for step in row] for row in rows]) for side in "rw")
    return right, wrong


def choose_all(scores: Tensor, row: str) -> Tensor:
    """The conditional logit by its definition: a sum over all choices of as many steps."""
    used = [k for k, side in enumerate(row) if side in "rw"]
    right = [k for k in used if row[k] == "r"]
    choices = torch.stack([scores[list(some)].sum() for some in itertools.combinations(used, len(right))])
    return choices.logsumexp(0) - scores[right].sum()


def test_listwise_with_one_step_of_each_kind_is_the_loss_of_the_pair() -> None:
    chosen, rejected = tensor(0.3, -2.0), tensor(-0.4, 1.0)
    lists = torch.stack([chosen, rejected], 1)
    for space in ("probability", "log-odds"):
        same: dict[str, Any] = {"space": space, "temperature": 0.7, "margin": 0.1, "negative_weight": 2.0}
        for pair, of_list in (("sc", "listwise"), ("hybrid", "listwise+bce")):
            for anchor in ("both", "chosen"):
                expected = Objective(pair, anchor_on=anchor, **same).of_pairs(chosen, rejected)  # type: ignore[arg-type]
                found = Objective(of_list, anchor_on=anchor, **same).of_lists(lists, *sides("rw", "rw"))  # type: ignore[arg-type]
                assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_listwise_by_hand() -> None:
    one = Objective("listwise", space="log-odds").of_lists(tensor(1.0, 0.0, -1.0)[None], *sides("rww"))
    assert one.item() == pytest.approx(math.log(1 + math.exp(-1) + math.exp(-2)), abs=1e-12)
    two = Objective("listwise", space="log-odds").of_lists(tensor(1.0, 0.0, -1.0)[None], *sides("rrw"))
    assert two.item() == pytest.approx(math.log(math.e + 1 + math.exp(-1)) - 1, abs=1e-12)


def test_listwise_by_its_definition_with_gradients() -> None:
    rows = ("rrwww", "rw...", "rwrw.", "rrrrw")
    scores = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = Objective("listwise", space="log-odds").of_lists(scores, *sides(*rows))
    expected = torch.stack([choose_all(scores[i], row) for i, row in enumerate(rows)])
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    (by_definition,) = torch.autograd.grad(expected.sum(), scores)
    torch.testing.assert_close(gradient, by_definition, atol=1e-12, rtol=0)
    assert gradient.sum(1).tolist() == pytest.approx([0] * 4, abs=1e-12), "an offset of the prefix cancels"


def test_listwise_does_not_overflow() -> None:
    scores = tensor(1e4, -1e4, 1e4, -1e4)
    loss = Objective("listwise+bce", space="log-odds").of_lists(scores[None], *sides("rrw."))
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


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
        ({"name": "listwise", "on": "labels"}, "needs name = 'bce', not 'listwise'"),
        ({"temperature": 0.0}, "temperature = 0.0: must be above 0"),
        ({"anchor_weight": -1.0}, "must be 0 or more"),
    ],
)
def test_impossible_objectives(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**settings)  # type: ignore[arg-type]
