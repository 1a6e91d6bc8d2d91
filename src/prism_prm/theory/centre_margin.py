"""Pairs in centre–margin coordinates: a = (s⁺ + s⁻)/2, m = s⁺ − s⁻, for scores in (0, 1).

The policy ratio depends on m alone. The step-contrastive loss (SC) does too; the pointwise loss (BCE) also pulls at a.
"""

from __future__ import annotations

import numpy as np

from prism_prm.types import Floats

SC_FLOOR = float(np.log1p(np.exp(-1.0)))
"""No margin of scores in [0, 1] brings SC below −log σ(1) = 0.313."""


def centre_margin(right: Floats, wrong: Floats) -> tuple[Floats, Floats]:
    """(a, m) of the scores of right and wrong steps."""
    return (right + wrong) / 2, right - wrong


def sc_gradient(margin: Floats) -> tuple[Floats, Floats]:
    """(∂/∂a, ∂/∂m) of −log σ(m): nothing on the centre, −σ(−m) on the margin."""
    return np.zeros_like(margin), np.asarray(-1 / (1 + np.exp(margin)))


def bce_gradient(centre: Floats, margin: Floats) -> tuple[Floats, Floats]:
    """(∂/∂a, ∂/∂m) of −log s⁺ − log(1 − s⁻): the centre is pulled to ½, where both terms balance."""
    right, not_wrong = centre + margin / 2, 1 - centre + margin / 2
    return np.asarray(-1 / right + 1 / not_wrong), np.asarray(-0.5 / right - 0.5 / not_wrong)


def rates_from_margins(centre: Floats, margin: Floats, threshold: float) -> tuple[float, float]:
    """(FPR, FNR) of pairs, where good means score > threshold: P(m < 2(a−τ)) and P(m ≤ 2(τ−a)).

    The paper judges ties the other way round (good means ≥); benchmarks are strict, and so are we.
    """
    return float(np.mean(margin < 2 * (centre - threshold))), float(np.mean(margin <= 2 * (threshold - centre)))


def safe_thresholds(right: Floats, wrong: Floats, max_fpr: float, max_fnr: float) -> tuple[float, float] | None:
    """The interval of thresholds with FPR and FNR within the limits, or None; wider margins make it wider."""
    # FPR(τ) falls with τ: the lowest τ is a quantile of the wrong scores; FNR rises: the highest is one of the right.
    low = float(np.quantile(wrong, 1 - max_fpr, method="higher"))
    high = float(np.nextafter(np.quantile(right, max_fnr, method="higher"), -np.inf))
    return (low, high) if low <= high else None
