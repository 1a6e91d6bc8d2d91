"""Keys must make equal answers equal, and only those; grouping by them is an equivalence by construction."""

from __future__ import annotations

import pytest

from prism_prm.grading.symbolic import equivalent, key

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
    ["1", r"\sin^2 x + \cos^2 x", r"\cos^2 y + \sin^2 y"],
    ["n", "n+0", "2n-n", r"\frac{n^2+n}{n+1}", r"n + \sin^2 m + \cos^2 m - 1"],
    ["i", "i+0", r"\frac{(1+i)^2}{2}"],
    [r"\alpha", r"1\alpha"],
    ["12", "1\u200b2", "12\u200b", "\ufeff12"],
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


RIGHT = [
    # matrices, lists, sets, intervals
    (r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}", r"\begin{bmatrix} 1 \\[4pt] -2 \\ \end{bmatrix}"),
    (r"\begin{pmatrix} 1/3 & 2 \end{pmatrix}", r"\left(\begin{array}{cc} \frac13 & 2.0 \end{array}\right)"),
    (r"3\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 3 \\ 6 \end{pmatrix}"),
    ("(x,y)=(1,2)", "(1,2)"), ("x=1, y=2", "(1,2)"), ("x=1, y=2", "1,2"), (r"\langle 1,2 \rangle", "(1,2)"),
    ("1, 2, and 3", "3,2,1"),
    (r"\{1\pm\sqrt{5},-2\}", r"1+\sqrt5, -2, 1-\sqrt5"), (r"x = 1 \text{ or } x = 2", "2,1"), ("100,200", "100, 200"),
    (r"(11{,}111, 5)", "(11111, 5)"), ("[0,1]\\cup[1,2]", "[0,2]"), (r"\{x \mid x>3\}", r"(3,\infty)"),
    (r"x<2 \text{ or } x>3", r"(3,\infty)\cup(-\infty,2)"), ("x<y", "y>x"), (r"x \neq 0", r"(-\infty,0)\cup(0,\infty)"),
    # numbers and quantities
    (r"11,\! 111,\! 100", "11111100"), (r"11\,111\,100", "11,111,100"), ("1 1/2", r"\frac32"), ("0.6666666", "2/3"),
    (r"15\mbox{ cm}^2", "15 square centimeters"), (r"5 \text{ cm}", "5"), (r"\$5.50", "5.5 dollars"),
    ("3:30 pm", "15:30"),
    (r"5 \text{ million}", "5,000,000"), ("52_8", "52"), (r"33\frac{1}{3}\%", r"\frac13"), ("1:2", "1/2"),
    (r"3 \text{ hours } 15 \text{ minutes}", "3 hours 15 minutes"),
    # formulas
    (r"2\pi", "2pi"), (r"2\pi", "2π"), (r"\sqrt{2}", "sqrt(2)"), ("x²", "x^2"), ("a+b=25", "25"),
    ("y=2x+3", "2x-y+3=0"),
    (r"y^{\prime}+r y-r x(t)=0", "ry + y' = r x(t)"), (r"\frac{d x}{d t}=k x-a", r"\frac{dx}{dt} = -a + kx"),
    (r"2\mathbf{i}-3\mathbf{j}", r"-3\mathbf{j}+2\mathbf{i}"),
    (r"\sin^2 x + \cos^2 x", "1"), ("n", "n+0"), ("12", "1\u200b2"), ("1,\u200b2", "1,2"), ("x\u2060+1", "1+x"),
    ("i", "2i-i"),
    (r"m-\lfloor m / 2\rfloor", r"-\left\lfloor\frac m2\right\rfloor+m"),
]  # fmt: skip
WRONG = [
    # matrices, lists, sets, intervals
    (r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}", r"\begin{pmatrix} 0 \\ -1 \end{pmatrix}"),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} -17/5 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    ("(1,2)", r"\{1,2\}"), ("(2,1)", "1,2"), ("1,2,3", "(1,3,2)"), ("1,1,2", "1,2"), ("[1,2]", "1,2"),
    ("y=2, x=1", "(2,1)"), ("x=1, y=2", "(2,1)"), ("x=1, y=2", "2, 1"), ("f(x)=x, f(x)=-x", "f(x)=x, f(a)=-x"),
    ("a=2, a=3", "a=2, x=3"),
    ("14,000", "14,00"), (r"11,\! 111,\! 100", "11, 111, 100"), ("(1,2),(3,4)", "(1,2),(4,3)"), ("1:2:3", "1:3:2"),
    (r"(1,2)\cup(3,4)", "(1,2)\\cup(3,4]"), ("x<y", "x>y"), (r"x\le y", "x<y"), ("(5]", "5"),
    (r"\begin{cases} x=1 \\ y=2\end{cases}", r"\begin{cases} x=2 \\ y=1\end{cases}"), ("y=2x", "x+y=2x"),
    # numbers and quantities
    (r"12 \text{ am}", r"12 \text{ pm}"), ("10:30 am", "10:30 pm"), ("3:00", "3:15"), (r"5 \text{ cm}", r"5 \text{ m}"),
    (r"15\mbox{ cm}^2", r"15\mbox{ cm}^3"), (r"\$5", "5 cents"), ("52_8", "52_9"), (r"5 \text{ million}", "5"),
    (r"3 \text{ hours } 15 \text{ minutes}", r"3 \text{ hours } 20 \text{ minutes}"), ("1.2345678", "1.2345679"),
    ("-1.2345678", "1.2345678"), ("1/0", "2/0"),
    # formulas
    ("3t", "3"), ("2x+3t", "2x+3"), (r"\frac{37}{4} m", r"\frac{37}{4}"), ("y'", "y"), ("3R^2", "3r^2"),
    (r"\gamma+1", "1"),
    (r"2\mathbf{i}+3\mathbf{j}", r"2\mathbf{i}-3\mathbf{j}"), ("2(3)", "5"), (r"3\binom{5}{2}", "13"),
    (r"\sqrt12", "2"),
    ("123456789012345x", "123456789012346x"), (r"\frac{\pi}{10^{20}}", r"\frac{2\pi}{10^{20}}"),
    (r"\lfloor n/2\rfloor", r"\lfloor n/3\rfloor"), (r"m \frac{d v}{d t}+b v=f", r"m \frac{d v}{d n}+b v=f"),
    (r"\sin^2 x + \cos^2 y", "1"), (r"\frac{|x|}{x}", "1"), ("n", "m+0"), ("n", r"\sqrt{n^2}"), ("2n", "n+0"),
    ("x^2+y^2=25", "x^2+y^2=5"), (r"\angle ABC", r"\angle ACB"), ("listen", "silent"),
    (r"A \text{ wins}", r"A \text{ loses}"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "answer"), RIGHT)
