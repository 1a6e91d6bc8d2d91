"""The methods of search, by name: each is a small file of selection rules over the shared engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prism_prm.errors import ConfigError
from prism_prm.search.beam import beam
from prism_prm.search.dvts import dvts
from prism_prm.search.expand import Search
from prism_prm.search.particle import particle
from prism_prm.search.sample import greedy, sample
from prism_prm.search.settings import RANKED, SearchSettings
from prism_prm.search.tree import Node


@dataclass(frozen=True, slots=True)
class Method:
    """A way to search."""

    run: Callable[[Node, SearchSettings], Search]
    about: str
    needs_prm: bool = True
    independent: bool = False
    """Whether its solutions are independent samples, so that one run tells the accuracy for every smaller n."""


METHODS: dict[str, Method] = {
    "sample": Method(sample, "n independent solutions", needs_prm=False, independent=True),
    "greedy": Method(greedy, "the likeliest token, always: one solution", needs_prm=False),
    "best-of-n": Method(sample, "n independent solutions, scored by the PRM", independent=True),
    "beam": Method(beam, "keep the best n/expand candidates, expand each `expand` times"),
    "dvts": Method(dvts, "n/expand separate trees, each keeps its best child"),
    "particle": Method(particle, "n particles, resampled by their scores after every step"),
}


def find_method(settings: SearchSettings, has_prm: bool) -> Method:
    """The method that the settings name, if what it needs is there."""
    if settings.method not in METHODS:
        raise ConfigError(f"Unknown method {settings.method!r}. Known: {', '.join(METHODS)}.")
    method = METHODS[settings.method]
    likelihood_only = settings.method in RANKED and settings.prm_weight == 0
    if method.needs_prm and not has_prm and not likelihood_only:
        raise ConfigError(f"The method {settings.method} ranks by a PRM's scores: give one with --prm.")
    return method
