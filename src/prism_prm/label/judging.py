"""The one seam between rollouts and truth: whether written solutions solve their problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prism_prm.tasks import Grader, TaskProblem

Judging = Callable[[Sequence[tuple[TaskProblem, str]]], list[bool]]
"""(problem, the whole solution) → whether it is right."""


def by_answer(grader: Grader) -> Judging:
    """A solution is right if its final answer is, or its program passes all tests."""

    def judge(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        answers = [(problem, grader.extract(problem, text).answer) for problem, text in solutions]
        return [verdict.correct for verdict in grader.judge(answers)]

    return judge
