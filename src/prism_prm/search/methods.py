"""The search methods and their settings.

A method is a generator for ONE problem: it yields the nodes to expand and receives their children. The engine runs the
generators of many problems at the same time, and serves all requests of a round in one batch. `METHODS` at the end
lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from prism_prm.aggregate import DEFAULT_AGGREGATOR, check_aggregator
from prism_prm.backends.policy import Sampling, node_key, rng
from prism_prm.config import SHOWN, Count, Natural, Positive, Share, check
from prism_prm.errors import ConfigError
from prism_prm.grading.extract import extract_answer
from prism_prm.grading.plain_answers import normalize
from prism_prm.search.adaptive import AdaptiveSettings, is_safe, votes_in_draws
from prism_prm.search.tree import SearchNode, merge

RANKED = ("beam", "dvts")
"""Methods that rank candidates by PRM score and likelihood."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Section [search]: the search method and its settings."""

    method: Literal["sample", "greedy", "best-of-n", "beam", "dvts", "particle"] = "beam"
    """The search method."""
    n: Count = 16
    """The number of solutions to sample, or of candidates per round of a tree search. `prism search` uses its own n."""
    expand: Count = 4
    """For beam and dvts: the number of samples per kept beam. n/expand beams are kept."""
    lookahead: Natural = 0
    """For beam and dvts: the number of greedy steps to write after each candidate. The candidate is ranked by the score
    at their end."""
    prm_weight: Share = 1.0
    """For beam and dvts: rank by weight · log score + (1 − weight) · log-likelihood. 1 uses only the PRM, 0 only the
    policy's likelihood."""
    resample_temperature: Positive = 1.0
    """For particle: the temperature T of resampling by softmax(logit(score) / T)."""
    aggregator: str | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """How step scores become a path's score: last, min, product, mean, soft-min or adjusted-min. By default each PRM's
    own."""
    max_steps: Count = 40
    """The maximum number of steps of a solution."""
    max_policy_tokens: Count | None = None
    """Stop a problem after the policy has written this many tokens for it, and keep the solutions so far. By default
    there is no limit."""
    seed: Natural = 0
    """The seed for all sampling."""
    sampling: Sampling = field(default_factory=Sampling)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)

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
        """The number of beams that are kept."""
        return max(1, self.n // self.fan)

    @property
    def effective_aggregator(self) -> str:
        """The aggregator, or the default. An engine sets `aggregator` to that of the PRM's card."""
        return self.aggregator or DEFAULT_AGGREGATOR

    @property
    def samples_once(self) -> bool:
        """Whether the solutions are independent samples that no PRM changes, so that one run serves all PRMs."""
        return METHODS[self.method].independent and not self.adaptive.needs_scores

    @property
    def needs_log_likelihood(self) -> bool:
        """Whether the policy must return the log-likelihood of its steps."""
        return self.method in RANKED and self.prm_weight < 1


@dataclass(frozen=True, slots=True)
class Expand:
    """An expansion: `counts[i]` more samples of the next step after `nodes[i]`."""

    nodes: tuple[SearchNode, ...]
    counts: tuple[int, ...]
    greedy: bool = False
    scored: bool = True
    """Whether the PRM scores the new steps."""
    whole: bool = False
    """Whether all new steps up to the end of the solution may be written at once."""
    keep: tuple[SearchNode, ...] = ()
    """Other nodes that will be expanded later; all others are dropped."""
    ahead: bool = False
    """Whether the new steps only show where the kept nodes lead, and are then thrown away."""
    shown: tuple[SearchNode, ...] = ()
    """Nodes to add to the result, besides earlier solutions and the new nodes, if the budget ends here."""
    held: tuple[SearchNode, ...] = ()
    """Finished solutions that are kept."""
    hope: float = -math.inf
    """New nodes that score lower are given up."""


Children = list[list[SearchNode]]
"""The new children of each node of an expansion."""
Search = Generator[Expand, Children, Sequence[SearchNode]]
"""Yields expansions, receives their children, and returns the solutions in order."""


def sample(start: SearchNode, settings: SearchSettings) -> Search:
    """n solutions, in the order of their first steps; fewer, if the budget is adaptive."""
    stopping = settings.adaptive
    if stopping.is_fixed:
        return (yield from _write_solutions(start, settings.n, settings))
    leaves = yield from _write_solutions(start, min(stopping.least, settings.n), settings)
    scores = [[node.score for node in leaf.nodes()] for leaf in leaves]
    if stopping.rule == "early-scores":
        more = stopping.num_wanted(scores, settings.n) - len(leaves)
        return [*leaves, *((yield from _write_solutions(start, more, settings, earlier=leaves)) if more > 0 else ())]
    hope = stopping.lowest_hope(scores) if stopping.rule == "hopeless" else -math.inf
    left = settings.n - len(leaves)
    while left > 0 and not _answer_is_safe(leaves, left, settings):
        new = yield from _write_solutions(start, min(stopping.least, left), settings, earlier=leaves, hope=hope)
        left -= len(new)
        leaves = [*leaves, *(leaf for leaf in new if not leaf.falls_below(hope))]
    return leaves


def greedy(start: SearchNode, settings: SearchSettings) -> Search:
    """One solution, of the likeliest tokens."""
    return (yield from _write_solutions(start, 1, settings, greedy=True))


def _answer_is_safe(leaves: Sequence[SearchNode], left: int, settings: SearchSettings) -> bool:
    """Whether the leading answer is safe if `left` more may be drawn. A PRM that decides also weighs the votes."""
    stopping = settings.adaptive
    assert stopping.error is not None, "the budget is adaptive"
    # Answers are compared as texts here, without a judge: equal ones that are spelled differently only delay.
    answers = [extract_answer(leaf.text[leaf.start :]).answer for leaf in leaves]
    texts = [None if answer is None else normalize(answer) for answer in answers]
    groups = {text: number for number, text in enumerate(dict.fromkeys(texts))} | {None: -1}
    weights = [1.0] * len(leaves)
    if stopping.needs_scores:
        weights = [math.exp(leaf.log_score(settings.effective_aggregator)) for leaf in leaves]
    votes = votes_in_draws([groups[text] for text in texts], weights)
    return is_safe(votes, left, stopping.error)


def _write_solutions(
    start: SearchNode,
    n: int,
    settings: SearchSettings,
    *,
    greedy: bool = False,
    earlier: Sequence[SearchNode] = (),
    hope: float = -math.inf,
) -> Search:
    """Write n solutions; each stops at its first step that scores below `hope`."""
    # Unless scores decide something, complete solutions are scored at the end, packed as one tree.
    scored = settings.adaptive.needs_scores
    keep = () if settings.adaptive.is_fixed else (start,)
    (leaves,) = yield Expand(
        (start,), (n,), greedy, scored, whole=not scored, keep=keep, held=tuple(earlier), hope=hope
    )  # fmt: skip
    for _ in range(settings.max_steps - 1):
        hopeful = [leaf for leaf in leaves if not leaf.falls_below(hope)]
        going = {leaf: None for leaf in hopeful if not leaf.is_finished}
        if not going:
            break
        held = (*earlier, *(leaf for leaf in hopeful if leaf.is_finished))
        grown = yield Expand(tuple(going), (1,) * len(going), greedy, scored, keep=keep, held=held, hope=hope)
        after = {leaf: only for leaf, (only,) in zip(going, grown, strict=True)}
        leaves = [after.get(leaf, leaf) for leaf in leaves]
    return leaves


def beam(start: SearchNode, settings: SearchSettings) -> Search:
    """PRM-guided beam search. Returns the finished beams, best first.

    In each round, every kept beam is expanded, equal candidates are merged, and the best `width` candidates are kept. A
    kept candidate that is finished stays in the result and takes up a beam, so fewer beams continue. The search ends
    when none does.
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
    """The `count` candidates with the highest values, as (value, node); of equals, the earlier first."""
    values = [value(node, ends.get(node, node), settings) for node in candidates]
    order = sorted(range(len(candidates)), key=lambda i: (-values[i], i))
    return [(values[i], candidates[i]) for i in order[:count]]


def value(node: SearchNode, end: SearchNode, settings: SearchSettings) -> float:
    """The value that a candidate is ranked by; `end` is the end of its lookahead."""
    weight = settings.prm_weight
    total = 0.0
    # A part with weight 0 is skipped, because 0 · −inf is NaN.
    if weight > 0:
        total += weight * end.log_score(settings.effective_aggregator)
    if weight < 1:
        assert node.log_likelihood is not None, "the policy must return log-likelihoods"
        total += (1 - weight) * node.log_likelihood
    return total


def look_ahead(
    candidates: Sequence[SearchNode], settings: SearchSettings
) -> Generator[Expand, Children, dict[SearchNode, SearchNode]]:
    """By candidate, the node after at most `lookahead` greedy steps, by which it is ranked.

    The greedy steps are thrown away, unless the budget ends here: then they are part of the result.
    """
    ends = {node: node for node in candidates}
    for _ in range(settings.lookahead):
        active = tuple(node for node in candidates if not ends[node].is_finished)
        if not active:
            break
        finished = tuple(ends[node] for node in candidates if ends[node].is_finished)
        grown = yield Expand(
            tuple(ends[node] for node in active), (1,) * len(active), greedy=True, keep=tuple(candidates),
            ahead=True, shown=finished,
        )  # fmt: skip
        for node, (only,) in zip(active, grown, strict=True):
            ends[node] = only
    return ends


def dvts(start: SearchNode, settings: SearchSettings) -> Search:
    """Diverse verifier tree search: separate trees, so that one convincing early error cannot take over all beams.

    In each round, a tree keeps the best of `expand` children. Returns the end of each tree, in order.
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
        # A finished tree had no group in this round.
        heads = [head if head.is_finished else next(chosen) for head in heads] if heads else list(chosen)
        active = tuple(head for head in heads if not head.is_finished)
        if last or not active:
            break
        held = tuple(head for head in heads if head.is_finished)
        groups = yield Expand(active, (fan,) * len(active), scored=scored, held=held)
    return heads


EDGE = 1e-6
"""Scores are clipped to this distance from 0 and 1, where log-odds are infinite."""


def particle(start: SearchNode, settings: SearchSettings) -> Search:
    """Particle filtering: n partial solutions, resampled after every step in proportion to softmax(logit(score)).

    Good partial solutions are copied and bad ones die out, but by chance and not by rank, so that the search keeps
    exploring if the PRM is unsure. A finished particle does not change, and takes part in the resampling. Returns the n
    particles at the end, which may share solutions.
    """
    (particles,) = yield Expand((start,), (settings.n,))
    for depth in range(1, settings.max_steps):
        if all(node.is_finished for node in particles):
            break
        if len(particles) > 1:
            log_scores = [node.log_score(settings.effective_aggregator) for node in particles]
            number = rng(node_key(settings.seed, start.text, (-1, depth))).random()
            particles = [particles[i] for i in resample(resampling_weights(log_scores, settings), float(number))]
        active = tuple(dict.fromkeys(node for node in particles if not node.is_finished))
        if not active:  # only finished particles were drawn
            break
        counts = tuple(particles.count(node) for node in active)
        grown = yield Expand(active, counts, held=tuple(node for node in particles if node.is_finished))
        after = {node: iter(children) for node, children in zip(active, grown, strict=True)}
        particles = [next(after[node]) if node in after else node for node in particles]
    return particles


def resampling_weights(log_scores: Sequence[float], settings: SearchSettings) -> list[float]:
    """softmax(logit(score) / temperature)."""
    scores = np.clip(np.exp(np.asarray(log_scores)), EDGE, 1 - EDGE)
    logits = np.log(scores / (1 - scores)) / settings.resample_temperature
    weights = np.exp(logits - logits.max())
    return [float(weight) for weight in weights / weights.sum()]


def resample(weights: Sequence[float], number: float) -> list[int]:
    """Systematic resampling with one number in [0, 1): each index in proportion to its weight, rounded down or up."""
    size = len(weights)
    cumulative = np.cumsum(weights)
    points = (np.arange(size) + number) / size * cumulative[-1]
    indices = np.searchsorted(cumulative, points, side="right")
    return [min(int(i), size - 1) for i in indices]


@dataclass(frozen=True, slots=True)
class Method:
    """A search method."""

    run: Callable[[SearchNode, SearchSettings], Search]
    about: str
    needs_prm: bool = True
    independent: bool = False
    """Whether its solutions are independent samples, so that one run gives the accuracy for every smaller n."""


METHODS: dict[str, Method] = {
    "sample": Method(sample, "n independent solutions", needs_prm=False, independent=True),
    "greedy": Method(greedy, "one solution, always with the likeliest token", needs_prm=False),
    "best-of-n": Method(sample, "n independent solutions, scored by the PRM", independent=True),
    "beam": Method(beam, "keep the best n/expand candidates, expand each `expand` times"),
    "dvts": Method(dvts, "n/expand separate trees, each keeps its best child"),
    "particle": Method(particle, "n particles, resampled by their scores after every step"),
}


def find_method(settings: SearchSettings, has_prm: bool) -> Method:
    """The method of the settings. Raises if it needs a PRM and there is none."""
    if settings.method not in METHODS:
        raise ConfigError(f"Unknown method {settings.method!r}. Known: {', '.join(METHODS)}.")
    method = METHODS[settings.method]
    if not settings.adaptive.is_fixed and not method.independent:
        raise ConfigError(
            f"adaptive: the method {settings.method} has no independent solutions; use --method best-of-n or sample"
        )
    if settings.adaptive.needs_scores and not has_prm:
        raise ConfigError(f"adaptive.rule = {settings.adaptive.rule} needs a PRM's scores: give a PRM with --prm.")
    likelihood_only = settings.method in RANKED and settings.prm_weight == 0
    if method.needs_prm and not has_prm and not likelihood_only:
        raise ConfigError(f"The method {settings.method} needs a PRM's scores: give a PRM with --prm.")
    return method
