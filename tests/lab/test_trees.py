from __future__ import annotations

import numpy as np
import pytest

from prism_prm.errors import ConfigError
from prism_prm.lab.world.oracle import judge_step
from prism_prm.lab.world.problems import Problem, ProblemSettings, draw_problems
from prism_prm.lab.world.trees import PERTURBATIONS, count_verdicts, grow, let_errors_pass, perturbed_trees
from prism_prm.tree import ROOT, Step, StepTree


def test_a_tree_grows_from_candidates() -> None:
    problem = Problem.parse("7+6*3")
    tree = grow(problem, [["7+6=3", "7+6=4", "7+6=4"], ["9*3=7", ""], ["#### 9"]], name="x-1")
    right = {"label": 1.0, "rating": 1.0}
    wrong = {"label": 0.0, "rating": -1.0}
    assert tree.nodes == (
        Step("7+6=3", **right),
        Step("7+6=4", **wrong),
        Step("3*3=9", **right, origin="human"),
        Step("9*3=7", **wrong),
        Step("#### 9", **right),
    )
    assert tree.parents == (ROOT, ROOT, 0, 0, 2)
    assert tree.trunk == (0, 2, 4)
    assert (tree.answer, tree.ended, tree.name) == ("9", True, "x-1")
    assert count_verdicts([tree], 10) == {"right": 3, "counterfactual": 1, "contradiction": 1}


def _noisy_labels(trees: list[StepTree], evenness: float) -> np.ndarray:
    noisy = let_errors_pass(trees, 0.4, evenness, seed=3)
    assert noisy == let_errors_pass(trees, 0.4, evenness, seed=3)
    assert count_verdicts(noisy, 10) == count_verdicts(trees, 10), "the truth stays"
    return np.array([[node.label for node in tree.nodes] for tree in noisy])


def test_errors_pass_as_often_as_asked() -> None:
    trees = [grow(Problem.parse("7+6*3"), [["7+6=4"], ["9*3=7"], ["#### 1"]]) for _ in range(2000)]
    labels = _noisy_labels(trees, evenness=1e6)
    assert (labels[:, [0, 2, 4]] == 1.0).all()
    np.testing.assert_allclose(labels[:, [1, 3, 5]].mean(axis=0), 0.4, atol=0.04)
    assert let_errors_pass(trees, 0.0, 1.0, seed=3) == trees


def test_an_error_has_its_own_chance_to_pass_wherever_it_occurs() -> None:
    """Nearly all or nothing: 0.4 of the kinds of steps always pass, whatever value they start from."""
    wrong = [f"{operator}{operand}={result}" for operator in "+-" for operand in range(10) for result in range(10)]
    trees = [grow(Problem.parse(f"{start}*1"), [[f"{start}{step}" for step in wrong], []]) for start in (3, 8)]
    first, second = _noisy_labels(trees, evenness=1e-3)
    assert (first == second).all()
    assert first[1:-1].mean() == pytest.approx(0.4, abs=0.1)
    some = _noisy_labels(trees * 50, evenness=1.0)[:, 1:-1].mean(axis=0)
    assert some.mean() == pytest.approx(0.4, abs=0.06)
    assert some.min() < 0.1
    assert some.max() > 0.9


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_every_perturbed_step_has_its_class_and_the_rest_is_right(kind: str) -> None:
    problems = draw_problems(ProblemSettings(13, "+-*", 3, 6), 200, np.random.default_rng(0))
    trees = perturbed_trees(problems, kind, seed=1)
    assert len(trees) > 150
    assert [tree.tree_id for tree in trees] == list(range(len(trees)))
    positions = set()
    for tree in trees:
        problem = Problem.parse(tree.problem, 13)
        assert tree.texts(tree.trunk) == problem.solution()
        wrong = len(tree.nodes) - 1
        assert [node.label for node in tree.nodes] == [1.0] * wrong + [0.0]
        *prefix, step = tree.texts(tree.path(wrong))
        assert prefix == problem.solution()[: len(prefix)]
        assert judge_step(problem, prefix, step) == kind
        assert tree.name.startswith(f"{kind}-")
        positions.add(len(prefix))
    assert len(positions) > 2
    assert trees == perturbed_trees(problems, kind, seed=1)
    assert trees != perturbed_trees(problems, kind, seed=2)


def test_a_world_without_a_place_for_an_error() -> None:
    with pytest.raises(ConfigError, match="'circular'"):
        perturbed_trees([Problem.parse("7*3*3")], "circular")
