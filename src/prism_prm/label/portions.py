"""The unit of labelling: a few problems or trees that are labelled side by side, by whoever holds policy and judge.

Portions are cut from the list of problems and depend on nothing else, so a problem is batched with the same others
wherever and whenever it is labelled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prism_prm.label.engine import Labelled, Labeller, Watch
from prism_prm.label.judging import Judging, by_answer
from prism_prm.label.settings import LabelSettings
from prism_prm.policies import Policy, PolicySettings
from prism_prm.policies.base import policy_for_workers
from prism_prm.programs import Level
from prism_prm.programs.cases import Packed
from prism_prm.records import StepTree
from prism_prm.resume import content_key
from prism_prm.tasks import TaskGrader, TaskProblem
from prism_prm.types import Say, silent
from prism_prm.workers import Opening, Portion, Workers, open_workers
from prism_prm.workers.settings import RaySettings


@dataclass(frozen=True, slots=True)
class Hands:
    """What a worker holds."""

    policy: Policy
    judge: Judging


@dataclass(frozen=True, slots=True)
class LabelWork:
    """Problems whose solutions are sampled and labelled, or trees whose steps are labelled, side by side."""

    settings: LabelSettings
    problems: Sequence[TaskProblem]
    """Of each tree, if there are trees."""
    trees: Sequence[StepTree] | None
    keys: Sequence[str]
    """What names the noise of each."""

    def contents(self) -> list[str]:
        """Of each a hash of what its labels follow from, besides settings and policy: answer or tests, and its tree."""
        trees = [None] * len(self.keys) if self.trees is None else [tree.content_hash() for tree in self.trees]
        return [content_key(_judged_by(problem), tree) for problem, tree in zip(self.problems, trees, strict=True)]

    def portions(self, size: int, what: str) -> Iterator[Portion[LabelWork]]:
        """The same in parts; `what` they are is for messages."""
        for start in range(0, len(self.keys), size):
            part = slice(start, start + size)
            trees = None if self.trees is None else self.trees[part]
            work = LabelWork(self.settings, self.problems[part], trees, self.keys[part])
            yield Portion(start, f"{what} {start + 1} to {start + len(work.keys)}", work, len(work.keys))

    def only(self, keys: Collection[str]) -> LabelWork:
        """The problems or trees with these keys."""
        wanted = [i for i, key in enumerate(self.keys) if key in keys]
        trees = None if self.trees is None else [self.trees[i] for i in wanted]
        return LabelWork(
            self.settings, [self.problems[i] for i in wanted], trees, [self.keys[i] for i in wanted]
        )  # fmt: skip


def _judged_by(problem: TaskProblem) -> tuple[str | float | None, ...]:
    tests = problem.tests
    if tests is not None and isinstance(tests.hidden, Packed):  # LiveCodeBench's would take minutes to unpack
        return tests.shown().reference(), tests.hidden.payload
    return problem.reference, problem.tolerance


@dataclass(frozen=True, slots=True)
class PortionLabelled:
    """What became of each of them, and what it took."""

    labelled: list[Labelled]
    watch: Watch


def label_portion(
    hands: Hands,
    work: LabelWork,
    watch: Callable[[Watch], None] = lambda _: None,
    file: Callable[[str, Labelled], None] = lambda _key, _labelled: None,
) -> PortionLabelled:
    """Label the problems or trees of a portion; `file` gets each when it is done."""
    labeller = Labeller(hands.policy, hands.judge, work.settings, at_once=len(work.keys), watch=watch)
    if work.trees is None:
        made = labeller.solve(work.problems, work.keys)
    else:
        made = labeller.relabel(work.trees, work.keys, work.problems)
    found = {}
    for i, labelled in made:
        file(work.keys[i], labelled)
        found[i] = labelled
    return PortionLabelled([found[i] for i in range(len(work.keys))], labeller.state)


def policy_identity(hands: Hands) -> str:
    """What decides the policy's texts."""
    return hands.policy.identity()


@contextlib.contextmanager
def hands_on_ray(
    policy: PolicySettings, settings: RaySettings, *, judges: int | None, sandbox: Level, has_programs: bool,
    say: Say = silent,
) -> Iterator[Workers[Hands]]:  # fmt: skip
    """Workers of a cluster, each with the policy and with processes that judge answers."""
    of_policy = policy_for_workers(policy)
    make = functools.partial(
        _make,
        policy=of_policy.make,
        judges=judges or settings.cpus_per_worker,
        sandbox=sandbox,
        has_programs=has_programs,
    )
    with open_workers(
        Opening(make, of_policy.folders, of_policy.loads), settings, alike=policy_identity, say=say
    ) as workers:
        yield workers


def _make(
    found: Mapping[str, str],
    *,
    policy: Callable[[Mapping[str, str]], Policy],
    judges: int,
    sandbox: Level,
    has_programs: bool,
) -> Hands:
    grader = TaskGrader(workers=judges, sandbox=sandbox)
    if has_programs:
        grader.programs.open()
    return Hands(policy(found), by_answer(grader))
