from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.data.pair_arrays import audit_trunk
from prism_prm.data.pair_rules import mark, normalize_step, quantities
from strategies import TEXTS

PROBLEM = "Tom has 3 boxes of 4 apples. How many apples are left after he eats 5?"
STEPS = [
    "He starts with 3 * 4 = 12 apples.",
    "He eats 5 of them.",
    "So 12 - 5 = 7 are left.",
    "So 12 - 5 = 7 apples are left.",
]


@pytest.mark.parametrize(
    ("current", "candidate", "expected"),
    [
        (0, 1, "no_new_quantity"),  # 5 is in the problem: eating may come first
        (0, 2, None),  # needs the 12 of step 0
        (1, 2, "no_new_quantity"),  # 12 is known by then, and so is 5
        (2, 3, "near_duplicate"),
        (1, 3, None),  # needs the 7 of step 2
    ],
)
def test_marks(current: int, candidate: int, expected: str | None) -> None:
    assert mark(PROBLEM, STEPS, current, candidate) == expected


def test_other_numbers_are_no_near_duplicates() -> None:
    asked = [
        "What is the largest power of 2 that is less than 30?",
        "What is the largest power of 2 that is less than 14?",
    ]
    assert mark("Write 30 in base 2, where 16 + 14 = 30.", asked, 0, 1) == "no_new_quantity"
    assert mark("Write 30 in binary.", [asked[0], "Then 14 is left.", asked[1]], 0, 2) is None


def test_quantities_are_numbers_and_names() -> None:
    said = "I need a value: let X_1 = 2.5 and $3y$ = 07, θ = Total, \\frac{n}{k}"
    assert quantities(said) == {"x", "1", "2.5", "3", "y", "07", "θ", "n", "k"}
    assert quantities("Exactly.") == set()


def test_normalising_steps() -> None:
    assert normalize_step(" So\n X  = 1") == normalize_step("so x = 1")
    assert normalize_step("x = 1") != normalize_step("x = -1")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TEXTS), st.lists(st.sampled_from([*TEXTS, *STEPS]) | st.text(max_size=8), max_size=8))
def test_all_at_once_is_one_by_one(problem: str, steps: list[str]) -> None:
    near_duplicates, needs = audit_trunk(problem, steps)
    for current in range(len(steps)):
        for candidate in range(current + 1, len(steps)):
            known = needs[candidate] < current
            found = (
                "near_duplicate" if (current, candidate) in near_duplicates else "no_new_quantity" if known else None
            )
            assert found == mark(problem, steps, current, candidate)
