"""The methods of labelling: which steps of a solution get rollouts, and how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prism_prm.label.jobs import Job, Work, roll_out, sample_alternatives
from prism_prm.label.rules import find_rule
from prism_prm.label.stopping import stopping


def monte_carlo(job: Job) -> Work[None]:
    """The same number of rollouts for every candidate under every prefix."""
    yield from sample_alternatives(job, range(len(job.trunk)))
    yield from roll_out(job, job.wanted())


def adaptive(job: Job) -> Work[None]:
    """The same candidates; each gets rollouts until its label is decided."""
    yield from sample_alternatives(job, range(len(job.trunk)))
    yield from roll_out(job, job.wanted(), stopping(job.settings), job.settings.per_round)


def binary(job: Job) -> Work[None]:
    """Bisect a failed solution for its first wrong step; sample candidates there alone.

    Steps before it are right because a later one is; what comes behind it has no label, though perhaps an estimate.
    """
    settings, rule = job.settings, find_rule(job.settings.rule)

    def enough_of(which: list[int]) -> Work[None]:
        return roll_out(job, which, stopping(settings), settings.per_round)

    right, wrong = -1, len(job.trunk)
    if job.right:
        right = len(job.trunk) - 1
    elif job.ended:
        wrong = len(job.trunk) - 1  # an answer that is wrong
    while wrong - right > 1:
        middle = (right + wrong) // 2
        node = job.nodes[job.trunk[middle]]
        yield from enough_of([job.trunk[middle]])
        if not node.tally.rollouts:
            return  # the budget is spent
        if rule.label(node.tally.hits / node.tally.rollouts):
            right = middle
        else:
            wrong = middle
    for position in range(right + 1):
        job.nodes[job.trunk[position]].implied = 1.0
    if wrong < len(job.trunk):
        yield from sample_alternatives(job, [wrong])
        yield from enough_of(job.children(wrong))


@dataclass(frozen=True, slots=True)
class Method:
    """A way to spend rollouts."""

    about: str
    run: Callable[[Job], Work[None]]


METHODS: dict[str, Method] = {
    "monte-carlo": Method("the same number of rollouts for every candidate under every prefix", monte_carlo),
    "binary": Method("bisection for the first wrong step, and candidates beside it alone", binary),
    "adaptive": Method("every candidate under every prefix, each until its label is decided", adaptive),
}
"""Name → method."""
