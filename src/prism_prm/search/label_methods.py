"""The labeling methods: which rollouts a solution's steps get, and the state of a solution while it is labeled.

A method is a generator: it yields requests to the policy and receives the continuations. So many solutions are labeled
at the same time, and each method reads like a plain procedure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from prism_prm.backends.policy import Sampling, StepRequest, Written, node_key, solution_start
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.label_rules import LabelSettings, RolloutTally, find_rule, stop_rule
from prism_prm.segments import DEFAULT_SEGMENTER, complete_steps, find_segmenter, split_with_ends
from prism_prm.steps import cut_with_ends, ends_in_code, ends_step, trimmed
from prism_prm.tree import ROOT, Estimate, Step, StepTree

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Continuation:
    """A text by the policy."""

    written: Written
    right: bool
    """Whether it completes a right solution."""


Work = Generator[list[StepRequest], list[Continuation], T]
SOLUTION, ALTERNATIVE, ROLLOUT = range(3)
"""What is sampled: the second number of a path that seeds random numbers."""
AFTER_ERROR = "steps after a wrong one"
"""The count of labels that are dropped after an error."""


@dataclass(eq=False, slots=True)
class Node:
    """A step that is being labeled."""

    text: str
    parent: int
    so_far: str
    """The prompt and all steps up to this one, which the policy continues."""
    state: Any = field(default=None, repr=False)
    verdict: bool | None = None
    """Whether the answer is right, if this step ends its solution."""
    tally: RolloutTally = field(default_factory=RolloutTally)
    implied: float | None = None
    """The label implied by other steps, for a step without rollouts."""


@dataclass(eq=False, slots=True)
class Target:
    """A solution that is being labeled, with the alternatives to its steps."""

    problem: TaskProblem
    key: str
    """Seeds its random numbers, together with the number of the solution."""
    number: int
    settings: LabelSettings
    prompt: str
    nodes: list[Node] = field(default_factory=list)
    trunk: list[int] = field(default_factory=list)
    ended: bool | None = None
    right: bool | None = None
    """Whether the solution reached the right answer."""
    budget: RolloutBudget = field(default_factory=lambda: RolloutBudget())
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of what was left out, by reason."""
    grows: bool = True
    """Whether alternatives are sampled; else only existing steps are labeled."""
    skipped: frozenset[int] = frozenset()
    """Nodes that need no label."""

    @property
    def start(self) -> int:
        """Where the solution begins in the text; before the end of the prompt if that begins the thinking."""
        return solution_start(self.prompt)

    def rng_key(self, kind: int, *path: int) -> int:
        """The seed of one sample."""
        return node_key(self.settings.seed, self.key, (self.number, kind, *path))

    def prefix(self, position: int) -> tuple[str, Any]:
        """The text before a step of the trunk, and the policy's state there."""
        if position == 0:
            first = self.nodes[self.trunk[0]] if self.trunk else None
            return self.prompt, first.state if first else None
        node = self.nodes[self.trunk[position - 1]]
        return node.so_far, node.state

    def children(self, position: int) -> list[int]:
        """The candidates after the same prefix as a step of the trunk, including that step."""
        parent = self.nodes[self.trunk[position]].parent
        return [i for i, node in enumerate(self.nodes) if node.parent == parent]

    def tree(self, tree_id: int = 0) -> StepTree:
        """The tree with its labels."""
        rule, level = find_rule(self.settings.rule), self.settings.confidence
        steps = []
        for node in self.nodes:
            estimate = node.tally.estimate(level) if node.tally.rollouts else None
            if node.verdict is not None:
                value = float(node.verdict)
                estimate = Estimate(value, 0, value, value)
            label = node.implied if estimate is None else rule.label(estimate.value)
            steps.append(Step(node.text, label, None if estimate is None else estimate.value, estimate=estimate))
        parents = tuple(node.parent for node in self.nodes)
        if self.settings.after_error == "drop" or self.settings.method == "binary":
            # Steps after a wrong one lose their labels, but keep their estimates.
            has_error: list[bool] = []
            for i, (step, node) in enumerate(zip(steps, self.nodes, strict=True)):
                is_later = node.parent != ROOT and has_error[node.parent]
                has_error.append(is_later or step.label == 0.0)
                self.counts[AFTER_ERROR] += is_later and step.label is not None
                steps[i] = replace(step, label=None) if is_later else step
        return StepTree(
            tree_id, self.problem.text, tuple(steps), parents, tuple(self.trunk), self.problem.name,
            self.problem.answer, self.ended,
        )  # fmt: skip


