from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.grading.graders import Judge, Key, Verdict
from prism_prm.grading.plain_answers import normalize

HUGE_MATRIX = (
    r"\begin{pmatrix}" + r"\\".join("&".join(f"x_{i}^{j}" for j in range(11)) for i in range(11)) + r"\end{pmatrix}"
)
HANGING = ["9^{9^{9^9}}", r"\det" + HUGE_MATRIX, r"\sum_{k=1}^{10^{12}} \sin(k!)"]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """One whose calls end by their CPU time alone, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prism_prm.grading.process_pool.WALL_FACTOR", 1000.0)
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


@pytest.mark.parametrize(
    "answer", [r"\frac{1}{" * 50, "\\left(" * 100, "}", "\\", "\0", "\ud800", "", "$" * 99, "{" * 900]
)
def test_broken_latex_is_wrong_but_does_no_harm(judge: Judge, answer: str) -> None:
    (verdict,) = judge.judge([("x+1", answer)])
    assert not verdict.correct
    assert judge.keys([answer])[0].key is not None


def test_a_megabyte_is_compared_as_text(judge: Judge) -> None:
    long = "1+" * 500_000 + "1"
    assert judge.judge([("12", long), (long, long)]) == [Verdict(False, "too long"), Verdict(True, "too long")]


@pytest.mark.parametrize("value", [True, False, 12, 1.5, float("nan"), float("inf"), [1, 2], {"a": 1}, b"x"], ids=repr)
def test_what_is_no_text_is_judged_as_what_it_prints(judge: Judge, value: object) -> None:
    assert judge.judge([(value, str(value)), (str(value), value), (value, "17")]) == [
        Verdict(True), Verdict(True), Verdict(False),
    ]  # fmt: skip
    assert judge.keys([value]) == judge.keys([str(value)])


JUNK = [
    r"\boxed{", "{", "}", "$", r"\(", r"\text{", "\\", r"\\", "^{", r"^{\prime ", "1 ", "1,", r"1\,", "(", "**",
    r"\left.", r"\\[1", " ", "{,}", "1{ ", r"\pm", "x=", "|", "-", "e", "1:",
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK)
def test_200_kb_of_anything_are_compared_at_once(judge: Judge, junk: str) -> None:
    # Were reading any of these quadratic, it would take hours and the test run would not end.
    long = junk * (200_000 // len(junk))
    assert judge.judge([("12", long)]) == [Verdict(False, "too long")]
    assert judge.keys([long])[0].status == "too long"


def test_hostile_answers_are_wrong_and_reported_at_worst(judge: Judge) -> None:
    """Just short enough to be read; those of one sign hang the parser."""
    hostile = [junk * (1_900 // len(junk)) for junk in JUNK]
    verdicts = judge.judge([("x+1", answer) for answer in hostile])
    assert not any(verdict.correct for verdict in verdicts)
    assert {verdict.status for verdict in verdicts} <= {"ok", "timeout", "error"}
    assert judge.judge([("2x", "x+x")]) == [Verdict(True)]


PIECES = [
    r"\\", r"\,", r"\!", r"\left", r"\right", "(", ")", "[", "]", "{", "}", r"\{", r"\}", "1", "23", "x", "ab",
    ",", " ", "^", "_", "'", "-", "+", "=", "<", r"\le", r"\frac", r"\sqrt", r"\pi", r"\text{cm}", r"\text{ or }",
    r"\begin{pmatrix}", r"\end{pmatrix}", r"\$", "$", ":", "!", ".", r"\cup", r"\in", r"\infty", "π", "≤",
    "dollars", "e", "&", r"\pm", "%",
]  # fmt: skip
SOUP = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(SOUP)
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


def test_any_soup_of_latex_is_judged(judge: Judge) -> None:
    found: list[str] = []

    @settings(max_examples=300, derandomize=True, database=None, deadline=None)
    @given(SOUP)
    def collect(text: str) -> None:
        found.append(text)

    collect()
    verdicts = judge.judge([(text, text) for text in found] + list(itertools.pairwise(found)))
    assert all(verdict.correct for verdict in verdicts[: len(found)])
    assert {verdict.status for verdict in verdicts} <= {"ok", "timeout", "error"}
    assert all(key.key for key in judge.keys(found))


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


def test_threads_that_share_a_judge_get_their_own_verdicts() -> None:
    pairs = [(f"{k}x+{k + 1}", f"{k + 1}+{k}x" if k % 3 else f"{k}+{k + 1}x") for k in range(1, 1001)]
    with Judge(workers=2) as shared, ThreadPoolExecutor(16) as threads:
        portions = threads.map(lambda start: shared.judge(pairs[start : start + 5]), range(0, len(pairs), 5))
        verdicts = [verdict for portion in portions for verdict in portion]
    assert verdicts == [Verdict(k % 3 != 0) for k in range(1, 1001)]
