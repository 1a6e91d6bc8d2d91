"""What is selected from all solutions of a problem is said, with and without a reference."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from prism_prm.aggregate import Choice
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.grade_pool import Grade, GradedPool
from prism_prm.search.select import Selection, select_solutions, write_selected

WORDS = ("bba", "ab-", "--", "")
"""The answers of four problems' solutions; "-" is none."""
SCORES = [[0.4, 0.4, 0.9], [0.3, 0.2, 0.8], [0.5, None]]


def graded(*, reference: str | None = "a") -> GradedPool:
    entries = tuple(
        PoolProblem(
            TaskProblem(f"{word}?", reference, name=f"p{i}"), tuple(Solution((f"step {c}", c), c) for c in word)
        )
        for i, word in enumerate(WORDS)
    )
    grades = tuple(
        tuple(
            Grade(None if c == "-" else c, "boxed", c == "a" if reference else None, "ab".find(c), "ok") for c in word
        )
        for word in WORDS
    )
    return GradedPool(Pool(entries), grades)


@pytest.fixture
def found() -> dict[tuple[int, str], Selection]:
    scores = [None if p is None else np.array([0.95, p]) for own in SCORES for p in own]
    chosen = select_solutions(graded(), {"mine": scores}, {"mine": Choice("min", "from the PRM's card")})
    return {(one.problem_id, one.rule): one for one in chosen}


def test_every_rule_selects_from_every_problem(found: dict[tuple[int, str], Selection]) -> None:
    assert {key: one.solution for key, one in found.items()} == {
        (0, "majority"): 0, (0, "best-of-n"): 2, (0, "weighted"): 2,  # 0.9 against 0.4 + 0.4
        (1, "majority"): 0, (1, "best-of-n"): 2, (1, "weighted"): 0,  # the best states no answer
        (2, "majority"): None, (2, "best-of-n"): 0, (2, "weighted"): None,
        (3, "majority"): None, (3, "best-of-n"): None, (3, "weighted"): None,
    }  # fmt: skip
    assert found[0, "majority"] == Selection(
        0, "p0", "bba?", "majority", "", "", 3, 0, ("step b", "b"), "b", None, pytest.approx(2 / 3), False
    )
    assert found[0, "weighted"] == Selection(
        0, "p0", "bba?", "weighted", "mine", "min", 3, 2, ("step a", "a"), "a", pytest.approx(0.9),
        pytest.approx(0.9 / 1.7), True,
    )  # fmt: skip
    best = found[1, "best-of-n"]
    assert (best.answer, best.score, best.share, best.correct) == (None, pytest.approx(0.8), None, False)
    assert (found[3, "best-of-n"].steps, found[3, "best-of-n"].num_solutions) == ((), 0)


def test_a_score_of_0_is_a_score_and_none_is_none() -> None:
    scores = [np.array([0.0, 0.5]), None, None, None, None, None, None, None]
    chosen = select_solutions(graded(), {"mine": scores}, {"mine": Choice("min", "")})
    of = {one.problem_id: one.score for one in chosen if one.rule == "best-of-n"}
    assert of == {0: 0.0, 1: None, 2: None, 3: None}


def test_without_a_reference_nothing_is_right_or_wrong(tmp_path: Path) -> None:
    selections = select_solutions(graded(reference=None), {}, {})
    assert [one.correct for one in selections] == [None] * 4
    write_selected(tmp_path / "selected.jsonl", selections)
    lines = [json.loads(line) for line in (tmp_path / "selected.jsonl").read_text().splitlines()]
    assert lines[0]["answer"] == "b"
    assert lines[0]["steps"] == ["step b", "b"]
    assert math.isclose(lines[0]["share"], 2 / 3)
    assert list(lines[0]) == [
        "problem_id", "name", "problem", "rule", "prm", "aggregator", "num_solutions", "solution", "steps", "answer",
        "score", "share", "correct",
    ]  # fmt: skip
