"""Closed forms: Best-of-N with a binary verifier that errs, and pairs in center–margin coordinates.

p = share of right solutions, α = FPR, β = FNR. Best-of-N draws N solutions and picks one at random among those that the
verifier accepts, or among all N if it accepts none.

a = (s⁺ + s⁻)/2 and m = s⁺ − s⁻, for scores in (0, 1). The policy ratio depends on m alone, and so does the
step-contrastive loss (SC); the pointwise loss (BCE) also depends on a.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prism_prm.arrays import Floats

SC_FLOOR = float(np.log1p(np.exp(-1.0)))
"""The lower bound of SC for scores in [0, 1]: −log σ(1) = 0.313."""


def accept_rate(p: npt.ArrayLike, alpha: npt.ArrayLike, beta: npt.ArrayLike) -> Floats:
    """q: the share of solutions that the verifier accepts."""
    p, alpha, beta = (np.asarray(x, np.float64) for x in (p, alpha, beta))
    return np.asarray((1 - p) * alpha + p * (1 - beta))


def best_of_n(p: npt.ArrayLike, alpha: npt.ArrayLike, beta: npt.ArrayLike, n: npt.ArrayLike) -> Floats:
    """P(N): the probability that a right solution is picked, with both terms: some accepted, and none accepted.

    The paper uses the first term alone, which gives p(1−β) instead of p for N = 1.
    """
    p, alpha, beta, n = (np.asarray(x, np.float64) for x in (p, alpha, beta, n))
    q = accept_rate(p, alpha, beta)
    none_accepted = (1 - q) ** n
    with np.errstate(invalid="ignore", divide="ignore"):
        right_if_accepted = np.where(q > 0, p * (1 - beta) / q, 0.0)
        right_if_rejected = np.where(q < 1, p * beta / (1 - q), 0.0)
    return np.asarray((1 - none_accepted) * right_if_accepted + none_accepted * right_if_rejected)


def leading_term(p: npt.ArrayLike, alpha: npt.ArrayLike, beta: npt.ArrayLike, n: npt.ArrayLike) -> Floats:
    """The first term of P(N), the paper's approximation: a right solution is picked, and some were accepted."""
    p, beta, n = (np.asarray(x, np.float64) for x in (p, beta, n))
    q = accept_rate(p, alpha, beta)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(q > 0, (1 - (1 - q) ** n) * p * (1 - beta) / q, 0.0))


def divergence(n: npt.ArrayLike) -> Floats:
    """KL of the best of n from one draw, log n − (n−1)/n: exact without ties, an upper bound with them."""
    n = np.asarray(n, np.float64)
    return np.asarray(np.log(n) - (n - 1) / n)


def ceiling(p: npt.ArrayLike, alpha: npt.ArrayLike, beta: npt.ArrayLike = 0.0) -> Floats:
    """The limit of P(N): the verifier's precision, p/(p+(1−p)α) for β = 0. A verifier that accepts nothing leaves p."""
    p, beta = np.asarray(p, np.float64), np.asarray(beta, np.float64)
    q = accept_rate(p, alpha, beta)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(q > 0, p * (1 - beta) / q, p))


def ceiling_slope(p: npt.ArrayLike, alpha: npt.ArrayLike) -> Floats:
    """The derivative of the ceiling (β = 0) by α: never positive."""
    p, alpha = np.asarray(p, np.float64), np.asarray(alpha, np.float64)
    return np.asarray(-p * (1 - p) / (p + (1 - p) * alpha) ** 2)


def samples_to_reach(target: float, p: float, beta: float) -> int:
    """The least N with P(N) ≥ target when there are no false positives: what false negatives cost.

    With α = 0, P(N) = 1 − (1−q)^N · (1−p)/(1−q): it grows to 1 for every β < 1.
    """
    assert 0 < target < 1
    assert 0 < p <= 1
    assert 0 <= beta < 1
    q = p * (1 - beta)
    if target <= p or q >= 1:
        return 1
    # (1−q)^(N−1) ≤ (1−target)/(1−p)
    estimate = 1 + np.log((1 - target) / (1 - p)) / np.log1p(-q)
    n = max(1, int(np.ceil(estimate - 1e-9)))
    while best_of_n(p, 0.0, beta, n) < target:
        n += 1
    return n


