"""Which aggregator and threshold are used, and why: the given one, else that of the PRM's card, else ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prism_prm.aggregate import DEFAULT_AGGREGATOR, check_aggregator

T = TypeVar("T")

DEFAULT_THRESHOLD = 0.5
"""The threshold of a PRM without a card."""

GIVEN = "as given"
CARD = "from the PRM's card"
DEFAULT = "the default, since no card sets it"


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value that is used, and where it came from."""

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
    """Only critics' formats have one."""


class CardLike(Protocol):
    """What is read of a PRM's card."""

    @property
    def aggregator(self) -> str: ...

    @property
    def threshold(self) -> float: ...


class HasCard(Protocol):
    """A scorer, or what is known of one."""

    @property
    def card(self) -> CardLike | None: ...


def card_values(scorer: HasCard | None) -> CardValues | None:
    """The card values of a scorer; None if it has no card."""
    card = None if scorer is None else scorer.card
    return card if card is None or isinstance(card, CardValues) else CardValues(card.aggregator, card.threshold)


def choose_aggregator(given: str | None, card: CardValues | None) -> Choice[str]:
    """How step scores become a solution's score."""
    choice = _choose(given, None if card is None else card.aggregator, DEFAULT_AGGREGATOR)
    check_aggregator(choice.value)
    return choice


def choose_threshold(given: float | None, card: CardValues | None) -> Choice[float]:
    """The threshold above which a step counts as right."""
    return _choose(given, None if card is None else card.threshold, DEFAULT_THRESHOLD)


def _choose(given: T | None, said: T | None, default: T) -> Choice[T]:
    if given is not None:
        return Choice(given, GIVEN)
    return Choice(default, DEFAULT) if said is None else Choice(said, CARD)
