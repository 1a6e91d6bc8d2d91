"""Trees labeled by rollouts of a policy whose every value is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from branching import LENGTH, RIGHT, WRONG, Branching, judging, value

from prism_prm.backends.policy import Sampling
from prism_prm.data.tasks import ProblemIndex, TaskProblem
from prism_prm.search.label_checks import keep_agreed, label_by_scores, measure_noise
from prism_prm.search.label_engine import LabelEngine, label_problems, label_trees, problem_of_tree
from prism_prm.search.label_rules import LabelSettings, expected, first_error_chances
from prism_prm.stats import wilson
from prism_prm.tree import Estimate, Step, StepTree

SETTINGS = LabelSettings(rollouts=6, alternatives=4, sampling=Sampling(max_step_tokens=8, max_tokens=40))


def problems(count: int) -> list[TaskProblem]:
    return [TaskProblem(f"p{i}", "1", f"name-{i}") for i in range(count)]


def label(count: int = 12, policy: Branching | None = None, at_once: int = 32, **changes: object) -> list[StepTree]:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return label_problems(problems(count), policy or Branching(), judging, settings, at_once=at_once)


def test_every_candidate_under_every_prefix_has_its_rollouts() -> None:
    trees = label()
    assert [tree.problem for tree in trees] == [f"p{i}" for i in range(12)]
    for tree in trees:
        assert len(tree.trunk) == LENGTH + 1
        assert tree.ended
        assert (tree.answer, tree.name) == ("1", tree.problem.replace("p", "name-"))
        for parent, nodes in tree.positions():
            texts = [tree.nodes[node].text for node in nodes]
            assert len(set(texts)) == len(texts) <= 2, "there are two steps that the policy may write"
            assert parent in (-1, *tree.trunk)
        for step in tree.nodes:
            assert step.estimate is not None
            if step.text in (RIGHT, WRONG):
                exact = float(step.text == RIGHT)
                assert step.estimate == Estimate(exact, 0, exact, exact)
            else:
                hits = round(step.estimate.value * 6)
                assert step.estimate == Estimate(hits / 6, 6, *wilson(hits, 6))
            assert step.label == float(step.estimate.value > 0)
            assert step.rating == step.estimate.value


@pytest.mark.parametrize("rule", ["any", "half", "soft"])
def test_labels_after_a_wrong_step_can_be_dropped(rule: str) -> None:
    every = label(40, rule=rule)
    settings = replace(SETTINGS, rule=rule, after_error="drop")
    labeller = LabelEngine(Branching(), judging, settings)
    found = labeller.label(problems(40), [f"p{i}" for i in range(40)])
    num_dropped = 0
    for i, tree in enumerate(every):
        (short,) = found[i].trees
        for node, (step, kept) in enumerate(zip(tree.nodes, short.nodes, strict=True)):
            is_later = any(tree.nodes[before].label == 0.0 for before in tree.path(node)[:-1])
            assert kept == (replace(step, label=None) if is_later else step), "estimates stay"
            num_dropped += is_later
        counts = found[i].counts
        later = sum(step.label is None for step in short.nodes)
        assert counts.get("steps after a wrong one", 0) == later
        assert "steps without a label" not in counts
    assert num_dropped > 10


@pytest.mark.parametrize("method", ["monte-carlo", "binary", "adaptive"])
def test_nothing_depends_on_what_is_labelled_at_the_same_time(method: str) -> None:
    together = label(method=method)
    assert label(at_once=1, method=method) == together
    assert label(at_once=5, method=method) == together
    assert label(method=method, seed=1) != together


def test_more_rollouts_add_to_those_that_were_there() -> None:
    few, many = label(rollouts=4), label(rollouts=8)
    for a, b in zip(few, many, strict=True):
        for one, more in zip(a.nodes, b.nodes, strict=True):
            assert one.estimate is not None
            assert more.estimate is not None
            assert 0 <= round(8 * more.estimate.value) - round(4 * one.estimate.value) <= 4 or not one.estimate.rollouts


def test_rollouts_of_all_problems_are_one_batch() -> None:
    policy = Branching()
    trees = label(20, policy)
    rolled = sum(step.estimate.rollouts for tree in trees for step in tree.nodes if step.estimate)
    assert policy.batches == [20, 20 * 4 * (LENGTH + 1), rolled]


def test_values_converge_to_the_true_ones() -> None:
    """The mean square error is that of a binomial share, at every number of rollouts."""
    for rollouts in (8, 32, 128):
        trees = label(30, rollouts=rollouts)
        errors, variances = [], []
        for tree in trees:
            for i, step in enumerate(tree.nodes):
                true = value(tree.texts(tree.path(i)))
                if step.estimate and step.estimate.rollouts:
                    errors.append((step.estimate.value - true) ** 2)
                    variances.append(true * (1 - true) / rollouts)
        assert len(errors) > 180
        assert np.mean(errors) == pytest.approx(np.mean(variances), rel=0.2)


def failing(good: int) -> StepTree:
    """A solution with so many good steps, then bad ones and the wrong answer."""
    steps = [f"{'good' if i < good else 'bad'} {i}" for i in range(LENGTH)]
    return StepTree.chain("p", [*steps, WRONG], answer="1", ended=True)


@pytest.mark.parametrize("rule", ["any", "half"])
@pytest.mark.parametrize("good", [0, 2, 3])
def test_bisection_finds_the_first_error_as_often_as_theory_says(good: int, rule: str) -> None:
    tree, size = failing(good), 600
    settings = replace(SETTINGS, method="binary", rollouts=4, rule=rule)
    trees = label_trees([tree] * size, Branching(), judging, settings, at_once=size)
    firsts = Counter(next(i for i, node in enumerate(found.trunk) if found.nodes[node].label == 0.0) for found in trees)
    values = [value(tree.texts(tree.trunk[: i + 1])) for i in range(LENGTH + 1)]
    theory = first_error_chances(values, settings, ended=True)
    for position, chance in enumerate(theory[:-1]):
        spread = np.sqrt(chance * (1 - chance) / size)
        assert firsts[position] / size == pytest.approx(chance, abs=3.5 * spread + 1e-9)
    if rule == "half":
        assert max(theory) == theory[good], "the true one is the likeliest"


def test_bisection_labels_what_it_knows() -> None:
    tree = failing(2)
    (found,) = label_trees([tree], Branching(), judging, replace(SETTINGS, method="binary", rule="half", rollouts=32))
    assert [step.label for step in found.nodes] == [1.0, 1.0, 0.0, None, None], "nothing behind the first wrong step"
    assert found.nodes[0].estimate is None, "right because the step behind it is"
    assert found.nodes[4].estimate == Estimate(0.0, 0, 0.0, 0.0)
    assert found.nodes[3].estimate is None


def test_bisection_samples_candidates_where_a_solution_goes_wrong() -> None:
    trees = label(30, method="binary", rule="half", rollouts=8)
    reached = [tree.nodes[tree.trunk[-1]].text == RIGHT for tree in trees]
    assert 0 < sum(reached) < 30
    for tree, right in zip(trees, reached, strict=True):
        labels = [tree.nodes[node].label for node in tree.trunk]
        if right:
            assert labels == [1.0] * (LENGTH + 1)
            assert len(tree.nodes) == LENGTH + 1
            continue
        first = labels.index(0.0)
        assert labels[:first] == [1.0] * first
        others = [i for i in range(len(tree.nodes)) if i not in tree.trunk]
        assert {tree.parents[i] for i in others} <= {tree.parents[tree.trunk[first]]}


def test_adaptive_gives_the_labels_of_monte_carlo_for_fewer_rollouts() -> None:
    plain, quick = label(40, rollouts=8), label(40, rollouts=8, method="adaptive", per_round=1)
    assert [[step.label for step in tree.nodes] for tree in quick] == [[s.label for s in tree.nodes] for tree in plain]
    spent = [sum(s.estimate.rollouts for t in trees for s in t.nodes if s.estimate) for trees in (plain, quick)]
    assert spent[1] < 0.55 * spent[0]


def test_adaptive_costs_what_theory_says() -> None:
    settings = replace(SETTINGS, method="adaptive", rollouts=16, rule="half", confidence=0.8)
    trees = label_trees([failing(2)] * 400, Branching(), judging, settings, at_once=400)
    for position in range(LENGTH):
        theory = expected(value(trees[0].texts(trees[0].trunk[: position + 1])), settings)
        estimates = [tree.nodes[position].estimate for tree in trees]
        assert np.mean([one.rollouts for one in estimates if one]) == pytest.approx(theory.rollouts, rel=0.06)
        assert np.mean([tree.nodes[position].label for tree in trees]) == pytest.approx(theory.right, abs=0.06)


def test_a_spent_budget_leaves_steps_without_labels_and_counts_them() -> None:
    labeller = LabelEngine(Branching(), judging, replace(SETTINGS, max_policy_tokens=60, per_round=1))
    (found,) = labeller.label(problems(1), ["p0"])
    unlabelled = sum(step.label is None for step in found.trees[0].nodes)
    per_step = [step.estimate.rollouts for step in found.trees[0].nodes if step.estimate and step.estimate.rollouts]
    assert found.counts.get("steps without a label", 0) == unlabelled
    assert found.tokens >= 60
    assert set(per_step) == {1}, "the round in which the budget was spent was the first"
    (broke,) = LabelEngine(Branching(), judging, replace(SETTINGS, max_policy_tokens=1)).label(problems(1), ["p0"])
    assert broke.rollouts == 0
    assert broke.counts["steps without a label"] == sum(not s.text.startswith("####") for s in broke.trees[0].nodes)


def test_equal_solutions_count_once_and_cut_ones_lose_their_last_step() -> None:
    labeller = LabelEngine(Branching(), judging, replace(SETTINGS, solutions=40, alternatives=0, rollouts=1))
    (found,) = labeller.label(problems(1), ["p0"])
    texts = [tuple(step.text for step in tree.nodes) for tree in found.trees]
    assert len(set(texts)) == len(texts)
    assert found.counts["equal solutions"] == 40 - len(texts)
    short = replace(SETTINGS, sampling=Sampling(max_step_tokens=8, max_tokens=5))
    (tree,) = label_problems(problems(1), Branching(), judging, short)
    assert (len(tree.trunk), tree.ended) == (2, False)
    (none,) = LabelEngine(
        Branching(), judging, replace(SETTINGS, sampling=Sampling(max_step_tokens=8, max_tokens=1))
    ).label(problems(1), ["p0"])
    assert (none.trees, none.counts) == ((), {"solutions without a whole step": 1})


def test_given_trees_keep_their_shape_and_what_was_not_labelled() -> None:
    nodes = (Step("good 0", 1.0, 1.0, "human"), Step("bad 0"), Step("good 1", 0.0))
    tree = StepTree(7, "p", nodes, (-1, -1, 0), (0, 2), "n", "1")
    (found,) = label_trees([tree], Branching(), judging, replace(SETTINGS, rollouts=20, rule="half"))
    assert replace(found, nodes=tree.nodes) == tree
    assert [step.label for step in found.nodes] == [1.0, None, 1.0]
    assert found.nodes[0].origin == "human"
    bare = replace(tree, nodes=tuple(replace(step, label=None) for step in nodes))
    (every,) = label_trees([bare], Branching(), judging, replace(SETTINGS, rollouts=20, rule="half"))
    assert [step.label for step in every.nodes] == [1.0, 0.0, 1.0]


def test_what_is_known_of_a_problem_counts_when_its_trees_are_labelled_again() -> None:
    """How near an answer must be is no part of a tree."""
    asked: list[TaskProblem] = []

    def note(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        asked.extend(problem for problem, _ in solutions)
        return judging(solutions)

    tree, problem = failing(2), TaskProblem("p", "1", tolerance=0.25)
    labeller = LabelEngine(Branching(), note, SETTINGS)
    trees = [tree, replace(tree, problem="q")]
    problems = [problem_of_tree(one, ProblemIndex([problem])) for one in trees]
    assert problem_of_tree(replace(tree, problem=" p\n"), ProblemIndex([problem])) is problem
    assert len(labeller.label(problems, ["p", "q"], trees)) == 2
    assert {(one.text, one.tolerance) for one in asked} == {("p", 0.25), ("q", 0.0)}


def test_two_opinions_keep_what_they_agree_on() -> None:
    first = StepTree.chain("p", [Step(t, label) for t, label in zip("abcde", [1.0, 0.0, 1.0, None, 1.0], strict=True)])
    second = StepTree.chain("p", [Step(t, label) for t, label in zip("abcde", [1.0, 1.0, 0.0, 1.0, None], strict=True)])
    counts: Counter[str] = Counter()
    (kept,) = keep_agreed([first], [second], counts)
    assert [step.label for step in kept.nodes] == [1.0, None, None, None, None]
    assert counts == {
        "agreed": 1, "only the second calls it right": 1, "only the first calls it right": 1, "no second opinion": 1,
    }  # fmt: skip


def test_any_scorer_is_a_second_opinion() -> None:
    from prism_prm.lab.world.oracle import OracleScorer

    tree = StepTree.chain("1+1+2", ["1+1=2", "2+2=3", "#### 3"])
    (found,) = label_by_scores([tree], OracleScorer(5))
    assert [step.label for step in found.nodes] == [1.0, 0.0, 1.0]


def test_the_noise_of_labels_by_hand() -> None:
    def tree(labels: list[float | None], aside: float | None) -> StepTree:
        steps = tuple(Step(f"s{i}", one) for i, one in enumerate([*labels, aside]))
        return StepTree(0, "p", steps, (*range(-1, len(labels) - 1), -1), tuple(range(len(labels))))

    exact = [tree([1.0, 0.0, 1.0], 0.0), tree([1.0, 1.0], None), tree([0.0, None], 0.5)]
    found = [tree([1.0, 1.0, 1.0], 1.0), tree([0.0, 1.0], 1.0), tree([0.0, 0.0], 1.0)]
    noise = measure_noise(exact, found, [True, True, False])
    every = noise.groups["all"]
    assert (every.right, every.right_called_wrong, every.wrong, every.wrong_called_right) == (4, 1, 3, 2)
    assert every.fpr.value == pytest.approx(2 / 3)
    assert every.fnr.value == 0.25
    assert (every.fpr.low, every.fpr.high) == wilson(2, 3)
    first = noise.groups["position 1"]
    assert (first.right, first.right_called_wrong, first.wrong, first.wrong_called_right) == (2, 1, 2, 1)
    assert noise.groups["solutions with the right answer"].wrong_called_right == 1
    assert noise.groups["other solutions"].wrong == 1
    assert noise.groups["alternatives"].fpr.value == 1.0
    assert list(noise.groups)[:4] == ["all", "position 1", "position 2", "position 3"]
    assert (noise.solved, noise.solved_wrongly, noise.solved_wrongly_unnoticed) == (2, 1, 1)
    assert noise.counts == {"steps without an exact label": 3}


def test_a_known_error_counts_though_steps_after_it_have_no_exact_label() -> None:
    steps = [*[1.0] * 9, 0.0, 1.0, None]  # as ProcessBench leaves steps after the first error
    exact = StepTree.chain("p", [Step("s", label) for label in steps])
    unknown = StepTree.chain("p", [Step("s", label) for label in (1.0, None)])
    noise = measure_noise([exact, unknown], [exact, unknown], [True, True])
    assert (noise.solved, noise.solved_wrongly, noise.solved_wrongly_unnoticed) == (1, 1, 0)
    positions = [name for name in noise.groups if name.startswith("position")]
    assert positions == [*(f"position {i}" for i in range(1, 10)), "position 10 and on"]
