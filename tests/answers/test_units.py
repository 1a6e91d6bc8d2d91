from __future__ import annotations

import pytest

from prism_prm.answers.plain_answers import normalize, split_unit


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
