from __future__ import annotations

import pytest

from prism_prm.grading.formulas import NotAFormulaError, parse, real_value, spell_out
from prism_prm.grading.plain_answers import normalize


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        # What the parser reads otherwise: as 7, 7, 13, 5, pi, 1/2, 2, and not at all.
        ("3(4)", 12), ("(3)(4)", 12), (r"3\binom{5}{2}", 30), (r"\frac{4}{2}(3)", 6), (r"\pi - \pi(1)", 0),
        (r"2\frac{1}{2}", 2.5), (r"-2\tfrac12", -2.5), (r"\sqrt16", 4), ("10^-2", 0.01), (r"\frac\pi\pi", 1),
        ("2**3", 8),
        (r"\frac{\sqrt 4}2", 1), (r"\sqrt[3]8", 2), ("5!", 120), (r"2\lfloor 5/2\rfloor", 4), ("0.1 + 0.2", 0.3),
    ],
)  # fmt: skip
def test_formulas_have_their_value(formula: str, value: float) -> None:
    found = real_value(parse(normalize(formula)))
    assert found is not None
    assert float(found) == value


def test_decimals_are_exact() -> None:
    assert str(real_value(parse("0.1 + 0.2"))) == "3/10"


@pytest.mark.parametrize(("formula", "other"), [(r"\gamma + 1", "1"), ("I_1", "I_2"), ("y'", "y"), ("m M", "m m")])
def test_names_stay_apart(formula: str, other: str) -> None:
    assert parse(formula) != parse(other)


@pytest.mark.parametrize(
    "text",
    ["52_8 + 1", "2 3", "1.2.3", "red balls", r"x \text{ is even}", r"1, \ldots, 9", r"\frac{1}{", "(1", "1e5x", "x^",
     r"\angle ABC", "(" * 900, "+" * 5 + "^"],
)  # fmt: skip
def test_what_would_be_misread_is_no_formula(text: str) -> None:
    with pytest.raises(NotAFormulaError):
        parse(text)


def test_factors_and_arguments_are_spelled_out() -> None:
    assert spell_out(r"2(3)x^12\frac12") == r"2\cdot( 3 )x^{12}\frac{1}{2}"
