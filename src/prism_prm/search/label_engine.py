"""Label many problems at the same time, with one batch of the policy and one of the judge per round."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prism_prm.backends.policy import Policy, StepRequest, write_steps
from prism_prm.data.tasks import Grader, ProblemIndex, TaskProblem
from prism_prm.search.engine import AT_ONCE, RoundStats
from prism_prm.search.label_methods import (
    AFTER_ERROR,
    METHODS,
    Continuation,
    Node,
    RolloutBudget,
    Target,
    Work,
    run_in_step,
    sample_solutions,
)
from prism_prm.search.label_rules import LabelSettings
from prism_prm.tree import ROOT, StepTree, unique_names

Judging = Callable[[Sequence[tuple[TaskProblem, str]]], list[bool]]
"""Judges complete solutions, given as (problem, text): whether each is right."""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """The labeled trees of one problem, and their cost."""

    trees: tuple[StepTree, ...]
    reached: tuple[bool, ...]
    """Whether each tree's solution has the right answer."""
    tokens: int
    rollouts: int
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of what was left out, by reason."""


@dataclass(eq=False, slots=True)
class _Active:
    index: int
    problem: TaskProblem
    work: Work[LabelResult]
    requests: list[StepRequest]


class LabelEngine:
    """Labels with one policy and one judge."""

    def __init__(self, policy: Policy, judge: Judging, settings: LabelSettings, *, at_once: int = AT_ONCE) -> None:
        self.policy, self.judge, self.settings, self.at_once = policy, judge, settings, at_once

    def run(
        self,
        problems: Sequence[TaskProblem],
        keys: Sequence[str],
        trees: Sequence[StepTree] | None = None,
        *,
        grow: bool = False,
    ) -> Iterator[tuple[int, LabelResult] | RoundStats]:
        """Yield (index, result) of each problem as soon as it is done, and every round.

        Args:
            problems: the problems to solve, or those of the trees.
            keys: seed the random numbers of each.
            trees: label these instead. Steps without a label stay without one, unless no step of the tree has any.
            grow: whether alternatives to the steps of these trees are sampled, too.
        """
        waiting = deque(range(len(problems)))
        active: list[_Active] = []
        while waiting or active:
            while waiting and len(active) < self.at_once:
                i = waiting.popleft()
                problem = problems[i]
                if trees is None:
                    work = self._label_problem(problem, keys[i])
                else:
                    work = self._label_tree(trees[i], problem, keys[i], grow)
                active.append(_Active(i, problem, work, next(work)))
            done: list[tuple[int, LabelResult]] = []
            still_active = []
            num_rollouts = sum(request.whole and not request.keep for running in active for request in running.requests)
            continuations = self._continue(active)
            for running, outcomes in zip(active, continuations, strict=True):
                try:
                    running.requests = running.work.send(outcomes)
                    still_active.append(running)
                except StopIteration as stop:
                    done.append((running.index, stop.value))
            active = still_active
            yield from done
            tokens = sum(outcome.written.num_tokens for outcomes in continuations for outcome in outcomes)
            yield RoundStats(tokens, len(active), rollouts=num_rollouts)

    def label(
        self, problems: Sequence[TaskProblem], keys: Sequence[str], trees: Sequence[StepTree] | None = None
    ) -> list[LabelResult]:
        """The result of each problem; see `run`."""
        results = dict(event for event in self.run(problems, keys, trees) if isinstance(event, tuple))
        return [results[i] for i in range(len(problems))]

    def _continue(self, active: Sequence[_Active]) -> list[list[Continuation]]:
        """Let the policy write every request, and judge the solutions that this completes."""
        requests = [(running, request) for running in active for request in running.requests]
        if not requests:
            return [[] for _ in active]
        written = write_steps(self.policy, [request for _, request in requests], self.settings.sampling)
        ended = [i for i, text in enumerate(written) if text.ending == "end"]
        texts = []
        for i in ended:
            running, request = requests[i]
            texts.append((running.problem, request.text[request.start :] + written[i].text))
        right = dict(zip(ended, self.judge(texts), strict=True))
        outcomes = iter([Continuation(text, right.get(i, False)) for i, text in enumerate(written)])
        return [[next(outcomes) for _ in running.requests] for running in active]

    def _label_problem(self, problem: TaskProblem, key: str) -> Work[LabelResult]:
        """Solve a problem, and label its solutions."""
        settings, budget = self.settings, RolloutBudget(self.settings.max_policy_tokens)
        prompt = self.policy.prompt(problem.text)
        every = [Target(problem, key, i, settings, prompt, budget=budget) for i in range(settings.solutions)]
        targets = yield from sample_solutions(every)
        yield from run_in_step([METHODS[settings.method].run(target) for target in targets])
        return _make_result([target.tree() for target in targets], targets, every, budget)

    def _label_tree(self, tree: StepTree, problem: TaskProblem, key: str, grow: bool) -> Work[LabelResult]:
        """Label the steps of a tree, and with `grow` alternatives to them."""
        settings, budget = self.settings, RolloutBudget(self.settings.max_policy_tokens)
        target = Target(problem, key, 0, settings, self.policy.prompt(problem.text), budget=budget, grows=grow)
        target.ended, target.trunk = tree.ended, list(tree.trunk)
        inner, last = set(tree.parents), tree.trunk[-1] if tree.trunk and tree.ended else None
        for i, (step, parent) in enumerate(zip(tree.nodes, tree.parents, strict=True)):
            # If the tree does not say whether a step ends its solution, the policy decides.
            num_rollouts = None if step.estimate is None else step.estimate.rollouts
            before = target.prompt if parent == ROOT else target.nodes[parent].so_far
            node = Node(
                step.text, parent, before + step.text + (settings.sampling.stop if i in inner or num_rollouts else "")
            )
            target.nodes.append(node)
            if i == last or num_rollouts == 0:
                (node.verdict,) = self.judge([(problem, node.so_far[target.start :])])
        unlabeled = frozenset(i for i, step in enumerate(tree.nodes) if step.label is None)
        target.skipped = unlabeled if len(unlabeled) < len(tree.nodes) else frozenset()
        if tree.trunk and target.ended:
            target.right = target.nodes[tree.trunk[-1]].verdict
        yield []  # so that many trees start before the first batch
        yield from METHODS[settings.method].run(target)
        if tree.trunk and tree.ended is None:  # assumed to be complete
            (target.right,) = self.judge([(problem, target.nodes[tree.trunk[-1]].so_far[target.start :])])
        made = target.tree(tree.tree_id)
        nodes = list(made.nodes)  # the old ones come first
        for i, old in enumerate(tree.nodes):
            nodes[i] = replace(nodes[i], origin=old.origin)
        return _make_result([replace(tree, nodes=tuple(nodes), parents=made.parents)], [target], [target], budget)


def by_answer(grader: Grader) -> Judging:
    """Judge solutions by their final answer, or by whether their program passes all tests."""

    def judge(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        answers = [(problem, grader.extract(problem, text).answer) for problem, text in solutions]
        return [verdict.correct for verdict in grader.judge(answers)]

    return judge


def problem_of_tree(tree: StepTree, known: ProblemIndex) -> TaskProblem:
    """The known problem of a tree, or one made from the tree itself."""
    problem = known.find(tree.problem, name=tree.name, answer=tree.answer, where=tree.where)
    return problem or TaskProblem(tree.problem, tree.answer or None, tree.name)


def _make_result(
    trees: Sequence[StepTree], targets: Sequence[Target], every: Sequence[Target], budget: RolloutBudget
) -> LabelResult:
    counts: Counter[str] = Counter()
    for target in every:
        counts.update(target.counts)
    counts = +counts  # without zeros
    unlabeled = sum(step.label is None for tree in trees for step in tree.nodes) - counts[AFTER_ERROR]
    if unlabeled:
        counts["steps without a label"] += unlabeled
    return LabelResult(
        tuple(trees), tuple(bool(target.right) for target in targets), budget.tokens, budget.rollouts, dict(counts)
    )


def label_problems(
    problems: Sequence[TaskProblem], policy: Policy, judge: Judging, settings: LabelSettings | None = None,
    *, at_once: int = AT_ONCE,
) -> list[StepTree]:  # fmt: skip
    """Sample solutions of problems, and label their steps by rollouts. Returns trees in the order of the problems.

    Args:
        problems: problems with reference answers, such as `load_task(...).problems`.
        policy: the policy that writes solutions, alternatives and rollouts.
        judge: judges complete solutions; `by_answer(grader)` judges final answers.
        settings: the method, its size, and the label rule.
        at_once: the number of problems labeled at the same time.
    """
    engine = LabelEngine(policy, judge, settings or LabelSettings(), at_once=at_once)
    results = engine.label(problems, unique_names(problem.text for problem in problems))
    trees = [tree for result in results for tree in result.trees]
    return [replace(tree, tree_id=i) for i, tree in enumerate(trees)]


def label_trees(
    trees: Sequence[StepTree], policy: Policy, judge: Judging, settings: LabelSettings | None = None,
    *, at_once: int = AT_ONCE,
) -> list[StepTree]:  # fmt: skip
    """Replace the labels of trees by labels from rollouts of a policy; no steps are added.

    Steps without a label stay without one, unless no step of the tree has any. For a second opinion, use another
    `seed`: policies that draw the same random numbers agree more often than they should.

    Args:
        trees: trees with reference answers.
        policy: the policy that writes the rollouts.
        judge: judges complete solutions.
        settings: the method, its size, and the label rule.
        at_once: the number of trees labeled at the same time.
    """
    engine = LabelEngine(policy, judge, settings or LabelSettings(), at_once=at_once)
    problems = [problem_of_tree(tree, ProblemIndex([])) for tree in trees]
    results = engine.label(problems, unique_names(tree.problem for tree in trees), trees)
    return [result.trees[0] for result in results]
