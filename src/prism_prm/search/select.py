"""Select one of N solutions: the best-scored one, or one from the group of equal answers with the most votes.

Ties go to the earlier solution, or to the group whose first member is earlier. A vote selects the best-scored member of
the winning group. Solutions without an answer cast no vote.

The answer to a code problem is a program; programs with the same results on the public tests are equal.
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
from prism_prm.files import atomic_file
from prism_prm.grading.graders import Judge
from prism_prm.search.grade_pool import GradedPool, StepScores, log_scores_of

TIE = 1e-9
"""Sums of weights with a smaller relative difference are equal, so that the order of addition cannot decide a vote."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome of a vote."""

    index: int | None
    """The selected solution; None if no solution has an answer."""
    answer: str | None
    weights: dict[str, float]
    """The sum of the weights of each group, by its key, in order of appearance."""


def best_of_n(scores: Sequence[float] | Floats) -> int:
    """The index of the highest score; of equals, the first.

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
    """The answer whose solutions have the largest sum of scores. Equivalent spellings are one answer.

    Args:
        answers: one per solution; None casts no vote.
        scores: one per solution, not negative and not logarithms.
        judge: a `Judge` to reuse between votes; by default its worker processes are started for each vote.

    Example:
        >>> weighted_vote(["1/2", "0.5", "3"], [0.3, 0.3, 0.5]).answer
        '1/2'
    """
    if len(answers) != len(scores):
        raise DataError(f"a vote needs one score per answer; got {len(scores)} scores for {len(answers)} answers")
    weights = np.asarray(scores, dtype=np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise DataError(f"the weights of a vote must be finite and not negative; got {weights.tolist()}")
    with contextlib.nullcontext(judge) if judge is not None else Judge() as opened:
        keys = [key.key for key in opened.keys(answers)]
    index = vote(keys, weights)
    return Vote(index, None if index is None else answers[index], _totals(keys, weights))


def majority_vote(answers: Sequence[str | None], *, judge: Judge | None = None) -> Vote:
    """The answer of most solutions. Equivalent spellings are one answer.

    Args:
        answers: one per solution; None casts no vote.
        judge: a `Judge` to reuse between votes; by default its worker processes are started for each vote.

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
    """The index of the best solution in the winning group of keys; None without votes."""
    totals = _totals(keys, weights)
    if not totals:
        return None
    most = max(totals.values())
    winner = next(key for key, total in totals.items() if total >= most * (1 - TIE))
    return best_of_n([weight if key == winner else -1.0 for key, weight in zip(keys, weights.tolist(), strict=True)])


