"""Run the labelling of many problems side by side: one batch of the policy and one of the judge per round."""

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
    sample_solutions,
    together,
)
from prism_prm.search.label_rules import LabelSettings
from prism_prm.tree import ROOT, StepTree, unique_names

Judging = Callable[[Sequence[tuple[TaskProblem, str]]], list[bool]]
"""(problem, the whole solution) → whether it is right: the one seam between rollouts and truth."""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """What became of one problem."""

    trees: tuple[StepTree, ...]
    reached: tuple[bool, ...]
    """For each tree whether its solution has the right answer."""
    tokens: int
    rollouts: int
    counts: dict[str, int] = field(default_factory=dict)
    """What was left out, and why."""


@dataclass(eq=False, slots=True)
class _Active:
    index: int
    problem: TaskProblem
    prompt: str
    work: Work[LabelResult]
    asks: list[StepRequest]


class LabelEngine:
    """Labels with one policy and one judge."""

    def __init__(self, policy: Policy, judge: Judging, settings: LabelSettings, *, at_once: int = AT_ONCE) -> None:
        self.policy, self.judge, self.settings, self.at_once = policy, judge, settings, at_once

    def run(
        self, problems: Sequence[TaskProblem], keys: Sequence[str], trees: Sequence[StepTree] | None = None
    ) -> Iterator[tuple[int, LabelResult] | RoundStats]:
        """(index, what became of it) of every problem, as soon as it is done, and every round.

        Args:
            problems: to solve, or those that the trees solve.
            keys: name the random numbers of each.
            trees: to label again instead: steps without a label stay without one, unless no step of the tree has any.
        """
        waiting = deque(range(len(problems)))
        active: list[_Active] = []
        while waiting or active:
            while waiting and len(active) < self.at_once:
                i = waiting.popleft()
                problem = problems[i]
                work = self._sampled(problem, keys[i]) if trees is None else self._given(trees[i], problem, keys[i])
                active.append(_Active(i, problem, self.policy.prompt(problem.text), work, next(work)))
            done: list[tuple[int, LabelResult]] = []
            still = []
            num_rollouts = sum(ask.whole and not ask.keep for running in active for ask in running.asks)
            answers = self._answer(active)
            for running, outcomes in zip(active, answers, strict=True):
                try:
                    running.asks = running.work.send(outcomes)
                    still.append(running)
                except StopIteration as stop:
                    done.append((running.index, stop.value))
            active = still
            yield from done
            tokens = sum(outcome.written.num_tokens for outcomes in answers for outcome in outcomes)
            yield RoundStats(tokens, len(active), rollouts=num_rollouts)

    def label(
        self, problems: Sequence[TaskProblem], keys: Sequence[str], trees: Sequence[StepTree] | None = None
    ) -> list[LabelResult]:
        """What became of each; see `run`."""
        found = dict(one for one in self.run(problems, keys, trees) if isinstance(one, tuple))
        return [found[i] for i in range(len(problems))]

    def _answer(self, active: Sequence[_Active]) -> list[list[Continuation]]:
        """What the policy writes to every ask, and whether it is right."""
        asks = [(running, ask) for running in active for ask in running.asks]
        if not asks:
            return [[] for _ in active]
        written = write_steps(self.policy, [ask for _, ask in asks], self.settings.sampling)
        ended = [i for i, one in enumerate(written) if one.ending == "end"]
        texts = []
        for i in ended:
            running, ask = asks[i]
            texts.append((running.problem, ask.text[len(running.prompt) :] + written[i].text))
        right = dict(zip(ended, self.judge(texts), strict=True))
        outcomes = iter([Continuation(one, right.get(i, False)) for i, one in enumerate(written)])
        return [[next(outcomes) for _ in running.asks] for running in active]

    def _sampled(self, problem: TaskProblem, key: str) -> Work[LabelResult]:
        """Solve a problem and label its solutions."""
        settings, budget = self.settings, RolloutBudget(self.settings.max_policy_tokens)
        prompt = self.policy.prompt(problem.text)
        every = [Target(problem, key, i, settings, prompt, budget=budget) for i in range(settings.solutions)]
        targets = yield from sample_solutions(every)
        yield from together([METHODS[settings.method].run(target) for target in targets])
        return _labelled([target.tree() for target in targets], targets, every, budget)

    def _given(self, tree: StepTree, problem: TaskProblem, key: str) -> Work[LabelResult]:
        """Label the steps that a tree has."""
        settings, budget = self.settings, RolloutBudget(self.settings.max_policy_tokens)
        target = Target(problem, key, 0, settings, self.policy.prompt(problem.text), budget=budget, grows=False)
        target.ended, target.trunk = tree.ended, list(tree.trunk)
        inner, last = set(tree.parents), tree.trunk[-1] if tree.trunk and tree.ended else None
        for i, (step, parent) in enumerate(zip(tree.nodes, tree.parents, strict=True)):
            # Where the tree does not say whether a step ends its solution, the policy decides.
            num_rollouts = None if step.estimate is None else step.estimate.rollouts
            before = target.prompt if parent == ROOT else target.nodes[parent].so_far
            node = Node(
                step.text, parent, before + step.text + (settings.sampling.stop if i in inner or num_rollouts else "")
            )
            target.nodes.append(node)
            if i == last or num_rollouts == 0:
                (node.verdict,) = self.judge([(problem, node.so_far[len(target.prompt) :])])
        unlabelled = frozenset(i for i, step in enumerate(tree.nodes) if step.label is None)
        target.skipped = unlabelled if len(unlabelled) < len(tree.nodes) else frozenset()
        if tree.trunk and target.ended:
            target.right = target.nodes[tree.trunk[-1]].verdict
        yield []  # so that many can begin before the first batch
        yield from METHODS[settings.method].run(target)
        if tree.trunk and tree.ended is None:  # taken as complete, unless it says otherwise
            (target.right,) = self.judge([(problem, target.nodes[tree.trunk[-1]].so_far[len(target.prompt) :])])
        made = target.tree(tree.tree_id)
        nodes = tuple(replace(new, origin=old.origin) for new, old in zip(made.nodes, tree.nodes, strict=True))
        return _labelled([replace(tree, nodes=nodes)], [target], [target], budget)


