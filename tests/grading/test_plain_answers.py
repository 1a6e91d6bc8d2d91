from __future__ import annotations

from fractions import Fraction

import math_verify
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.grading.formulas import key_of_value, parse
from prism_prm.grading.plain_answers import (
    KEY_DIGITS,
    Numeral,
    normalize,
    number_key,
    numeral,
    plain_key,
    same_number,
    split_unit,
    text_key,
)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        (r" $\dfrac{1}{2}$. ", r"\frac{1}{2}"),
        (r"\left( 3, 4 \right)", "( 3, 4 )"),
        (r"1,\!000", "1000"),
        (r"90^{\circ}", "90"),
        (r"\text{ Tuesday }", "Tuesday"),
        (r"\$5.50", r"\$5.50"),
        (r"$1$ and $2$", "1 and 2"),
        (r"1 \\ -2", r"1 \\ -2"),
        (r"\(x\)", "x"),
        (r"\leftarrow", r"\leftarrow"),
    ],
)
def test_normalise_takes_off_the_dress_only(answer: str, normal: str) -> None:
    assert normalize(answer) == normal


def test_normalise_reads_a_megabyte_of_full_stops_once() -> None:
    assert normalize("$7$" + " ." * 500_000) == "7"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("12", 12), ("-12", -12), ("+3", 3), ("007", 7), ("1,234", 1234), ("1{,}234{,}567", 1234567), ("10 000", 10000),
        ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("5.", 5), ("-0.25", Fraction(-1, 4)), ("27.0", 27),
        ("1/2", Fraction(1, 2)), ("-3/4", Fraction(-3, 4)), (r"\frac{1}{2}", Fraction(1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{270}7", Fraction(270, 7)), (r"-\frac{1}{2}", Fraction(-1, 2)), (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"1\frac{4}{5}", Fraction(9, 5)), (r"-2\frac{1}{2}", Fraction(-5, 2)), ("50%", Fraction(1, 2)),
        ("4.5e33", 45 * 10**32), (r"6.72 \times 10^{-5}", Fraction(672, 10**7)), (r"3\cdot10^8", 3 * 10**8),
        ("5 dollars", 5), ("1,200 square feet", 1200), ("12.5 miles per hour", Fraction(25, 2)),
        ("20 percent", Fraction(1, 5)), ("5 million", 5 * 10**6), ("2 dozen eggs", 24), ("1 1/2", Fraction(3, 2)),
        (r"11,\! 111,\! 100", 11111100), (r"1\,000{,}000", 10**6), ("52_8", 52),
        (r"0.\overline{3}", Fraction(1, 3)), (r"1.1\overline{6}", Fraction(7, 6)), (r".\overline{12}", Fraction(4, 33)),
    ],
)  # fmt: skip
def test_numerals_have_their_value(answer: str, value: Fraction | int) -> None:
    found = numeral(normalize(answer))
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    "answer",
    [
        "", ".", "-", "1,2", "1,23", "-2,1", "(1)", "1/0", r"\frac{1}{0}", "x", "2k", "1e9999", "9" * 500, "e5", "%",
        "3 and", "2 x", "5 sin",
    ],
)  # fmt: skip
def test_what_is_not_plainly_a_number_is_left_to_algebra(answer: str) -> None:
    assert numeral(normalize(answer)) is None


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("1/2", "0.5", True), ("1/2", "50%", True), ("50", "50%", True), ("50%", "50", True), ("12.5", "12.5%", True),
        ("0.5", "5%", False), ("1/3", "0.333333", True), ("1/3", "0.3333", False), ("3", "3.0", True),
        (".0000672", "0.000067", False), (".0000672", "0.0000672", True), ("0.0000672", "0.00006720000001", True),
        ("1234567", "1234568", False), ("0", "0.00000001", False), ("0.0", "0", True),
    ],
)  # fmt: skip
def test_same_number(reference: str, answer: str, right: bool) -> None:
    a, b = numeral(reference), numeral(answer)
    assert a is not None
    assert b is not None
    assert same_number(a, b) is right


def test_tolerance_is_relative_to_the_reference() -> None:
    reference = Numeral(Fraction(200))
    assert same_number(reference, Numeral(Fraction(202)), tolerance=0.01)
    assert not same_number(reference, Numeral(Fraction(203)), tolerance=0.01)


