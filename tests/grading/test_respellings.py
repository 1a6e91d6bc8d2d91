"""Another spelling of an answer is the same answer; a changed entry, sign, bracket, digit or unit makes another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answer_kinds import KINDS, dress
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_prm.grading.graders import Judge

NEED_ALGEBRA = ["root", "complex number", "polynomial", "line", "interval"]
NUM_PAIRS = {kind: 15 if kind in NEED_ALGEBRA else 60 for kind in KINDS}
"""Algebra is slow."""
MANY = 1_250


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=1) as judge:
        yield judge


def pairs(kind: str, number: int, *, changed: bool) -> list[tuple[str, str]]:
    """Answers of a kind in two spellings each, or each with a changed one; the same ones every time."""
    found: list[tuple[str, str]] = []

    @settings(
        max_examples=number, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        one = data.draw(KINDS[kind].data)
        other = KINDS[kind].change(data.draw, one) if changed else one
        first, second = (dress(data.draw, KINDS[kind].write(data.draw, answer)) for answer in (one, other))
        found.append((first, second))

    collect()
    assert len(found) >= number
    return found


def judged(judge: Judge, some: list[tuple[str, str]], right: bool) -> list[tuple[str, str]]:
    return [pair for pair, verdict in zip(some, judge.judge(some), strict=True) if verdict.correct is right]


@pytest.mark.parametrize("kind", KINDS)
def test_another_spelling_is_the_same_answer(kind: str, judge: Judge) -> None:
    assert judged(judge, pairs(kind, NUM_PAIRS[kind], changed=False), right=False) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_change_makes_another_answer(kind: str, judge: Judge) -> None:
    assert judged(judge, pairs(kind, NUM_PAIRS[kind], changed=True), right=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_pairs(kind: str, judge: Judge) -> None:
    assert judged(judge, pairs(kind, MANY, changed=False), right=False) == []
    assert judged(judge, pairs(kind, MANY, changed=True), right=True) == []