def by_answer(grader: Grader) -> Judging:
    """A solution is right if its final answer is, or its program passes all tests."""

    def judge(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        answers = [(problem, grader.extract(problem, text).answer) for problem, text in solutions]
        return [verdict.correct for verdict in grader.judge(answers)]

    return judge


def problem_of_tree(tree: StepTree, known: ProblemIndex) -> TaskProblem:
    """The known problem that the tree solves, or what the tree says itself."""
    found = known.find(tree.problem, name=tree.name, answer=tree.answer, where=tree.where)
    return found or TaskProblem(tree.problem, tree.answer or None, tree.name)


def _labelled(
    trees: Sequence[StepTree], targets: Sequence[Target], every: Sequence[Target], budget: RolloutBudget
) -> LabelResult:
    counts: Counter[str] = Counter()
    for target in every:
        counts.update(target.counts)
    counts = +counts  # without zeros
    unlabelled = sum(step.label is None for tree in trees for step in tree.nodes) - counts[AFTER_ERROR]
    if unlabelled:
        counts["steps without a label"] += unlabelled
    return LabelResult(
        tuple(trees), tuple(bool(target.right) for target in targets), budget.tokens, budget.rollouts, dict(counts)
    )


def label_problems(
    problems: Sequence[TaskProblem], policy: Policy, judge: Judging, settings: LabelSettings | None = None,
    *, at_once: int = AT_ONCE,
) -> list[StepTree]:  # fmt: skip
    """Sample solutions of problems and label their steps by rollouts: trees in the order of the problems.

    Args:
        problems: problems with reference answers, such as `load_task(...).problems`.
        policy: the policy that writes solutions, alternatives and rollouts.
        judge: says which whole solutions are right; `by_answer(grader)` judges final answers.
        settings: the method, its size, and the rule that makes labels.
        at_once: the number of problems labelled at the same time.
    """
    labeller = LabelEngine(policy, judge, settings or LabelSettings(), at_once=at_once)
    found = labeller.label(problems, unique_names(problem.text for problem in problems))
    trees = [tree for one in found for tree in one.trees]
    return [replace(tree, tree_id=i) for i, tree in enumerate(trees)]


def label_trees(
    trees: Sequence[StepTree], policy: Policy, judge: Judging, settings: LabelSettings | None = None,
    *, at_once: int = AT_ONCE,
) -> list[StepTree]:  # fmt: skip
    """The same trees with labels from rollouts of a policy instead of those they had; nothing is added to them.

    Steps without a label stay without one, unless no step of the tree has any. For a second opinion, give the settings
    another `seed`: policies that draw the same random numbers agree more often than they should.

    Args:
        trees: trees with reference answers.
        policy: the policy that writes the rollouts.
        judge: says which whole solutions are right.
        settings: the method, its size, and the rule that makes labels.
        at_once: the number of trees labelled at the same time.
    """
    labeller = LabelEngine(policy, judge, settings or LabelSettings(), at_once=at_once)
    problems = [problem_of_tree(tree, ProblemIndex([])) for tree in trees]
    found = labeller.label(problems, unique_names(tree.problem for tree in trees), trees)
    return [one.trees[0] for one in found]
