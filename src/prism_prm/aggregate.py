"""Combine the scores of steps into the score of a solution.

Every aggregator returns the LOGARITHM of the solution's score: a product over hundreds of steps would otherwise
underflow to 0, and all long solutions would tie. `solution_score` returns the score itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.calibration import Calibration
from prism_prm.errors import ConfigError, DataError
from prism_prm.segments import DEFAULT_SEGMENTER, SCORED, first_response, last_revision

SOFT_MIN_TEMPERATURE = 0.1
"""The temperature of `soft-min`: near 0 it is the minimum, at infinity the mean."""


FEW = 3
"""The k of `last-k` and `mean-of-lowest-k`."""


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _product(probabilities: Floats) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(probabilities).sum())


def _soft_min(probabilities: Floats) -> float:
    """The mean weighted by softmax(−p / T): close to the minimum, but every step counts."""
    weights = np.exp((probabilities.min() - probabilities) / SOFT_MIN_TEMPERATURE)
    return _log(float((weights * probabilities).sum() / weights.sum()))


def _adjusted_min(probabilities: Floats) -> float:
    """log(min) / (1 + 1/2 + … + 1/k) for k steps: `min` as if every solution had one step.

    If all steps are equally good, −log p being exponential with any mean θ, then −log(min) of k of them is θ · (1 + 1/2
    + … + 1/k) on average: `min` falls with k, this is −θ for every k. Neither θ nor other solutions are needed.
    """
    return _log(float(probabilities.min())) / float((1 / np.arange(1, len(probabilities) + 1)).sum())


AGGREGATORS: dict[str, Callable[[Floats], float]] = {
    "last": lambda probabilities: _log(float(probabilities[-1])),
    "min": lambda probabilities: _log(float(probabilities.min())),
    "product": _product,
    "mean": lambda probabilities: _log(float(probabilities.mean())),
    "soft-min": _soft_min,
    "adjusted-min": _adjusted_min,
    "last-k": lambda probabilities: _log(float(probabilities[-FEW:].mean())),
    "mean-of-lowest-k": lambda probabilities: _log(float(np.sort(probabilities)[:FEW].mean())),
    "response-only": lambda probabilities: _log(float(probabilities.min())),
    "min-after-last-revision": lambda probabilities: _log(float(probabilities.min())),
}
"""P(right) of each step that counts, in order → log of the solution's score."""

COUNT_FROM: dict[str, Callable[[Sequence[str]], int]] = {
    "response-only": lambda steps: min(first_response(steps), len(steps) - 1),
    "min-after-last-revision": last_revision,
}
"""Aggregators for which only the steps from some step on count: the texts of the steps → that step's number.

`response-only` counts from the first step after `</think>`; a solution that is still thinking counts by its last step.
"""


DEFAULT_AGGREGATOR = "min"
"""Used if neither the user nor the PRM's card names one: a solution is as good as its worst step."""


def check_aggregator(name: str) -> None:
    """Raise ConfigError if the name is not in AGGREGATORS."""
    if name not in AGGREGATORS:
        raise ConfigError(f"Unknown aggregator {name!r}. Known: {', '.join(AGGREGATORS)}.")


def is_scored(probabilities: Sequence[float | None] | Floats, steps: Sequence[str]) -> bool:
    """Whether every step has a score, except thinking steps if none of these has one: they are context only."""
    missing = np.isnan(np.asarray(probabilities, dtype=np.float64))
    first = first_response(steps) if missing.any() else 0
    return len(missing) > first and not missing[first:].any() and bool(missing[:first].all())


def log_score(
    probabilities: Sequence[float | None] | Floats, how: str = DEFAULT_AGGREGATOR, steps: Sequence[str] | None = None
) -> float:
    """The log of a solution's score. Needs at least one step, and a probability for every step that is not context.

    `steps` are the texts; `COUNT_FROM` says which aggregators need them.
    """
    check_aggregator(how)
    values = np.asarray(probabilities, dtype=np.float64)
    if steps is not None and values.ndim == 1 and len(values):
        assert len(steps) == len(values), "a text for every score"
        if np.isnan(values).any() and is_scored(values, steps):
            first = first_response(steps)
            values, steps = values[first:], steps[first:]
        if how in COUNT_FROM:
            values = values[COUNT_FROM[how](steps) :]
    elif how in COUNT_FROM and len(values):
        raise ConfigError(f"the aggregator {how} needs the texts of the steps; pass steps=…")
    if values.ndim != 1 or not len(values):
        raise DataError(f"a solution's score needs the scores of its steps; got an array of shape {values.shape}")
    if not ((values >= 0) & (values <= 1)).all():  # NaN fails both
        raise DataError(f"step scores must be probabilities in [0, 1]; got {values.tolist()}")
    return AGGREGATORS[how](values)