def relative_weights(log_scores: Sequence[float] | Floats) -> Floats:
    """Weights in proportion to the scores, scaled so that the largest is 1, which avoids underflow."""
    values = np.asarray(log_scores, dtype=np.float64)
    top = values.max(initial=-np.inf)
    return np.zeros_like(values) if np.isneginf(top) else np.exp(values - top)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The solutions of one problem, as a selector sees them; one entry per solution."""

    keys: Sequence[str | None]
    """The key of each answer in a vote; None casts no vote."""
    log_scores: Floats
    passed: Bools | None = None
    """Whether each program passes the public tests; None for problems with an answer."""


Selector = Callable[[Candidates], int | None]


def after_tests(log_scores: Floats, passed: Bools | None) -> Floats:
    """Ranks in which programs that pass the public tests come first, then higher scores; equal scores stay equal."""
    if passed is None:
        return log_scores
    _, ranks = np.unique(log_scores, return_inverse=True)
    return ranks + len(ranks) * passed.astype(np.float64)


SELECTORS: dict[str, Selector] = {
    "argmax": lambda some: best_of_n(some.log_scores) if len(some.log_scores) else None,
    "majority": lambda some: vote(some.keys, np.ones(len(some.log_scores))),
    "weighted": lambda some: vote(some.keys, relative_weights(some.log_scores)),
    "public-tests": lambda some: best_of_n(after_tests(some.log_scores, some.passed)) if len(some.log_scores) else None,
}
"""Each returns the index of the selected solution, or None."""


RULES = {"majority": "majority", "best-of-n": "argmax", "weighted": "weighted", "public-tests": "public-tests"}
"""The selector of each curve. The first needs no PRM, and the last works with and without one."""


def choose(graded: GradedPool, problem: int, selector: str, log_scores_N: Floats) -> int | None:
    """The index of the solution of a problem that a selector chooses; None without solutions or votes."""
    keys = [None if group < 0 else str(group) for group in graded.groups(problem).tolist()]
    return SELECTORS[selector](Candidates(keys, log_scores_N, graded.passed(problem)))


@dataclass(frozen=True, slots=True)
class Selection:
    """The solution of one problem that a rule selects from all its solutions."""

    problem_id: int
    """The index of the problem in the pool."""
    name: str
    problem: str
    rule: str
    """majority, best-of-n, weighted or public-tests."""
    prm: str
    """The PRM whose scores are used; "" if none are needed."""
    aggregator: str
    num_solutions: int
    solution: int | None
    """The index of the selected solution; None if there are no solutions, or no votes."""
    steps: tuple[str, ...]
    answer: str | None
    score: float | None
    """The PRM's score of the selected solution; None without a score."""
    share: float | None
    """The fraction of votes for this answer; None for Best-of-n and public-tests, or without votes."""
    correct: bool | None
    """None without a reference answer."""


def select_solutions(
    graded: GradedPool, scores: Mapping[str, StepScores], aggregators: Mapping[str, Choice[str]]
) -> tuple[Selection, ...]:
    """Select by the majority vote, and by Best-of-n and the weighted vote with each PRM, for each problem.

    If programs have public tests, also by these: the first program that passes, or with a PRM the best-scored one.
    """
    log_scores = {prm: log_scores_of(steps, aggregators[prm].value, graded.pool) for prm, steps in scores.items()}
    tested = ["public-tests"] * graded.has_tests
    selections: list[Selection] = []
    for problem, (grades, own) in enumerate(zip(graded.grades, graded.slices, strict=True)):
        no_scores: StepScores = [None] * len(grades)
        zeros_N = np.zeros(len(grades))
        selections += [_select(graded, problem, rule, "", "", zeros_N, no_scores) for rule in ("majority", *tested)]
        for prm, values in log_scores.items():
            for rule in ("best-of-n", "weighted", *tested):
                aggregator = aggregators[prm].value
                selections.append(_select(graded, problem, rule, prm, aggregator, values[own], scores[prm][own]))
    return tuple(selections)


def _select(
    graded: GradedPool, problem: int, rule: str, prm: str, aggregator: str, log_scores_N: Floats, steps_N: StepScores
) -> Selection:
    entry, grades = graded.pool.problems[problem], graded.grades[problem]
    chosen = choose(graded, problem, RULES[rule], log_scores_N)
    about = (problem, entry.problem.name, entry.problem.text, rule, prm, aggregator, len(grades), chosen)
    if chosen is None:
        return Selection(*about, (), None, None, None, None)
    grade = grades[chosen]
    score = None if steps_N[chosen] is None else float(np.exp(log_scores_N[chosen]))
    share = None
    if rule in ("majority", "weighted"):
        weights_N = relative_weights(log_scores_N)
        groups_N = graded.groups(problem)
        total = float(weights_N[groups_N >= 0].sum())
        share = float(weights_N[groups_N == groups_N[chosen]].sum()) / total if total > 0 else None
    return Selection(*about, entry.solutions[chosen].steps, grade.answer, score, share, grade.correct)


def write_selected(path: str | Path, selections: Sequence[Selection]) -> None:
    """Write a line per problem and rule, atomically."""
    with atomic_file(path) as partial, partial.open("wb") as file:
        file.writelines(msgspec.json.encode(selection) + b"\n" for selection in selections)