def test_keys_of_numbers_keep_twelve_digits() -> None:
    assert number_key(Fraction(1, 3)) == "0.333333333333"
    assert number_key(Fraction(10**20)) == str(10**20)
    assert plain_key("0.50") == plain_key("1/2") == plain_key("50%") == plain_key(r"\frac{1}{2}") == "0.5"
    assert plain_key("(E)") == plain_key("e") == "e"
    assert plain_key("Tuesday") == "tuesday"
    assert plain_key("No solution") == "no solution"
    assert plain_key("5 dollars") == "5"
    assert plain_key("xy") is None  # a product, perhaps


def test_keys_of_long_texts_are_short_and_differ() -> None:
    assert text_key("x" * 10**6) != text_key("x" * (10**6 - 1) + "y")
    assert len(text_key("x" * 10**6)) < 50


WHOLE = st.integers(-5000, 5000)
WRITTEN = st.one_of(
    WHOLE.map(str),
    WHOLE.map(lambda n: f"{n:,}"),
    st.tuples(WHOLE, st.integers(1, 60)).map(lambda ab: rf"\frac{{{ab[0]}}}{{{ab[1]}}}"),
    st.tuples(WHOLE, st.integers(1, 60)).map(lambda ab: f"{ab[0]}/{ab[1]}"),
    st.tuples(st.integers(-400, 400), st.sampled_from([".5", ".25", ".125", ".750"])).map(lambda ab: f"{ab[0]}{ab[1]}"),
)


@settings(deadline=None)  # the first example imports sympy
@given(WRITTEN, WRITTEN)
def test_plain_reading_agrees_with_math_verify(reference: str, answer: str) -> None:
    """The fast path says what the slow one says; numbers below 0.1 and decimal percents are meant to differ."""
    a, b = numeral(reference), numeral(answer)
    assert a is not None
    assert b is not None
    gold, found = (math_verify.parse(f"${text}$", parsing_timeout=None) for text in (reference, answer))
    assert same_number(a, b) == math_verify.verify(gold, found, timeout_seconds=None)
    assert same_number(a, a)
    assert key_of_value(parse(answer), KEY_DIGITS) == plain_key(answer)


@pytest.mark.parametrize(
    ("answer", "quantity", "unit"),
    [
        (r"15\mbox{ cm}^2", "15", "cm^2"), ("15 square centimeters", "15", "cm^2"), (r"15 \text{ sq cm}", "15", "cm^2"),
        ("5 miles per hour", "5", "h^-1 mi"), (r"5\text{ mph}", "5", "h^-1 mi"),
        (r"5 \text{ m}/\text{s}^2", "5", "m s^-2"),
        ("5 m/s", "5", "m s^-1"), (r"\$5", "5", "$"), ("5 dollars", "5", "$"),
        (r"-\$5 \text{ million}", "-5 million", "$"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}7", "deg"), (r"10\pi\text{ cm}", r"10\pi", "cm"),
        ("3 p.m.", "3", "pm"),
        (r"10:30 \text{ AM}", "10:30", "am"), ("52_8", "52", "base 8"), (r"52_{\text{eight}}", "52", "base 8"),
        (r"6.72 \times 10^{-5}\mathrm{~m}", r"6.72 \times 10^{-5}", "m"),
        # A word that is no unit we know is left aside …
        ("12 apples", "12", ""), (r"12 \text{ red balls}", "12", ""),
        # … but a variable, a word without a number, and half a sentence are not.
        ("3m", "3m", ""), (r"\frac{37}{4} m", r"\frac{37}{4} m", ""), ("2x+3t", "2x+3t", ""), ("10 h", "10 h", ""),
        (r"A \text{ wins}", r"A \text{wins}", ""), ("no real solutions", "no real solutions", ""),
        (r"x \text{ is even}", r"x \text{is even}", ""), (r"2\mathbf{i}+3\mathbf{j}", r"2\text{i}+3\text{j}", ""),
        (r"3\text{ ft }4\text{ in}", r"3\text{ft}4\text{in}", ""), ("3 hours 15 minutes", "3 hours 15 minutes", ""),
    ],
)  # fmt: skip
def test_quantities_and_their_units(answer: str, quantity: str, unit: str) -> None:
    assert split_unit(normalize(answer)) == (quantity, unit)