def solution_score(
    probabilities: Sequence[float] | Floats, how: str = DEFAULT_AGGREGATOR, steps: Sequence[str] | None = None
) -> float:
    """A solution's score in [0, 1] from P(right) of each of its steps.

    Args:
        probabilities: of the steps, in order.
        how: a key of `AGGREGATORS`: last, min, product, mean, soft-min, adjusted-min (`min` adjusted for the number of
            steps), … A PRM's own is `prm.card.aggregator`, which `prm.solution_score` uses.
        steps: their texts, which `response-only` and `min-after-last-revision` need.

    Example:
        >>> solution_score([0.9, 0.5], "min")
        0.5
    """
    return math.exp(log_score(probabilities, how, steps))


T = TypeVar("T")

DEFAULT_THRESHOLD = 0.5
"""The threshold of a PRM without a card."""

GIVEN = "as given"
CARD = "from the PRM's card"
DEFAULT = "the default, since no card sets it"


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value in use, and where it came from."""

    value: T
    origin: str

    def __str__(self) -> str:
        return f"{self.value}, {self.origin}"


@dataclass(frozen=True, slots=True)
class CardValues:
    """The values of a PRM's card, or of a critic's format."""

    aggregator: str = DEFAULT_AGGREGATOR
    threshold: float = DEFAULT_THRESHOLD
    redundancy_threshold: float | None = None
    """Set by the formats of critics only."""
    calibration: Calibration | None = None
    """How the threshold was chosen, and the map to calibrated probabilities; None if `prism calibrate` was not run."""
    segmenter: str = DEFAULT_SEGMENTER
    thinking: str = SCORED


class CardLike(Protocol):
    """The fields of a PRM's card that are used here."""

    @property
    def aggregator(self) -> str: ...

    @property
    def threshold(self) -> float: ...

    @property
    def calibration(self) -> Calibration | None: ...

    @property
    def segmenter(self) -> str: ...

    @property
    def thinking(self) -> str: ...


class HasCard(Protocol):
    """A scorer, or a record that describes one."""

    @property
    def card(self) -> CardLike | None: ...


def card_values(scorer: HasCard | None) -> CardValues | None:
    """The card values of a scorer; None if it has no card."""
    card = None if scorer is None else scorer.card
    if card is None or isinstance(card, CardValues):
        return card
    return CardValues(
        card.aggregator, card.threshold, calibration=card.calibration, segmenter=card.segmenter, thinking=card.thinking
    )


def calibration_of(scorer: HasCard) -> Calibration | None:
    """The calibration of a scorer; None if it has none."""
    return None if scorer.card is None else scorer.card.calibration


def segmenter_of(scorer: HasCard | None) -> str:
    """The rule by which the scorer's solutions are cut into steps."""
    card = card_values(scorer)
    return DEFAULT_SEGMENTER if card is None else card.segmenter


def choose_aggregator(given: str | None, card: CardValues | None) -> Choice[str]:
    """The aggregator that was given, else that of the card, else the default."""
    choice = _choose(given, None if card is None else card.aggregator, DEFAULT_AGGREGATOR)
    check_aggregator(choice.value)
    if card is not None and card.calibration is not None and card.calibration.method != "none":
        return Choice(choice.value, f"{choice.origin}, of scores calibrated on {card.calibration.on}")
    return choice


def choose_threshold(given: float | None, card: CardValues | None) -> Choice[float]:
    """The threshold above which a step counts as right: given, of the card, or the default."""
    choice = _choose(given, None if card is None else card.threshold, DEFAULT_THRESHOLD)
    if given is None and card is not None and card.calibration is not None:
        return Choice(choice.value, f"{choice.origin}, calibrated on {card.calibration.on}")
    return choice


def _choose(given: T | None, of_card: T | None, default: T) -> Choice[T]:
    if given is not None:
        return Choice(given, GIVEN)
    return Choice(default, DEFAULT) if of_card is None else Choice(of_card, CARD)