def simulate_best_of_n(p: float, alpha: float, beta: float, n: int, *, num_trials: int, seed: int) -> float:
    """P(N) by simulation: draw N solutions, let the verifier err, pick at random among the best."""
    rng = np.random.default_rng(seed)
    right = rng.random((num_trials, n)) < p
    accepted = rng.random((num_trials, n)) < np.where(right, 1 - beta, alpha)
    # The verdict decides; a random number breaks ties.
    picked = np.argmax(accepted + rng.random((num_trials, n)), axis=1)
    return float(right[np.arange(num_trials), picked].mean())


def solution_rates(error: float, alpha: float, beta: float, num_steps: int) -> tuple[float, float, float]:
    """(p, α, β) of whole solutions from those of steps, when a solution passes iff all its T steps pass.

    Each step is wrong with probability `error`, and the PRM's errors on steps are independent:
    p = (1−e)^T; β = 1−(1−b)^T; α = share of wrong solutions in which every wrong step is over-credited.
    """
    p = (1 - error) ** num_steps
    passes = ((1 - error) * (1 - beta) + error * alpha) ** num_steps
    right_and_passes = ((1 - error) * (1 - beta)) ** num_steps
    wrong_passes = (passes - right_and_passes) / (1 - p) if p < 1 else float("nan")
    return p, wrong_passes, 1 - (1 - beta) ** num_steps


def guided_search(
    p: npt.ArrayLike, alpha: npt.ArrayLike, beta: npt.ArrayLike, num_candidates: npt.ArrayLike, num_steps: npt.ArrayLike
) -> Floats:
    """The probability that a search which picks one of m candidates at each of T steps stays on the right path.

    Each step is a Best-of-m, so the loss per step is compounded T times: P(m)^T.
    """
    return np.asarray(best_of_n(p, alpha, beta, num_candidates) ** np.asarray(num_steps, np.float64))


def policy_ratio(reference_ratio: npt.ArrayLike, margin: npt.ArrayLike, temperature: npt.ArrayLike) -> Floats:
    """π*(right) / π*(wrong) of the KL-regularized policy: the reference's ratio times exp(margin / β_KL)."""
    margin, temperature = np.asarray(margin, np.float64), np.asarray(temperature, np.float64)
    return np.asarray(np.asarray(reference_ratio, np.float64) * np.exp(margin / temperature))


def center_margin(right: Floats, wrong: Floats) -> tuple[Floats, Floats]:
    """(a, m) of the scores of right and wrong steps."""
    return (right + wrong) / 2, right - wrong


def sc_gradient(margin: Floats) -> tuple[Floats, Floats]:
    """(∂/∂a, ∂/∂m) of −log σ(m): 0 on the center, −σ(−m) on the margin."""
    return np.zeros_like(margin), np.asarray(-1 / (1 + np.exp(margin)))


def bce_gradient(center: Floats, margin: Floats) -> tuple[Floats, Floats]:
    """(∂/∂a, ∂/∂m) of −log s⁺ − log(1 − s⁻): the center is pulled to ½, where both terms balance."""
    right, not_wrong = center + margin / 2, 1 - center + margin / 2
    return np.asarray(-1 / right + 1 / not_wrong), np.asarray(-0.5 / right - 0.5 / not_wrong)


def rates_from_margins(center: Floats, margin: Floats, threshold: float) -> tuple[float, float]:
    """(FPR, FNR) of pairs, where good means score > threshold: P(m < 2(a−τ)) and P(m ≤ 2(τ−a)).

    The paper judges ties the other way round (good means ≥); benchmarks are strict, and so is this.
    """
    return float(np.mean(margin < 2 * (center - threshold))), float(np.mean(margin <= 2 * (threshold - center)))


def safe_thresholds(right: Floats, wrong: Floats, max_fpr: float, max_fnr: float) -> tuple[float, float] | None:
    """The interval of thresholds with FPR and FNR within the limits, or None; wider margins make it wider."""
    # FPR(τ) falls with τ, so the lowest τ is a quantile of the wrong scores; FNR rises, so the highest is one of the
    # right scores.
    low = float(np.quantile(wrong, 1 - max_fpr, method="higher"))
    high = float(np.nextafter(np.quantile(right, max_fnr, method="higher"), -np.inf))
    return (low, high) if low <= high else None
