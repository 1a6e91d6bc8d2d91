"""The methods of search, with their settings: a few selection rules each, over the shared engine.

A method is written for ONE problem, as a generator: it yields the nodes to expand and receives their children. The
engine runs the generators of many problems side by side and serves all requests of a round in one batch. `METHODS` at
the end names them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from prism_prm.aggregate import DEFAULT_AGGREGATOR, check_aggregator
from prism_prm.backends.policy import Sampling, node_key, rng
from prism_prm.config import SHOWN, Count, Natural, Positive, Share, check
from prism_prm.errors import ConfigError
from prism_prm.search.tree import SearchNode, merge

RANKED = ("beam", "dvts")
"""Methods that rank candidates, by PRM score and likelihood."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings that all methods share, and a few that apply to some."""

    method: Literal["sample", "greedy", "best-of-n", "beam", "dvts", "particle"] = "beam"
    """The search method (see docs/search.md)."""
    n: Count = 16
    """How many solutions to sample, or candidates per round of a tree search. `prism search` uses its own n instead."""
    expand: Count = 4
    """For beam and dvts: the number of samples per kept beam. n/expand beams are kept."""
    lookahead: Natural = 0
    """For beam and dvts: write this many greedy steps after each candidate and rank the candidate by the score at
    their end."""
    prm_weight: Share = 1.0
    """For beam and dvts: rank by weight · log score + (1 − weight) · log-likelihood. 1 uses only the PRM, 0 only the
    policy's likelihood."""
    resample_temperature: Positive = 1.0
    """For particle: the temperature T of resampling by softmax(logit(score) / T)."""
    aggregator: str | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """How step scores become a path's score: last, min, product, mean or soft-min. By default each PRM's own."""
    max_steps: Count = 40
    """A solution is cut after this many steps."""
    max_policy_tokens: Count | None = None
    """Stop a problem after the policy has written this many tokens for it, and keep what was found."""
    seed: Natural = 0
    """The seed for all sampling."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        check(self)
        if self.aggregator is not None:
            check_aggregator(self.aggregator)
        if self.lookahead and not self.prm_weight:
            raise ConfigError("lookahead needs the PRM's score, but prm_weight = 0 ignores it")

    @property
    def fan(self) -> int:
        """Samples per kept beam: `expand`, but never more than n."""
        return min(self.expand, self.n)

    @property
    def width(self) -> int:
        """Beams that are kept."""
        return max(1, self.n // self.fan)

    @property
    def how(self) -> str:
        """The aggregator; an engine has put that of its PRM's card here where none was given."""
        return self.aggregator or DEFAULT_AGGREGATOR

    @property
    def needs_log_likelihood(self) -> bool:
        """Whether the policy must say how likely its steps are."""
        return self.method in RANKED and self.prm_weight < 1


@dataclass(frozen=True, slots=True)
class Expand:
    """An expansion: `counts[i]` more samples of the next step after `nodes[i]`."""

    nodes: tuple[SearchNode, ...]
    counts: tuple[int, ...]
    greedy: bool = False
    scored: bool = True
    """Whether the PRM is to score the new steps."""
    keep: tuple[SearchNode, ...] = ()
    """Other nodes that will be expanded later; all others are dropped."""
    shown: tuple[SearchNode, ...] = ()
    """What else there is to show, beside solutions found before and the new nodes, if the budget ends here."""
    held: tuple[SearchNode, ...] = ()
    """Finished solutions that are kept as they are."""


Children = list[list[SearchNode]]
"""For each node of an expansion its new children."""
Search = Generator[Expand, Children, Sequence[SearchNode]]
"""Yields expansions, is sent children, returns the solutions in order."""


def sample(start: SearchNode, settings: SearchSettings) -> Search:
    """n solutions, in the order of their first steps."""
    return (yield from _write_out(start, settings.n, settings, greedy=False))


def greedy(start: SearchNode, settings: SearchSettings) -> Search:
    """The one solution of the likeliest tokens."""
    return (yield from _write_out(start, 1, settings, greedy=True))


def _write_out(start: SearchNode, n: int, settings: SearchSettings, *, greedy: bool) -> Search:
    # Scores decide nothing on the way, so whole solutions are scored at the end, packed as one tree.
    (leaves,) = yield Expand((start,), (n,), greedy=greedy, scored=False)
    for _ in range(settings.max_steps - 1):
        open_leaves = tuple(leaf for leaf in leaves if not leaf.is_finished)
        if not open_leaves:
            break
        held = tuple(leaf for leaf in leaves if leaf.is_finished)
        grown = yield Expand(open_leaves, (1,) * len(open_leaves), greedy=greedy, scored=False, held=held)
        after = {leaf: only for leaf, (only,) in zip(open_leaves, grown, strict=True)}
        leaves = [after.get(leaf, leaf) for leaf in leaves]
    return leaves


