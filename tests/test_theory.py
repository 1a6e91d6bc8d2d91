from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm import metrics
from prism_prm.evaluate.measure import Steps
from prism_prm.lab.theory import closed_forms, dominance, simulation
from prism_prm.report import Report

share = st.floats(0.02, 0.98)
count = st.integers(1, 200)


def test_best_of_n_by_hand() -> None:
    # p = ½, α = ½, β = 0: q = ¾. N = 2: (1 − 1/16)·(2/3) + 1/16·0.
    assert float(closed_forms.best_of_n(0.5, 0.5, 0, 2)) == pytest.approx(0.625)
    assert float(closed_forms.ceiling(0.5, 0.5)) == pytest.approx(2 / 3)
    # A verifier that accepts nothing, or everything, is a coin among N.
    assert float(closed_forms.best_of_n(0.3, 0, 1, 8)) == pytest.approx(0.3)
    assert float(closed_forms.best_of_n(0.3, 1, 0, 8)) == pytest.approx(0.3)


@given(share, share, share)
def test_one_sample_is_the_base_rate(p: float, alpha: float, beta: float) -> None:
    assert float(closed_forms.best_of_n(p, alpha, beta, 1)) == pytest.approx(p)
    # The paper's leading term misses the right solutions that were rejected.
    assert float(closed_forms.leading_term(p, alpha, beta, 1)) == pytest.approx(p * (1 - beta))


@given(share, share, share, count)
def test_best_of_n_is_a_share_between_its_two_terms(p: float, alpha: float, beta: float, n: int) -> None:
    value = float(closed_forms.best_of_n(p, alpha, beta, n))
    assert 0 <= value <= 1
    assert float(closed_forms.leading_term(p, alpha, beta, n)) <= value + 1e-12


@given(share, share, share)
def test_the_limit_is_the_precision(p: float, alpha: float, beta: float) -> None:
    far = float(closed_forms.best_of_n(p, alpha, beta, 100_000))
    assert far == pytest.approx(float(closed_forms.ceiling(p, alpha, beta)), abs=1e-9)


@given(share, share, share)
def test_more_samples_help_iff_the_verifier_is_better_than_chance(p: float, alpha: float, beta: float) -> None:
    gain = float(closed_forms.best_of_n(p, alpha, beta, 17) - closed_forms.best_of_n(p, alpha, beta, 16))
    if 1 - beta > alpha + 1e-6:
        assert gain >= -1e-12
    elif 1 - beta < alpha - 1e-6:
        assert gain <= 1e-12


@given(share, share)
def test_ceiling_slope_is_the_derivative(p: float, alpha: float) -> None:
    step = 1e-6
    numeric = (closed_forms.ceiling(p, alpha + step) - closed_forms.ceiling(p, alpha - step)) / (2 * step)
    assert float(closed_forms.ceiling_slope(p, alpha)) == pytest.approx(float(numeric), rel=1e-4)
    assert float(closed_forms.ceiling_slope(p, alpha)) < 0
    assert float(closed_forms.ceiling(p, alpha)) < 1


@given(share, share, st.floats(0.05, 0.999))
def test_false_negatives_only_cost_samples(p: float, beta: float, target: float) -> None:
    n = closed_forms.samples_to_reach(target, p, beta)
    assert float(closed_forms.best_of_n(p, 0, beta, n)) >= target - 1e-12
    if n > 1:
        assert float(closed_forms.best_of_n(p, 0, beta, n - 1)) < target + 1e-9
    assert n >= closed_forms.samples_to_reach(target, p, beta / 2), "more false negatives never need fewer samples"


