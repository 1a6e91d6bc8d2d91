"""Select one of N solutions: the best-scored one, or a member of the group of equal answers with the most votes.

Ties: the earlier solution, or the group whose first member comes earlier. A voted group answers with its best-scored
member. Solutions without an answer cast no vote.

The answer to a code problem is a program; programs that do the same on the public tests are equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from prism_prm.aggregate import Choice
from prism_prm.arrays import Bools, Floats
from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.grading.graders import Judge
from prism_prm.search.grade_pool import GradedPool, StepScores, log_scores_of

TIE = 1e-9
"""Sums of weights that differ by less than this, relatively, are equal: the order of adding must not decide a vote."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome of a vote."""

    index: int | None
    """The solution that gives the answer; None where no solution has one."""
    answer: str | None
    weights: dict[str, float]
    """The sum of the weights behind each group's key, in order of first sight."""


def best_of_n(scores: Sequence[float] | Floats) -> int:
    """The index of the highest score, the first of equals.

    Args:
        scores: one per solution, on any scale, e.g. logarithms; −inf means "no score".

    Example:
        >>> best_of_n([0.2, 0.9, 0.9])
        1
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise DataError(f"Best-of-N needs one number per solution; got {values.tolist()}")
    return int(values.argmax())


def weighted_vote(
    answers: Sequence[str | None], scores: Sequence[float] | Floats, *, judge: Judge | None = None
) -> Vote:
    """The answer whose solutions' scores have the largest sum; equivalent spellings are one answer.

    Args:
        answers: one per solution; None casts no vote.
        scores: one per solution, not negative and not logarithms.
        judge: a `Judge` that keeps its worker processes between votes; by default they are started for this vote alone.

    Example:
        >>> weighted_vote(["1/2", "0.5", "3"], [0.3, 0.3, 0.5]).answer
        '1/2'
    """
    if len(answers) != len(scores):
        raise DataError(f"a vote needs one score per answer; got {len(scores)} scores for {len(answers)} answers")
    weights = np.asarray(scores, dtype=np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise DataError(f"the weights of a vote are finite and not negative; got {weights.tolist()}")
    with contextlib.nullcontext(judge) if judge is not None else Judge() as using:
        keys = [key.key for key in using.keys(answers)]
    index = vote(keys, weights)
    return Vote(index, None if index is None else answers[index], _totals(keys, weights))


def majority_vote(answers: Sequence[str | None], *, judge: Judge | None = None) -> Vote:
    """The answer that most solutions give, over equivalent spellings.

    Args:
        answers: one per solution; None casts no vote.
        judge: a `Judge` that keeps its worker processes between votes; by default they are started for this vote alone.

    Example:
        >>> majority_vote(["12", "7", "12.0", None]).answer
        '12'
    """
    return weighted_vote(answers, [1.0] * len(answers), judge=judge)


def _totals(keys: Sequence[str | None], weights: Floats) -> dict[str, float]:
    totals: dict[str, float] = {}
    for key, weight in zip(keys, weights.tolist(), strict=True):
        if key is not None:
            totals[key] = totals.get(key, 0.0) + weight
    return totals


def vote(keys: Sequence[str | None], weights: Floats) -> int | None:
    """The index of the solution that speaks for the winning group of keys; None where nobody votes."""
    totals = _totals(keys, weights)
    if not totals:
        return None
    most = max(totals.values())
    winner = next(key for key, total in totals.items() if total >= most * (1 - TIE))
    return best_of_n([weight if key == winner else -1.0 for key, weight in zip(keys, weights.tolist(), strict=True)])


def relative_weights(log_scores: Sequence[float] | Floats) -> Floats:
    """Weights in proportion to the scores, the largest 1: what a vote needs, without underflow."""
    values = np.asarray(log_scores, dtype=np.float64)
    top = values.max(initial=-np.inf)
    return np.zeros_like(values) if np.isneginf(top) else np.exp(values - top)


@dataclass(frozen=True, slots=True)
class Candidates:
    """All that a selector may know of some solutions of one problem, one entry each."""

    keys: Sequence[str | None]
    """What each votes under; None casts no vote."""
    log_scores: Floats
    passed: Bools | None = None
    """Whether each program passes the public tests; None where an answer is asked for."""


Selector = Callable[[Candidates], int | None]


def after_tests(log_scores: Floats, passed: Bools | None) -> Floats:
    """Ranks by which programs that pass the public tests come first, and then the better-scored; equals stay equal."""
    if passed is None:
        return log_scores
    _, ranks = np.unique(log_scores, return_inverse=True)
    return ranks + len(ranks) * passed.astype(np.float64)


SELECTORS: dict[str, Selector] = {
    "argmax": lambda given: best_of_n(given.log_scores) if len(given.log_scores) else None,
    "majority": lambda given: vote(given.keys, np.ones(len(given.log_scores))),
    "weighted": lambda given: vote(given.keys, relative_weights(given.log_scores)),
    "public-tests": lambda given: (
        best_of_n(after_tests(given.log_scores, given.passed)) if len(given.log_scores) else None
    ),
}
"""How a set of solutions becomes one: the index of a solution, or None."""


RULES = {"majority": "majority", "best-of-n": "argmax", "weighted": "weighted", "public-tests": "public-tests"}
"""A method of the curves → its selector; the first needs no PRM, and the last works with and without one."""


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
    share = None
    if rule in ("majority", "weighted"):
        weights_N = relative_weights(log_scores_N)
        total = float(weights_N[[key is not None for key in keys]].sum())
        share = float(weights_N[[key == keys[chosen] for key in keys]].sum()) / total if total > 0 else None
    return Selection(*about, entry.solutions[chosen].steps, grade.answer, score, share, grade.correct)


def write_selected(path: str | Path, selections: Sequence[Selection]) -> None:
    """A line per problem and rule, whole or not at all."""
    with whole_file(path) as aside, aside.open("wb") as file:
        file.writelines(msgspec.json.encode(selection) + b"\n" for selection in selections)