def beam(start: SearchNode, settings: SearchSettings) -> Search:
    """PRM-guided beam search: the finished beams, best first.

    Each round every kept beam is expanded, equal candidates are merged, and the best `width` candidates are kept. A
    kept candidate whose solution is finished stays in the result and keeps its place, so fewer beams continue; the
    search ends when no beam does.
    """
    finished: list[tuple[float, SearchNode]] = []
    beams: tuple[SearchNode, ...] = (start,)
    fan = settings.n
    for depth in range(settings.max_steps):
        held = tuple(node for _, node in finished)
        grown = yield Expand(beams, (fan,) * len(beams), scored=settings.prm_weight > 0, held=held)
        candidates = merge([node for children in grown for node in children])
        last = depth + 1 == settings.max_steps
        ends = (yield from look_ahead(candidates, settings)) if settings.lookahead and not last else {}
        kept = best(candidates, ends, settings.width - len(finished), settings)
        finished += [(value, node) for value, node in kept if node.is_finished or last]
        beams = tuple(node for _, node in kept if not node.is_finished)
        if not beams:
            break
        fan = settings.fan
    return [node for _, node in sorted(finished, key=lambda entry: -entry[0])]


def best(
    candidates: Sequence[SearchNode], ends: Mapping[SearchNode, SearchNode], count: int, settings: SearchSettings
) -> list[tuple[float, SearchNode]]:
    """The `count` candidates of the highest value, each with it; the earlier of equals first."""
    values = [value(node, ends.get(node, node), settings) for node in candidates]
    order = sorted(range(len(candidates)), key=lambda i: (-values[i], i))
    return [(values[i], candidates[i]) for i in order[:count]]


def value(node: SearchNode, end: SearchNode, settings: SearchSettings) -> float:
    """What a candidate is ranked by; `end` is where looking ahead from it led."""
    weight = settings.prm_weight
    total = 0.0
    # A weight of 0 leaves its part out altogether: 0 · −inf is not a number.
    if weight > 0:
        total += weight * end.log_score(settings.how)
    if weight < 1:
        assert node.log_likelihood is not None, "the policy says how likely its steps are"
        total += (1 - weight) * node.log_likelihood
    return total


def look_ahead(
    candidates: Sequence[SearchNode], settings: SearchSettings
) -> Generator[Expand, Children, dict[SearchNode, SearchNode]]:
    """Candidate → the node that at most `lookahead` greedy steps lead to; it is ranked by where it leads.

    What is written on the way is thrown away, unless the budget ends there: then it is how far each candidate came.
    """
    ends = {node: node for node in candidates}
    for _ in range(settings.lookahead):
        going = tuple(node for node in candidates if not ends[node].is_finished)
        if not going:
            break
        there = tuple(ends[node] for node in candidates if ends[node].is_finished)
        grown = yield Expand(
            tuple(ends[node] for node in going), (1,) * len(going), greedy=True, keep=tuple(candidates), shown=there
        )
        for node, (only,) in zip(going, grown, strict=True):
            ends[node] = only
    return ends


def dvts(start: SearchNode, settings: SearchSettings) -> Search:
    """Diverse verifier tree search: separate trees, so that one convincing early error cannot win them all.

    Gives the end of each tree, in their order; a tree keeps the best of `expand` children each round.
    """
    fan, width = settings.fan, settings.width
    scored = settings.prm_weight > 0
    (first,) = yield Expand((start,), (fan * width,), scored=scored)
    groups = [first[i * fan : (i + 1) * fan] for i in range(width)]
    heads: list[SearchNode] = []
    for depth in range(1, settings.max_steps + 1):
        last = depth == settings.max_steps
        candidates = [node for group in groups for node in group]
        ends = (yield from look_ahead(candidates, settings)) if settings.lookahead and not last else {}
        chosen = iter([best(group, ends, 1, settings)[0][1] for group in groups])
        # A tree that is finished had no group this round.
        heads = [head if head.is_finished else next(chosen) for head in heads] if heads else list(chosen)
        going = tuple(head for head in heads if not head.is_finished)
        if last or not going:
            break
        held = tuple(head for head in heads if head.is_finished)
        groups = yield Expand(going, (fan,) * len(going), scored=scored, held=held)
    return heads


EDGE = 1e-6
"""Scores are held this far from 0 and 1, where their log-odds would be infinite."""


def particle(start: SearchNode, settings: SearchSettings) -> Search:
    """Particle filtering: n partial solutions, resampled after every step in proportion to softmax(logit(score)).

    Good partial solutions are copied and bad ones die out, but by chance and not by rank, so that the search keeps
    exploring where the PRM is unsure. A finished particle stays as it is and takes part in the resampling. Gives the n
    particles at the end; a solution that several of them share is there several times.
    """

    (particles,) = yield Expand((start,), (settings.n,))
    for depth in range(1, settings.max_steps):
        if all(node.is_finished for node in particles):
            break
        if len(particles) > 1:
            weights = resampling_weights([node.log_score(settings.how) for node in particles], settings)
            number = rng(node_key(settings.seed, start.text, (-1, depth))).random()
            particles = [particles[i] for i in resample(weights, float(number))]
        going = tuple(dict.fromkeys(node for node in particles if not node.is_finished))
        if not going:  # only finished ones were drawn
            break
        counts = tuple(particles.count(node) for node in going)
        grown = yield Expand(going, counts, held=tuple(node for node in particles if node.is_finished))
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


@dataclass(frozen=True, slots=True)
class Method:
    """A way to search."""

    run: Callable[[SearchNode, SearchSettings], Search]
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
        raise ConfigError(f"The method {settings.method} needs a PRM's scores: give a PRM with --prm.")
    return method
