"""`Calibration`: a PRM's chosen threshold, and an increasing map from its log-odds to calibrated ones.

Stores, tables and servers keep the model's own log-odds. The map is applied where log-odds become P(right)
(`right_probability`), so every user of a scorer sees the same calibrated numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from prism_prm.arrays import Bools, Floats
from prism_prm.config import Share, check
from prism_prm.errors import DataError, SettingError
from prism_prm.metrics import log_odds as to_log_odds

Method = Literal["none", "platt", "isotonic"]
TILT = 1e-4
"""The slope of a map where it would be level, so that no two steps tie that did not tie before."""
LIMIT = 100.0
"""Log-odds beyond this are calibrated as if they were this: those of the probabilities 0 and 1 are infinite."""


def sigmoid(log_odds: np.ndarray) -> np.ndarray:
    """The probabilities of log-odds, without overflow."""
    small = np.exp(-np.abs(log_odds))
    return np.asarray(np.where(log_odds >= 0, 1.0, small) / (1.0 + small))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold with its interval, the data that it was chosen on, and the map of log-odds.

    The map interpolates between the points `log_odds` → `values` and is level beyond them, since no score there was
    seen; TILT · x on top makes it strictly increasing. So it never changes which of two steps scores higher.
    """

    on: str
    """The held-out data, as reports name it."""
    target: str
    """What the threshold was chosen for, e.g. tpr=0.9."""
    threshold: Share
    """The chosen threshold of the calibrated probability."""
    low: float | None = None
    """The threshold's 95 % interval over problems; none with a single problem."""
    high: float | None = None
    method: Method = "none"
    """How the map was fitted; "none" leaves all scores as they are."""
    log_odds: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    model_hash: str = ""
    """The hash of the PRM's model; "" if only its scores were known."""

    def __post_init__(self) -> None:
        check(self)
        if (self.method == "none") != (not self.log_odds) or len(self.log_odds) != len(self.values):
            raise SettingError("values", self.values, "must be as many as `log_odds`, and none without a method")
        for name in ("log_odds", "values"):
            numbers = np.array(getattr(self, name))
            rises = np.diff(numbers)
            if not np.isfinite(numbers).all() or (rises < 0).any() or (name == "log_odds" and 0 in rises):
                raise SettingError(name, getattr(self, name), "must be finite numbers that rise")

    def apply(self, log_odds: Floats) -> Floats:
        """Calibrated log-odds; NaN stays NaN."""
        if self.method == "none":
            return log_odds
        bounded = np.clip(log_odds, -LIMIT, LIMIT)
        return np.asarray(np.interp(bounded, self.log_odds, self.values) + TILT * bounded)

    def undo(self, probability: float) -> float:
        """The model's own probability at which the calibrated one has this value: a threshold of raw scores."""
        if self.method == "none":
            return probability
        own = np.array([-LIMIT, *self.log_odds, LIMIT])
        return float(sigmoid(np.interp(to_log_odds(probability), self.apply(own), own)))

    def of_probability(self, probability: Floats) -> Floats:
        """Calibrated probabilities of the model's own ones."""
        return probability if self.method == "none" else right_probability(to_log_odds(probability), self)


def right_probability(log_odds: np.ndarray, calibration: Calibration | None) -> np.ndarray:
    """P(right) of a model's log-odds. All probabilities of steps come from here."""
    return sigmoid(log_odds if calibration is None else calibration.apply(log_odds))


Points = tuple[tuple[float, ...], tuple[float, ...]]
"""The fields log_odds and values of a `Calibration`."""


def fit_points(method: Method, probability: Floats, right: Bools) -> Points:
    """Fit a map to steps of both classes. DataError if right steps do not score higher than wrong ones.

    A probability of 0 or 1 has been rounded: it counts as half as far from there as the nearest other one.
    """
    if method == "none":
        return (), ()
    rest = probability[(probability > 0) & (probability < 1)]
    gap = min(rest.min(), 1 - rest.max()) / 2 if len(rest) else 0.01
    log_odds = to_log_odds(np.clip(probability, gap, 1 - gap))
    at, values = (_fit_platt if method == "platt" else _fit_isotonic)(log_odds, right)
    return tuple(at.tolist()), tuple(values.tolist())


def _fit_platt(log_odds: Floats, right: Bools) -> tuple[Floats, Floats]:
    """Platt's scaling: P(right) = sigmoid(slope · x + offset), of the largest likelihood.

    With his targets instead of 0 and 1, as if one more step of each class had been seen, the slope stays finite when
    the scores separate right steps from wrong ones.
    """
    num_right = int(right.sum())
    target = np.where(right, (num_right + 1) / (num_right + 2), 1 / (len(right) - num_right + 2))
    columns = np.stack([log_odds, np.ones(len(log_odds))], axis=1)

    def loss(weights: Floats) -> float:
        z = columns @ weights
        return float(np.mean(np.logaddexp(0, z) - target * z))

    weights = np.zeros(2)
    for _ in range(100):  # Newton's method, with steps halved until the loss falls
        p = sigmoid(columns @ weights)
        gradient = columns.T @ (p - target) / len(p)
        hessian = (columns * (p * (1 - p))[:, None]).T @ columns / len(p)
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        while loss(weights - step) > loss(weights) and np.abs(step).max() > 1e-12:
            step /= 2
        weights = weights - step
        if np.abs(step).max() < 1e-12:
            break
    slope, offset = map(float, weights)
    if slope <= TILT:
        raise DataError(f"right steps do not score higher than wrong ones (the slope of platt is {slope:.3g})")
    ends = np.array([log_odds.min(), log_odds.max()])
    return ends, slope * ends + offset


def _fit_isotonic(log_odds: Floats, right: Bools) -> tuple[Floats, Floats]:
    """Isotonic regression: the levels that rise with the score and fit best.

    One more right step at the lowest score and one more wrong step at the highest keep the levels off 0 and 1, whose
    log-odds are infinite.
    """
    from scipy.optimize import isotonic_regression

    scores, at = np.unique(log_odds, return_inverse=True)
    total, hits = np.bincount(at).astype(np.float64), np.bincount(at, right)
    hits[0] += 1
    total[0] += 1
    total[-1] += 1
    found = isotonic_regression(hits / total, weights=total)
    starts, ends = found.blocks[:-1], found.blocks[1:] - 1
    if len(starts) < 2:
        raise DataError("right steps do not score higher than wrong ones (isotonic regression finds one level)")
    corners = np.unique(np.concatenate([starts, ends]))
    level = starts[np.searchsorted(starts, corners, side="right") - 1]  # equal in a block, but for rounding
    return scores[corners], to_log_odds(found.x[level])
