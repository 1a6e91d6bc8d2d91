"""How much waits for the models, and how long it will take at the rate at which each of them works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prism_prm.serve.models import Item

MEMORY = 0.8
"""How much of a mean of the last values is what it was before the last one."""
DENSITY = 0.25
"""Tokens per byte of a request, before one was read."""
SMALL = 512
"""Tokens of a batch in which what it costs besides outweighs them."""


@dataclass(eq=False)
class Place:
    """What one request takes of the queue: a guess by its bytes until its tokens are counted."""

    model: str | None
    """None where no model is asked."""
    tokens: int
    work: int
    """Those of the tokens that the model has to read; others are in its cache."""
    num_running: int = 0
    """How many of its items are in the batch that is being scored."""
    is_left: bool = False
    """Whether nobody waits for it any more."""


class Backlog:
    """The places that are taken, and the rates of models."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rates: dict[str, float] = {}
        """Tokens per second of each model that has worked."""
        self._work: Counter[str | None] = Counter()
        self._density = self._work_density = DENSITY

    def guess(self, model: str | None, num_bytes: int) -> Place:
        """What a request of so many bytes may take, as the last ones did."""
        return Place(model, int(num_bytes * self._density), int(num_bytes * self._work_density) if model else 0)

    def add(self, place: Place) -> None:
        """It waits from now on."""
        self.tokens += place.tokens
        self._work[place.model] += place.work

    def remove(self, place: Place) -> None:
        """It does not wait any more, nor is it worked on."""
        self.tokens -= place.tokens
        self._work[place.model] -= place.work

    def note_density(self, items: Sequence[Item], work: int, num_bytes: int) -> None:
        """What a request of so many bytes has turned out to be."""
        self._density = _mean(self._density, sum(item.tokens for item in items) / max(1, num_bytes))
        self._work_density = _mean(self._work_density, work / max(1, num_bytes))

    def seconds(self, more: Place | None = None) -> float:
        """How long what waits will take, and one place more; a model whose rate is unknown counts nothing."""
        waiting = sum(self._work[model] / rate for model, rate in list(self.rates.items()))
        rate = self.rates.get(more.model or "") if more is not None else None
        return waiting + (more.work / rate if more is not None and rate else 0.0)

    def note_rate(self, model: str, tokens: int, seconds: float, *, is_full: bool) -> None:
        """How long a batch took, and whether more of it would have exceeded its limits."""
        if tokens <= 0:
            return
        now, before = tokens / max(seconds, 1e-6), self.rates.get(model)
        if before is None:
            self.rates[model] = now
        elif tokens < SMALL and not is_full:  # more would have taken hardly longer
            self.rates[model] = max(before, _mean(before, now))
        else:  # it falls at once and rises slowly: a request that is refused comes again, one that is late is lost
            self.rates[model] = min(now, _mean(before, now))


def _mean(before: float, now: float) -> float:
    return MEMORY * before + (1 - MEMORY) * now