@dataclass(slots=True)
class RolloutBudget:
    """The cost of all solutions of a problem, and its limit."""

    most: int | None = None
    tokens: int = 0
    rollouts: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the limit is reached, so that no more rollouts start."""
        return self.most is not None and self.tokens >= self.most


def sample_solutions(targets: Sequence[Target]) -> Work[list[Target]]:
    """Sample a solution for each target, and split it into the steps of its trunk, without a last step that is cut off.

    Returns the targets with different solutions.
    """
    sampling = targets[0].settings.sampling
    outcomes = yield [
        StepRequest(target.prompt, target.rng_key(SOLUTION), sampling.max_tokens, whole=True, start=target.start)
        for target in targets
    ]
    kept: dict[tuple[str, ...], Target] = {}
    for target, outcome in zip(targets, outcomes, strict=True):
        written = outcome.written
        target.budget.tokens += written.num_tokens
        target.ended, target.right = written.ending == "end", outcome.right
        text = target.prompt[target.start :] + written.text
        if sampling.cuts_at_stop:
            is_whole = target.ended or (text.endswith(sampling.stop) and ends_step(text))
            steps = cut_with_ends(text, sampling.stop)
        else:
            segmenter = sampling.segmenter or DEFAULT_SEGMENTER
            steps = split_with_ends(text, segmenter)
            is_whole = target.ended or len(complete_steps(text, segmenter)) == len(steps)
        for step, end in steps:
            if end == len(text) and not is_whole:
                target.counts["steps cut off by the limit on tokens"] += 1
                continue
            parent = target.trunk[-1] if target.trunk else ROOT
            target.trunk.append(len(target.nodes))
            target.nodes.append(Node(step, parent, target.prompt[: target.start] + text[:end], written.state))
        if target.ended and target.nodes:
            target.nodes[-1].verdict = outcome.right
        texts = tuple(node.text for node in target.nodes)
        if not texts:
            target.counts["solutions without a whole step"] += 1
        elif texts in kept:
            target.counts["equal solutions"] += 1
        else:
            kept[texts] = target
    return list(kept.values())


def sample_alternatives(target: Target, positions: Sequence[int]) -> Work[None]:
    """Sample alternatives to these steps of the trunk; equal texts are one candidate."""
    settings = target.settings
    if not target.grows or not settings.alternatives:
        return
    requests = []
    for position in positions:
        text, state = target.prefix(position)
        for number in range(settings.alternatives):
            key = target.rng_key(ALTERNATIVE, position, number)
            requests.append(
                StepRequest(
                    text, key, settings.sampling.max_step_tokens, state=state, start=target.start, num_steps=position
                )
            )
    outcomes = iter((yield requests))
    for position in positions:
        known = {target.nodes[i].text for i in target.children(position)}
        parent = target.nodes[target.trunk[position]].parent
        for _ in range(settings.alternatives):
            outcome = next(outcomes)
            written = outcome.written
            target.budget.tokens += written.num_tokens
            before = target.prefix(position)[0]
            text, after = _first_step(before[target.start :], written, settings.sampling)
            if written.ending == "cut":
                target.counts["steps cut off by the limit on tokens"] += 1
            elif not text:
                target.counts["ends without another step"] += 1
            elif text in known:
                target.counts["equal alternatives"] += 1
            else:
                known.add(text)
                is_end = written.ending == "end" and before[: target.start] + after == before + written.text
                verdict = outcome.right if is_end else None
                target.nodes.append(Node(text, parent, before[: target.start] + after, written.state, verdict))


def _first_step(before: str, written: Written, sampling: Sampling) -> tuple[str, str]:
    """The first step of what was written after the beginning of a solution, and the solution up to its end."""
    text = before + written.text
    if sampling.cuts_at_stop:
        return trimmed(written.text, in_code=ends_in_code(before)), text
    segmenter = sampling.segmenter or DEFAULT_SEGMENTER
    ends = (end for _, end in split_with_ends(text, segmenter))
    end = next((end for end in ends if text[len(before) : end].strip()), len(text))
    in_code = find_segmenter(segmenter)[0].is_code or ends_in_code(before)
    return trimmed(text[len(before) : end], in_code=in_code), text[:end]


def roll_out(target: Target, which: Sequence[int]) -> Work[None]:
    """Roll out from these nodes, each up to the settings' number of times or until it is enough, within the budget."""
    settings = target.settings
    most, sampling, is_enough = settings.rollouts, settings.sampling, stop_rule(settings)
    # Rounds are needed only to decide in between; otherwise all rollouts are one batch.
    is_one_batch = settings.method == "monte-carlo" and target.budget.most is None
    size = most if is_one_batch else settings.per_round
    active = [i for i in which if target.nodes[i].verdict is None and target.nodes[i].tally.rollouts < most]
    while active and not target.budget.is_spent:
        counts = {i: min(size, most - target.nodes[i].tally.rollouts) for i in active}
        requests = []
        for i, count in counts.items():
            node = target.nodes[i]
            first = node.tally.rollouts
            for number in range(first, first + count):
                key, start = target.rng_key(ROLLOUT, i, number), target.start
                requests.append(
                    StepRequest(
                        node.so_far, key, sampling.max_tokens, state=node.state, whole=True, keep=False, start=start
                    )
                )
        outcomes = iter((yield requests))
        for i, count in counts.items():
            tally = target.nodes[i].tally
            for _ in range(count):
                outcome = next(outcomes)
                target.budget.tokens += outcome.written.num_tokens
                tally.rollouts += 1
                tally.hits += outcome.right
            target.budget.rollouts += count
        active = [i for i in active if target.nodes[i].tally.rollouts < most and not is_enough(target.nodes[i].tally)]


