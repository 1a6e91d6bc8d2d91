"""`selected.jsonl`: which solution each rule selects from all that a problem has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from prism_prm.aggregate import Choice
from prism_prm.arrays import Floats
from prism_prm.files import whole_file
from prism_prm.search.grade_pool import GradedPool
from prism_prm.search.select import SELECTORS, Candidates, relative_weights
from prism_prm.search.step_scores import StepScores, log_scores_of

RULES = {"majority": "majority", "best-of-n": "argmax", "weighted": "weighted", "public-tests": "public-tests"}
"""A method of the curves → its selector; the first needs no PRM, and the last works with and without one."""

VOTES = ("majority", "weighted")


@dataclass(frozen=True, slots=True)
class Selection:
    """What one rule selects from all solutions of one problem."""

    problem_id: int
    """Ordinal of the problem in the pool."""
    name: str
    problem: str
    rule: str
    """majority, best-of-n, weighted or public-tests."""
    prm: str
    """Whose scores; "" where none are needed."""
    aggregator: str
    num_solutions: int
    """How many there were to select from."""
    solution: int | None
    """Place of the selected one among them; None where there is none, or where none of them votes."""
    steps: tuple[str, ...]
    answer: str | None
    score: float | None
    """The PRM's score of the selected solution; None without a PRM, or if it gave none."""
    share: float | None
    """The share of all votes that this answer got; None for Best-of-n and public-tests, and if nobody votes."""
    correct: bool | None
    """None without a reference answer."""


def select_solutions(
    graded: GradedPool, scores: Mapping[str, StepScores], aggregators: Mapping[str, Choice[str]]
) -> tuple[Selection, ...]:
    """For each problem, the selection of the majority, then of Best-of-n and the weighted vote with each PRM.

    Where programs have public tests, also those that pass them: without a PRM the first, and with it the best-scored.
    """
    log_scores = {prm: log_scores_of(steps, aggregators[prm].value) for prm, steps in scores.items()}
    ends = np.cumsum([len(grades) for grades in graded.grades])
    found: list[Selection] = []
    for problem, grades in enumerate(graded.grades):
        here = slice(ends[problem] - len(grades), ends[problem])
        tested = ["public-tests"] * graded.has_tests
        nothing: StepScores = [None] * len(grades)
        for rule in ("majority", *tested):
            found += [_select(graded, problem, rule, "", "", np.zeros(len(grades)), nothing)]
        for prm, values in log_scores.items():
            for rule in ("best-of-n", "weighted", *tested):
                how = aggregators[prm].value
                found.append(_select(graded, problem, rule, prm, how, values[here], scores[prm][here]))
    return tuple(found)


def _select(
    graded: GradedPool, problem: int, rule: str, prm: str, how: str, log_scores_N: Floats, steps_N: StepScores
) -> Selection:
    entry, grades = graded.pool.problems[problem], graded.grades[problem]
    keys = [None if grade.group < 0 else str(grade.group) for grade in grades]
    passed = graded.passed(problem) if graded.has_tests else None
    chosen = SELECTORS[RULES[rule]](Candidates(keys, log_scores_N, passed))
    about = (problem, entry.problem.name, entry.problem.text, rule, prm, how, len(grades), chosen)
    if chosen is None:
        return Selection(*about, (), None, None, None, None)
    grade = grades[chosen]
    score = None if steps_N[chosen] is None else float(np.exp(log_scores_N[chosen]))
    share = None if rule not in VOTES else _share(keys, relative_weights(log_scores_N), keys[chosen])
    return Selection(*about, entry.solutions[chosen].steps, grade.answer, score, share, grade.correct)


def _share(keys: Sequence[str | None], weights_N: Floats, winner: str | None) -> float | None:
    votes = np.array([key is not None for key in keys])
    total = float(weights_N[votes].sum())
    return float(weights_N[[key == winner for key in keys]].sum()) / total if total > 0 else None


def write_selected(path: str | Path, selections: Sequence[Selection]) -> None:
    """A line per problem and rule, whole or not at all."""
    with whole_file(path) as aside, aside.open("wb") as file:
        file.writelines(_lines(selections))


def _lines(selections: Sequence[Selection]) -> Iterator[bytes]:
    for selection in selections:
        yield msgspec.json.encode(selection) + b"\n"