@given(st.floats(0.1, 0.9), st.floats(0, 1), st.floats(0, 1), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_monte_carlo_agrees(p: float, alpha: float, beta: float, n: int, seed: int) -> None:
    trials = 20_000
    played = closed_forms.simulate_best_of_n(p, alpha, beta, n, num_trials=trials, seed=seed)
    exact = float(closed_forms.best_of_n(p, alpha, beta, n))
    assert abs(played - exact) < 5 * math.sqrt(0.25 / trials)


@given(st.floats(0.01, 0.6), share, share, st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_step_rates_compound_as_played_out(error: float, alpha: float, beta: float, steps: int) -> None:
    rng = np.random.default_rng(1)
    trials = 20_000
    wrong = rng.random((trials, steps)) < error
    passed = (rng.random((trials, steps)) < np.where(wrong, alpha, 1 - beta)).all(axis=1)
    right = ~wrong.any(axis=1)
    p, alpha_solution, beta_solution = closed_forms.solution_rates(error, alpha, beta, steps)
    assert right.mean() == pytest.approx(p, abs=0.02)
    if right.sum() > 500:
        assert 1 - passed[right].mean() == pytest.approx(beta_solution, abs=0.12)
    if (~right).sum() > 500:
        assert passed[~right].mean() == pytest.approx(alpha_solution, abs=0.12)


def test_step_rates_by_hand() -> None:
    # Two steps, each wrong half the time, α = ½, β = 0. Wrong solutions: one wrong (2 of 3) pass ½, two wrong pass ¼.
    p, alpha, beta = closed_forms.solution_rates(0.5, 0.5, 0.0, 2)
    assert (p, beta) == (0.25, 0)
    assert alpha == pytest.approx((2 * 0.5 + 0.25) / 3)
    assert math.isnan(closed_forms.solution_rates(0.0, 0.5, 0.0, 2)[1]), "no wrong solutions, no rate"


def test_guided_search_loses_at_every_step() -> None:
    one = float(closed_forms.best_of_n(0.6, 0.3, 0.1, 4))
    assert float(closed_forms.guided_search(0.6, 0.3, 0.1, 4, 10)) == pytest.approx(one**10)


def test_policy_ratio_is_that_of_the_optimal_policy() -> None:
    policy = np.array([0.2, 0.5, 0.3]) * np.exp(np.array([0.9, 0.4, 0.4]) / 0.1)  # π* ∝ π_ref · exp(r / β_KL)
    assert policy[0] / policy[1] == pytest.approx(float(closed_forms.policy_ratio(0.2 / 0.5, 0.5, 0.1)))
    assert float(closed_forms.policy_ratio(1.0, 0.0, 0.1)) == 1, "equal rewards leave the reference alone"


def sc_loss(_: Any, margin: Any) -> Any:
    return np.logaddexp(0.0, -margin)


def bce_loss(centre: Any, margin: Any) -> Any:
    return -np.log(centre + margin / 2) - np.log(1 - centre + margin / 2)


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_gradients_in_centre_and_margin(right: float, wrong: float) -> None:
    a, m = closed_forms.center_margin(np.array(right), np.array(wrong))
    step = 1e-6
    for loss, gradient in (
        (sc_loss, closed_forms.sc_gradient(m)),
        (bce_loss, closed_forms.bce_gradient(a, m)),
    ):
        by_centre = (loss(a + step, m) - loss(a - step, m)) / (2 * step)
        by_margin = (loss(a, m + step) - loss(a, m - step)) / (2 * step)
        assert float(gradient[0]) == pytest.approx(float(by_centre), rel=1e-4, abs=1e-5)
        assert float(gradient[1]) == pytest.approx(float(by_margin), rel=1e-4, abs=1e-5)
    assert float(bce_loss(a, m)) == pytest.approx(-math.log(right) - math.log(1 - wrong))
    assert float(sc_loss(a, m)) >= closed_forms.SC_FLOOR - 1e-12


def test_the_papers_example_pulls_the_centre_only_under_bce() -> None:
    a, m = closed_forms.center_margin(np.array(0.85), np.array(0.80))
    assert float(closed_forms.sc_gradient(m)[0]) == 0
    assert float(closed_forms.bce_gradient(a, m)[0]) == pytest.approx(-1 / 0.85 + 1 / 0.20)
    assert pytest.approx(0.3133, abs=1e-4) == closed_forms.SC_FLOOR


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), min_size=1, max_size=40), st.integers(-1, 17))
def test_rates_from_margins_are_the_rates(pairs: list[tuple[int, int]], cut: int) -> None:
    right, wrong = np.array(pairs, float).T / 16
    fpr, fnr = closed_forms.rates_from_margins(*closed_forms.center_margin(right, wrong), cut / 16)
    assert fpr == np.mean(wrong > cut / 16)
    assert fnr == np.mean(right <= cut / 16)


def test_safe_thresholds_widen_with_the_margin() -> None:
    rng = np.random.default_rng(0)
    centre = 0.5 + 0.05 * rng.normal(size=2000)
    narrow = closed_forms.safe_thresholds(centre + 0.1, centre - 0.1, 0.1, 0.1)
    wide = closed_forms.safe_thresholds(centre + 0.2, centre - 0.2, 0.1, 0.1)
    assert narrow is not None
    assert wide is not None
    assert wide[1] - wide[0] > narrow[1] - narrow[0]
    for low_or_high in wide:
        assert np.mean(centre - 0.2 > low_or_high) <= 0.1
        assert np.mean(centre + 0.2 <= low_or_high) <= 0.1
    assert closed_forms.safe_thresholds(centre, centre, 0.1, 0.1) is None


scored = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=2, max_size=50).filter(
    lambda rows: len({row[0] for row in rows}) == 2
)


@given(scored)
def test_fpr_at_a_tpr_is_the_distribution_of_placements(rows: list[tuple[bool, int]]) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 9 for _, s in rows])
    curve = dominance.fpr_at_tprs(*metrics.Ranking.of(right, scores).cumulative())
    # Of every wrong step the share of right steps that score higher.
    places = np.array([np.mean(scores[right] > score) for score in scores[~right]])
    expected = [np.mean(places < level - 1e-9) for level in dominance.LEVELS]
    assert curve.tolist() == pytest.approx(expected)