def run_in_step(works: Sequence[Work[None]]) -> Work[None]:
    """Run several generators in step, so that their requests are one batch."""
    requests = {}
    for work in works:
        try:
            requests[work] = next(work)
        except StopIteration:
            continue
    while requests:
        outcomes = iter((yield [request for own in requests.values() for request in own]))
        by_work = {work: [next(outcomes) for _ in own] for work, own in requests.items()}
        for work, own_outcomes in by_work.items():
            try:
                requests[work] = work.send(own_outcomes)
            except StopIteration:
                del requests[work]


def every_candidate(target: Target) -> Work[None]:
    """Rollouts for every candidate after every prefix, all the same number or each until its label is decided."""
    yield from sample_alternatives(target, range(len(target.trunk)))
    yield from roll_out(target, [i for i in range(len(target.nodes)) if i not in target.skipped])


def binary(target: Target) -> Work[None]:
    """Bisect a failed solution for its first wrong step, and sample alternatives only there.

    Steps before it are right because a later one is. Steps after it have no label, but may have an estimate.
    """
    rule = find_rule(target.settings.rule)
    right, wrong = -1, len(target.trunk)
    if target.right:
        right = len(target.trunk) - 1
    elif target.ended:
        wrong = len(target.trunk) - 1  # the last step has a wrong answer
    while wrong - right > 1:
        middle = (right + wrong) // 2
        node = target.nodes[target.trunk[middle]]
        yield from roll_out(target, [target.trunk[middle]])
        if not node.tally.rollouts:
            return  # the budget is spent
        if rule.label(node.tally.hits / node.tally.rollouts):
            right = middle
        else:
            wrong = middle
    for position in range(right + 1):
        target.nodes[target.trunk[position]].implied = 1.0
    if wrong < len(target.trunk):
        yield from sample_alternatives(target, [wrong])
        yield from roll_out(target, target.children(wrong))


@dataclass(frozen=True, slots=True)
class LabelMethod:
    """A way to spend rollouts."""

    about: str
    run: Callable[[Target], Work[None]]


METHODS: dict[str, LabelMethod] = {
    "monte-carlo": LabelMethod("the same number of rollouts for every candidate after every prefix", every_candidate),
    "binary": LabelMethod("bisection for the first wrong step, with alternatives only there", binary),
    "adaptive": LabelMethod("every candidate after every prefix, each until its label is decided", every_candidate),
}
