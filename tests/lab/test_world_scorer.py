"""The oracle as a scorer, whole solutions and growing trees alike, and the one that errs at stated rates."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from prism_prm.lab.world.oracle import KINDS, CorruptedOracle, Kind, OracleScorer
from prism_prm.lab.world.problems import Problem, ProblemSettings, draw_problems
from prism_prm.rl.reward import score_solutions
from prism_prm.scorer import as_trees

MODULUS = 7
RATES = [(0.0, 0.0), (0.1, 0.3), (0.5, 0.2)]


def solutions(count: int) -> list[tuple[str, list[str]]]:
    """Problems with a right first step, or a wrong one."""
    drawn = draw_problems(ProblemSettings(MODULUS, "+-", 3, 4), count, np.random.default_rng(0))
    return [(problem.text, [first_step(problem, wrong=i % 2)]) for i, problem in enumerate(drawn)]


def first_step(problem: Problem, wrong: int) -> str:
    operation = problem.operations[0]
    result = (operation.apply(problem.start, MODULUS) + wrong) % MODULUS
    return f"{problem.start}{operation}={result}"


def within(errors: int, count: int, rate: float) -> bool:
    """Four binomial standard errors."""
    return abs(errors - count * rate) <= 4 * math.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize(("alpha", "beta"), RATES)
def test_independent_errors_have_the_stated_rates(alpha: float, beta: float) -> None:
    asked = solutions(1200)
    truth = np.array(OracleScorer(MODULUS).score_many(asked)).ravel() > 0.5
    said = np.array(CorruptedOracle(MODULUS, alpha, beta, "independent").score_many(asked)).ravel() > 0.5
    assert truth.sum() == 600
    assert within(int(said[~truth].sum()), 600, alpha)
    assert within(int((~said)[truth].sum()), 600, beta)


@pytest.mark.parametrize(("alpha", "beta"), RATES)
def test_systematic_errors_have_the_stated_rates_over_texts(alpha: float, beta: float) -> None:
    oracle = CorruptedOracle(MODULUS, alpha, beta, "systematic", seed=3)
    texts = [f"step {i}" for i in range(1000)]
    assert within(sum(oracle.says(("problem", text), 0, False) for text in texts), 1000, alpha)
    assert within(sum(not oracle.says(("problem", text), 0, True) for text in texts), 1000, beta)


def test_the_same_text_always_errs_only_if_errors_are_systematic() -> None:
    places = [(f"problem {i}", f"before {i}", "1+1=2") for i in range(200)]

    def said(kind: Kind, text: str) -> set[bool]:
        oracle = CorruptedOracle(MODULUS, 0.5, 0.5, kind)
        return {oracle.says((*place[:-1], text), 0, True) for place in places}

    assert said("independent", "1+1=2") == {True, False}
    by_text = [said("systematic", f"1+1={i}") for i in range(20)]
    assert all(len(one) == 1 for one in by_text)
    assert {True, False} == set.union(*by_text), "other texts err otherwise"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_do_not_depend_on_the_process_and_grow_with_the_rate(kind: Kind) -> None:
    asked = solutions(200)
    few, many = (CorruptedOracle(MODULUS, rate, rate, kind) for rate in (0.1, 0.4))
    again = pickle.loads(pickle.dumps(few))
    trees = as_trees(asked)
    backwards = few.score_trees(trees[::-1])[::-1]
    assert again.score_many(asked) == [found.probability.tolist() for found in backwards]
    assert again.identity() == few.identity() != many.identity()
    assert CorruptedOracle(MODULUS, 0.1, 0.1, kind, seed=1).score_many(asked) != few.score_many(asked)
    truth, wrong_few, wrong_many = (
        np.array(scorer.score_many(asked)).ravel() > 0.5 for scorer in (OracleScorer(MODULUS), few, many)
    )
    assert ((wrong_few != truth) <= (wrong_many != truth)).all()
    assert (wrong_many != truth).sum() > (wrong_few != truth).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_solutions_differ_only_if_errors_are_independent(kind: Kind) -> None:
    """Also as a reward, where equal beginnings usually share their scores."""
    oracle = CorruptedOracle(MODULUS, 0.0, 0.5, kind)
    texts = [("3+5-1", ["3+5=1"])] * 50
    for scores in (oracle.score_many(texts), score_solutions(oracle, *map(list, zip(*texts, strict=True)))):
        assert len({round(float(one[0])) for one in scores}) == (2 if kind == "independent" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_growing_trees_have_the_scores_of_whole_solutions(kind: Kind) -> None:
    oracle = CorruptedOracle(MODULUS, 0.4, 0.4, kind)
    problem, steps = "3+5-1", ["3+5=1", "1-1=0", "#### 0"]
    session = oracle.session([problem])
    node, found = session.roots[0], []
    for depth, step in enumerate(steps):
        node, same = session.extend([(node, step), (node, step)])
        assert same is node
        assert node.depth == depth
        found.append(node.probability)
    assert found == oracle.score(problem, steps)
