"""Particle filtering: n partial solutions, resampled after every step in proportion to softmax(logit(score)).

Good partial solutions are copied and bad ones die out, but by chance and not by rank, so that the search keeps
exploring where the PRM is unsure. A finished particle stays as it is and takes part in the resampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_prm.policies import node_key
from prism_prm.policies.choose import noise
from prism_prm.search.expand import Expand, Search
from prism_prm.search.settings import SearchSettings
from prism_prm.search.tree import Node

EDGE = 1e-6
"""Scores are held this far from 0 and 1, where their log-odds would be infinite."""


def particle(start: Node, settings: SearchSettings) -> Search:
    """The n particles at the end; a solution that several particles share is there several times."""
    (particles,) = yield Expand((start,), (settings.n,))
    for depth in range(1, settings.max_steps):
        if all(node.is_finished for node in particles):
            break
        if len(particles) > 1:
            weights = resampling_weights([node.log_score(settings.aggregator) for node in particles], settings)
            number = noise(node_key(settings.seed, start.text, (-1, depth))).random()
            particles = [particles[i] for i in resample(weights, float(number))]
        going = tuple(dict.fromkeys(node for node in particles if not node.is_finished))
        if not going:  # only finished ones were drawn
            break
        counts = tuple(particles.count(node) for node in going)
        grown = yield Expand(going, counts)
        after = {node: iter(children) for node, children in zip(going, grown, strict=True)}
        particles = [next(after[node]) if node in after else node for node in particles]
    return particles


def resampling_weights(log_scores: Sequence[float], settings: SearchSettings) -> list[float]:
    """softmax(logit(score) / temperature)."""
    scores = np.clip(np.exp(np.asarray(log_scores)), EDGE, 1 - EDGE)
    logits = np.log(scores / (1 - scores)) / settings.resample_temperature
    weights = np.exp(logits - logits.max())
    return [float(weight) for weight in weights / weights.sum()]


def resample(weights: Sequence[float], number: float) -> list[int]:
    """Systematic resampling from one number in [0, 1): each index as often as its share of all, rounded down or up."""
    size = len(weights)
    cumulative = np.cumsum(weights)
    points = (np.arange(size) + number) / size * cumulative[-1]
    found = np.searchsorted(cumulative, points, side="right")
    return [min(int(i), size - 1) for i in found]
