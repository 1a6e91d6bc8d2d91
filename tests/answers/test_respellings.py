"""Another spelling of an answer is the same answer; a changed entry, sign, bracket, digit or unit makes another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answer_kinds import KINDS, dress
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism_prm.answers import Judge

PAIRS_PER_KIND = -(-2_000 // len(KINDS))
SLOW_PAIRS_PER_KIND = 5_000
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=1) as judge:
        yield judge


def check_respelling(kind: str, num_pairs: int, judge: Judge) -> None:
    @settings(max_examples=num_pairs, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        answer = data.draw(KINDS[kind].data)
        one, other = (dress(data.draw, KINDS[kind].write(data.draw, answer)) for _ in range(2))
        assert [verdict.correct for verdict in judge.judge([(one, other)])] == [True], (one, other)

    run()


def check_change(kind: str, num_pairs: int, judge: Judge) -> None:
    @settings(max_examples=num_pairs, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        answer = data.draw(KINDS[kind].data)
        changed = KINDS[kind].change(data.draw, answer)
        one, other = (dress(data.draw, KINDS[kind].write(data.draw, which)) for which in (answer, changed))
        assert [verdict.correct for verdict in judge.judge([(one, other)])] == [False], (one, other)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_another_spelling_is_the_same_answer(kind: str, judge: Judge) -> None:
    check_respelling(kind, PAIRS_PER_KIND, judge)


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_change_makes_another_answer(kind: str, judge: Judge) -> None:
    check_change(kind, PAIRS_PER_KIND, judge)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_pairs(kind: str, judge: Judge) -> None:
    check_respelling(kind, SLOW_PAIRS_PER_KIND, judge)
    check_change(kind, SLOW_PAIRS_PER_KIND, judge)