@given(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 20))
@settings(max_examples=30)
def test_a_shift_dominates_iff_the_two_shifts_add_to_no_less_than_zero(up: float, down: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    right = np.arange(60) < 40
    base = rng.normal(size=60) + right
    moved = np.where(right, base + up, base - down)
    fpr_moved, fpr_base = (
        dominance.fpr_at_tprs(*metrics.Ranking.of(right, scores).cumulative()) for scores in (moved, base)
    )
    if up + down >= 0:
        assert (fpr_moved <= fpr_base).all()
    else:
        assert (fpr_moved >= fpr_base).all()


def synthetic(shift: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    right = rng.random(3000) < 0.7
    b = rng.normal(size=3000) + right
    a = b + np.where(right, shift, -shift) + 0.05 * rng.normal(size=3000)
    return right, a, b, np.arange(3000) // 5


def test_dominance_verdicts() -> None:
    right, a, b, clusters = synthetic(0.4)
    found = dominance.check_dominance(right, a, b, clusters, num_draws=200)
    assert found.verdict == "A dominates"
    assert found.worst <= 0
    assert dominance.check_dominance(right, b, a, clusters, num_draws=200).verdict == "B dominates"
    same = dominance.check_dominance(right, b, b, clusters, num_draws=200)
    assert (same.verdict, same.worst) == ("undecided", 0.0)


def test_problems_without_a_judged_step_are_not_counted(tmp_path: Path) -> None:
    """Three problems of two steps, none of which is judged in the second."""
    label, own = np.array([1, 0, -1, -1, 1, 0], np.int8), np.arange(3)
    steps = Steps(
        ("a", "b", "c"), ("all",), np.zeros(3, int), own, 3, np.full(3, -1, np.int8), own * 2,
        np.array([-1, 0] * 3), label, np.array([0.9, 0.1, 0.5, 0.5, 0.8, 0.2]),
    )  # fmt: skip
    report = Report("Dominance")
    dominance.add_dominance(report, "bench", "A", "B", steps, steps)
    report.write(tmp_path)
    assert "over 2 problems." in " ".join((tmp_path / "report.md").read_text().split())


def test_crossing_curves_do_not_dominate() -> None:
    """A is better at the top, B at the bottom."""
    rng = np.random.default_rng(3)
    right = rng.random(6000) < 0.5
    b = rng.normal(size=6000) + right
    wide = rng.normal(size=6000) * np.where(right, 3.0, 1.0) + right
    found = dominance.check_dominance(right, wide, b, np.arange(6000), num_draws=200)
    assert found.verdict == "neither"


def test_a_pure_shift_is_recognised_and_bounded_scores_leave_no_room() -> None:
    rng = np.random.default_rng(0)
    b = rng.normal(size=4000)
    pure = dominance.check_shift(b + 0.7, b, direction=1, bounded=False)
    assert pure.delta == pytest.approx(0.7)
    assert pure.distance < 0.001
    assert pure.room == math.inf
    probability = 1 / (1 + np.exp(-b))
    bounded = dominance.check_shift(1 / (1 + np.exp(-b - 0.7)), probability, direction=1, bounded=True)
    assert bounded.room == pytest.approx(1 - probability.max())
    assert bounded.delta > bounded.room, "the shift it would need leaves [0, 1]"
    assert bounded.distance > 0.05, "a shift of the log-odds is no shift of the probabilities"


def test_log_odds_keep_the_order_and_stay_finite() -> None:
    values = dominance.log_odds(np.array([0.0, 0.25, 0.5, 1.0]))
    assert np.isfinite(values).all()
    assert values[1] == pytest.approx(-math.log(3))
    assert (np.diff(values) > 0).all()


def test_simulation_is_fair_and_reproducible() -> None:
    small = simulation.SimulationSettings(num_pairs=600, num_test_pairs=2000, epochs=8, seeds=(0,))
    first, again = simulation.simulate(small), simulation.simulate(small)
    assert first.seeds == again.seeds
    for objective in simulation.OBJECTIVES:
        accuracies = first.accuracy[objective]
        assert len(accuracies) == len(simulation.EDGES) - 1
        # Far apart is easier than close together, and training has learned something.
        assert accuracies[-1].value > accuracies[0].value
        assert first.overall[objective].value > 0.6


@pytest.mark.slow
def test_simulation_shows_where_pairwise_training_helps() -> None:
    relative = simulation.simulate()
    assert relative.accuracy["pairwise"][1].low > relative.accuracy["pointwise"][1].high
    absolute = simulation.simulate(simulation.SimulationSettings(labels="absolute"))
    assert abs(absolute.overall["pairwise"].value - absolute.overall["pointwise"].value) < 0.005


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_the_divergence_of_the_best_of_n(n: int) -> None:
    """Against the sum over many equally likely solutions: the r-th best of m is picked with chance (r^n − (r−1)^n)/m^n,
    counted from the worst.
    """
    m = 20_000
    ranks = np.arange(m + 1) / m
    chances = np.diff(ranks**n)
    chances = chances[chances > 0]
    assert closed_forms.divergence(n) == pytest.approx(float((chances * np.log(chances * m)).sum()), abs=2e-3)
