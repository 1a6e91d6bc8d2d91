from __future__ import annotations

from collections.abc import Iterator

import pytest

from prism_prm.answers import Judge, Verdict
from prism_prm.answers.judge import Key

HUGE_MATRIX = (
    r"\begin{pmatrix}" + r"\\".join("&".join(f"x_{i}^{j}" for j in range(11)) for i in range(11)) + r"\end{pmatrix}"
)
HANGING = ["9^{9^{9^9}}", r"\det" + HUGE_MATRIX, r"\sum_{k=1}^{10^{12}} \sin(k!)", "{" * 900]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=2, seconds=0.5) as judge:
        yield judge


def test_spellings_of_one_half_are_right_and_one_group(judge: Judge) -> None:
    spellings = ["1/2", "0.5", r"\frac{1}{2}", r"50\%", r"\dfrac12", "$.5$", r"\sqrt{\frac{1}{4}}", r"x = \frac{1}{2}"]
    assert judge.judge([("0.5", spelling) for spelling in spellings]) == [Verdict(True)] * len(spellings)
    assert judge.keys(spellings) == [Key("0.5")] * len(spellings)


def test_wrong_answers_and_none(judge: Judge) -> None:
    pairs = [("3", "4"), ("3", None), ("x+1", "x+2"), (r"\text{(E)}", "E"), ("Evelyn", r"\text{Carla}")]
    assert judge.judge(pairs) == [
        Verdict(False), Verdict(False, "no answer"), Verdict(False), Verdict(True), Verdict(False),
    ]  # fmt: skip
    assert judge.keys([None]) == [Key(None, "no answer")]


@pytest.mark.parametrize("answer", HANGING, ids=lambda answer: answer[:20])
def test_an_answer_that_hangs_costs_its_limit_and_is_reported(judge: Judge, answer: str) -> None:
    # Without the limit none of these would end; each is followed by one that must still be judged.
    assert judge.judge([("12", answer), ("2x", "x+x")]) == [Verdict(False, "timeout"), Verdict(True)]


def test_a_hanging_answer_votes_as_text(judge: Judge) -> None:
    keys = judge.keys(["9^{9^{9^9}}", "9^{9^{9^9} }", "9^{9^{9^8}}"])
    assert [key.status for key in keys] == ["timeout"] * 3
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("answer", [r"\frac{1}{" * 50, "\\left(" * 100, "}", "\\", "\0", "\ud800", "", "$" * 99])
def test_broken_latex_is_wrong_but_does_no_harm(judge: Judge, answer: str) -> None:
    (verdict,) = judge.judge([("x+1", answer)])
    assert not verdict.correct
    assert judge.keys([answer])[0].key is not None


def test_a_megabyte_is_compared_as_text(judge: Judge) -> None:
    long = "1+" * 500_000 + "1"
    assert judge.judge([("12", long), (long, long)]) == [Verdict(False, "too long"), Verdict(True, "too long")]


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    answers = [r"\sqrt{8}", r"2\sqrt{2}", "(x+1)^2", "x^2+2x+1", "9^{9^{9^9}}", "1/2", None] * 3
    pairs = [(r"\sqrt{8}", answer) for answer in answers]
    results = []
    for count in (1, 3):
        with Judge(workers=count, seconds=0.5) as judge:
            results.append((judge.judge(pairs), judge.keys(answers)))
    assert results[0] == results[1]
    assert [verdict.correct for verdict in results[0][0]] == [True, True, False, False, False, False, False] * 3


def test_tolerances_go_with_their_pair(judge: Judge) -> None:
    pairs = [("100", "101"), ("100", "101"), (r"100\pi", "317"), (r"100\pi", "317")]
    verdicts = judge.judge(pairs, [0.0, 0.02, 0.0, 0.02])
    assert [verdict.correct for verdict in verdicts] == [False, True, False, True]
