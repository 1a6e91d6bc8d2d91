"""Keys must make equal answers equal, and only those; grouping by them is an equivalence by construction."""

from __future__ import annotations

import pytest

from prism_prm.answers.symbolic import equivalent, key

SAME = [
    ["1/2", "0.5", r"\frac{1}{2}", r"50\%", r"\sqrt{\frac{1}{4}}", "x=0.5", r"\frac{2}{4}"],
    [r"2\sqrt{3}", r"\sqrt{12}", r"\frac{6}{\sqrt{3}}"],
    ["x^2+2x+1", "(x+1)^2", "1+2x+x^2", "f = (x+1)(x+1)"],
    ["(1,2)", r"\left(1,\,2\right)", "1<x<2", r"x \in (1,2)"],
    ["[1,2)", r"1 \le x < 2", "[1,2.0)"],
    [r"(3,\infty)", "x>3"],
    ["1,2", "2,1", r"\{1,2\}", "x=1,x=2", r"x = 2 \text{ or } x = 1"],
    [r"3 \pm 2\sqrt{2}", r"3-2\sqrt2, 3+2\sqrt2"],
    ["x=1,y=2", "y=2,x=1"],
    ["2x+4y=6", "x+2y=3", "3=x+2y"],
    [r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&\sqrt{16}\end{bmatrix}"],
    [r"(-\infty,0]\cup[1,2)", r"[1,2)\cup(-\infty,0]"],
    ["3+2i", "2i+3"],
    ["3+4i", "(2+i)^2"],
    ["-1", "i^2", r"e^{i\pi}"],
    ["2x+3", "f(x) = 2x+3", "y = 3 + 2x"],
    [r"\pi", r"\frac{2\pi}{2}"],
    ["|x|", r"\sqrt{x^2}"],
    [r"\left(4\frac{5}{8}\right)^{2}\cdot\left(\frac{8}{37}\right)^{2} = 1", "1"],
    ["5 \\text{ cm}", "5"],
]
DIFFERENT = ["1/2", "(1,2)", "(2,1)", "1,2", "[1,2]", "x", "-x", "|x|", "x=1,y=2", "x=2,y=1", r"\pi", "3.14", "50",
             "2+3i", "3+2i", "3-2i", "x+2y=3", "x+2y=4", "(1,2,3)", "x^2", "2x",
             "y", "(B)", r"\alpha", r"\beta", "xy", "x>3", "x>4", "y(x)", "f(x)"]  # fmt: skip


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_equal_answers_have_one_key(spellings: list[str]) -> None:
    assert {key(spelling) for spelling in spellings} == {key(spellings[0])}


def test_different_answers_have_different_keys() -> None:
    keys = {answer: key(answer) for answer in DIFFERENT}
    assert len(set(keys.values())) == len(DIFFERENT), keys


def test_unreadable_answers_are_compared_as_text() -> None:
    assert key(r"A \cap B") == key(r"A\cap  B") != key(r"A \cup B")


def test_judging_is_lenient_where_math_verify_is() -> None:
    assert equivalent("(1,2)", "1,2")  # yet these are two answers in a vote, or (1,2) and (2,1) would be one
    assert equivalent("5", "x = 5")
    assert not equivalent("5", "x = 6")


def test_equal_keys_are_right_where_math_verify_fails() -> None:
    from math_verify import parse, verify

    for reference, answer in [("3+4i", "(2+i)^2"), ("y=2x+3", "f(x)=2x+3")]:
        assert not verify(parse(f"${reference}$"), parse(f"${answer}$"))
        assert equivalent(reference, answer)


def test_tolerance_holds_for_formulas_too() -> None:
    assert not equivalent(r"\frac{\pi}{2}", "1.58", 0.0)
    assert equivalent(r"\frac{\pi}{2}", "1.58", 0.01)
    assert not equivalent(r"\frac{\pi}{2}", "1.6", 0.01)
