"""Credit for steps: every function against the same thing written with loops, on random groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm import ConfigError
from prism_prm.rl.credit import CREDITS, Graded, clip, delta, find_credit, outcome, process, progress, pure

probabilities = st.floats(0.0, 1.0, width=32)


@st.composite
def groups(draw: st.DrawFn) -> list[Graded]:
    def solution() -> Graded:
        scores = draw(st.lists(probabilities, min_size=1, max_size=6))
        rewards = draw(st.lists(st.floats(-1, 1, width=32), min_size=len(scores), max_size=len(scores)))
        tokens = draw(st.lists(st.integers(0, 30), min_size=len(scores), max_size=len(scores)))
        return Graded(scores, rewards, tokens, draw(probabilities))

    return [solution() for _ in range(draw(st.integers(1, 6)))]


def of_scores(*scores: Sequence[float], tokens: Sequence[Sequence[int]] | None = None) -> list[Graded]:
    lengths = tokens or [[1] * len(own) for own in scores]
    return [Graded(own, own, count, min(own)) for own, count in zip(scores, lengths, strict=True)]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def outcome_by_hand(group: Sequence[Graded]) -> list[list[float]]:
    if len(group) == 1:
        return [[0.0] * len(group[0].scores)]
    mean, std = mean_and_std([solution.reward for solution in group])
    return [[(solution.reward - mean) / (std + 1e-4) for _ in solution.scores] for solution in group]


def process_by_hand(group: Sequence[Graded]) -> list[list[float]]:
    every = [reward for solution in group for reward in solution.rewards]
    if len(every) == 1:
        return [[0.0]]
    mean, std = mean_and_std(every)
    return [
        [sum((later - mean) / (std + 1e-4) for later in solution.rewards[k:]) for k in range(len(solution.rewards))]
        for solution in group
    ]


def pure_by_hand(group: Sequence[Graded]) -> list[list[float]]:
    rewards = []
    for solution in group:
        signed = [2 * p - 1 for p in solution.scores]
        weights = [math.exp(-s / 0.1) for s in signed]
        rewards.append([weight / sum(weights) * s for weight, s in zip(weights, signed, strict=True)])
    advantages = []
    for i, solution in enumerate(group):
        tokens = sum(sum(other.num_tokens) for j, other in enumerate(group) if j != i)
        earned = sum(sum(other) for j, other in enumerate(rewards) if j != i)
        baseline = earned / tokens if tokens else 0.0
        after = [reward - baseline * n for reward, n in zip(rewards[i], solution.num_tokens, strict=True)]
        advantages.append([sum(after[k:]) for k in range(len(after))])
    return advantages


def progress_by_hand(group: Sequence[Graded]) -> list[list[float]]:
    start = sum(solution.scores[0] for solution in group) / len(group)
    return [
        [base + p - before for base, p, before in zip(own, solution.scores, [start, *solution.scores], strict=False)]
        for own, solution in zip(outcome_by_hand(group), group, strict=True)
    ]


BY_HAND = {"outcome": outcome_by_hand, "process": process_by_hand, "pure": pure_by_hand, "progress": progress_by_hand}


@pytest.mark.parametrize("name", CREDITS)
@given(group=groups())
def test_each_credit_is_what_it_says(name: str, group: list[Graded]) -> None:
    found, expected = find_credit(name)(group), BY_HAND[name](group)
    assert [len(own) for own in found] == [len(solution.scores) for solution in group]
    for own, hand in zip(found, expected, strict=True):
        assert np.allclose(own, hand, rtol=1e-6, atol=1e-6)


def test_outcome_by_numbers() -> None:
    better, worse = outcome(of_scores([0.9, 0.5], [0.1]))
    scale = 1 / (math.sqrt(0.08) + 1e-4)
    assert better == pytest.approx([0.2 * scale] * 2)
    assert worse == pytest.approx([-0.2 * scale])


def test_process_by_numbers() -> None:
    first, second = process(of_scores([1.0, 0.0], [1.0, 1.0]))
    scale = 1 / (0.5 + 1e-4)  # four rewards 1, 0, 1, 1: mean 0.75, standard deviation 0.5
    assert first == pytest.approx([-0.5 * scale, -0.75 * scale])
    assert second == pytest.approx([0.5 * scale, 0.25 * scale])


def test_pure_by_numbers() -> None:
    """The worst step takes all the blame, and a solution as good per token as the others gains nothing."""
    bad, good = pure(of_scores([1.0, 0.0], [1.0], tokens=[[3, 5], [4]]))
    assert bad == pytest.approx([-1 - 0.25 * 8, -1 - 0.25 * 5], abs=1e-6)
    assert good == pytest.approx([1 + 1 / 8 * 4], abs=1e-6)
    for own in pure(of_scores([0.8], [0.8], tokens=[[5], [5]])):
        assert own == pytest.approx([0.0])


def test_progress_by_numbers() -> None:
    first, second = progress(of_scores([0.2, 0.6, 0.5], [0.4, 0.2]))
    assert first == pytest.approx([-0.1, 0.4, -0.1], abs=1e-12)
    assert second == pytest.approx([0.1, -0.2], abs=1e-12)


@given(group=groups(), order=st.randoms())
def test_the_order_of_a_group_does_not_matter(group: list[Graded], order: np.random.Generator) -> None:
    numbers = list(range(len(group)))
    order.shuffle(numbers)
    for credit in CREDITS.values():
        straight, shuffled = credit(group), credit([group[i] for i in numbers])
        for place, i in enumerate(numbers):
            assert np.allclose(shuffled[place], straight[i], rtol=1e-9, atol=1e-9)


def test_shaping_by_numbers() -> None:
    rewards = np.array([0.9, 0.2, 0.7])
    assert clip(rewards, 0.5) == pytest.approx([0.0, -0.3, 0.0])
    assert delta(rewards) == pytest.approx([0.7, 0.2, 0.0])
    assert delta(rewards)[::-1].cumsum()[::-1] == pytest.approx([0.9, 0.2, 0.0]), "from a step on: its own alone"
    assert delta(np.array([0.9])) == pytest.approx([0.0])


def test_an_unknown_credit() -> None:
    with pytest.raises(ConfigError, match=r"Unknown credit 'best'\. Known: outcome, process, pure, progress"):
        find_credit("best")