def test_one_answer_in_two_spellings(reference: str, answer: str) -> None:
    assert equivalent(reference, answer)
    assert equivalent(answer, reference)


@pytest.mark.parametrize(("reference", "answer"), WRONG)
def test_two_answers_that_look_alike(reference: str, answer: str) -> None:
    assert not equivalent(reference, answer)
    assert not equivalent(answer, reference)


def test_unreadable_answers_are_compared_as_text() -> None:
    assert key(r"A \cap B") == key(r"A\cap  B") != key(r"A \cup B")


def test_judging_is_lenient_where_voting_is_not() -> None:
    assert equivalent("(1,2)", "1,2")  # yet these are two answers in a vote, or (1,2) and (2,1) would be one
    assert equivalent("5", "x = 5")
    assert not equivalent("5", "x = 6")


def test_right_where_math_verify_fails() -> None:
    from math_verify import parse, verify

    for reference, answer in [("3+4i", "(2+i)^2"), ("y=2x+3", "f(x)=2x+3")]:
        assert not verify(parse(f"${reference}$"), parse(f"${answer}$"))
        assert equivalent(reference, answer)


def test_tolerance_holds_for_formulas_too() -> None:
    assert not equivalent(r"\frac{\pi}{2}", "1.58", 0.0)
    assert equivalent(r"\frac{\pi}{2}", "1.58", 0.01)
    assert not equivalent(r"\frac{\pi}{2}", "1.6", 0.01)
