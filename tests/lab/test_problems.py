from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prism_prm.errors import ConfigError, DataError
from prism_prm.job import content_key
from prism_prm.lab.world.build import WORLDS, world_settings
from prism_prm.lab.world.problems import Problem, ProblemSettings, draw_problems


def test_a_problem_and_its_solution() -> None:
    problem = Problem.parse("7+6*3-4")
    assert problem.text == "7+6*3-4"
    assert problem.values() == [7, 3, 9, 5]
    assert problem.solution() == ["7+6=3", "3*3=9", "9-4=5", "#### 5"]
    assert problem.answer == "5"
    assert Problem.parse("3-12", 13).solution() == ["3-12=4", "#### 4"]


@pytest.mark.parametrize("text", ["", "7", "7+", "7/2", "7+6 ", "7+13"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        Problem.parse(text)


def test_drawn_problems_are_different_fixed_by_the_seed_and_within_the_settings() -> None:
    settings = ProblemSettings(7, "+*", 2, 3)
    problems = draw_problems(settings, 300, np.random.default_rng(5))
    assert problems == draw_problems(settings, 300, np.random.default_rng(5))
    assert len({problem.text for problem in problems}) == 300
    assert {len(problem.operations) for problem in problems} == {2, 3}
    assert {op.operator for problem in problems for op in problem.operations} == {"+", "*"}
    assert all(op.operand >= (2 if op.operator == "*" else 1) for p in problems for op in p.operations)
    taken = {problem.text for problem in problems}
    assert not taken & {p.text for p in draw_problems(settings, 300, np.random.default_rng(5), exclude=taken)}


def test_more_problems_than_there_are() -> None:
    settings = ProblemSettings(3, "+", 1, 1)  # three starts, and +1 or +2
    assert len(draw_problems(settings, 6, np.random.default_rng(0))) == 6
    with pytest.raises(ConfigError, match="Found only 6 of 7"):
        draw_problems(settings, 7, np.random.default_rng(0))


def test_settings_are_checked_and_keyed_by_content() -> None:
    with pytest.raises(ConfigError, match="modulus 2"):
        ProblemSettings(2)
    with pytest.raises(ConfigError, match="operators"):
        ProblemSettings(operators="+/")
    with pytest.raises(ConfigError, match="one modulus"):
        replace(WORLDS["demo"], problems=ProblemSettings(11))
    with pytest.raises(ConfigError, match="Unknown world 'big'"):
        world_settings("big")
    assert content_key(world_settings("demo", seed=1)) == content_key(world_settings("demo", seed=1))
    assert content_key(world_settings("demo", seed=1)) != content_key(world_settings("demo", seed=2))
