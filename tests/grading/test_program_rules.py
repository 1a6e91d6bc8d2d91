"""The benchmarks' rules, on cases a person can check: where the program is, and when an output is right."""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.grading import compare_outputs
from prism_prm.grading.compare_outputs import is_right, printed_key, same_printed
from prism_prm.grading.extract import find_program
from prism_prm.grading.problems import Case
from prism_prm.grading.value_codec import Unknown, decode, encode


@pytest.mark.parametrize(
    ("expected", "printed", "right"),
    [
        ("3\n", "3", True),
        ("3\n", "\n\n  3  \n\n", True),
        ("1 2\n3\n", " 1 2 \n 3 ", True),
        ("1 2\n3\n", "1 2\n\n3", False),  # another number of lines
        ("1 2 3", "1 2", False),
        ("1 2", "1  2", True),  # as numbers; as texts they differ
        ("a b", "a  b", False),
        ("Yes", "YES", False),
        ("1.0", "1", True),
        ("1e3", "1000", True),
        ("0.1", "0.10000000000000001", False),  # no tolerance
        ("100000000000000000001", "100000000000000000002", False),  # more digits than a float has
        ("-0", "0", True),
        ("1 x", "1.0 x", False),  # one token is no number, so the line is compared as text
        ("nan", "nan", True),
        ("nan 1", "nan 1.0", False),
        ("Infinity", "inf", True),
        ("", "", True),
        ("", "0", False),
        ("1\n2", "1 2", False),
        ("0.0 -0", "0 0e9", True),
        ("-Infinity", "-inf", True),
        ("1", "11", False),
        ("1 1", "11", False),
        ("10 1", "1 01", False),
    ],
)
def test_printed_text(expected: str, printed: str, right: bool) -> None:
    assert is_right(Case("", expected), printed, tuples_are_lists=True) is right
    assert (printed_key(expected) == printed_key(printed)) is right, "equal outputs vote together"


WORDS = st.sampled_from(["1", "1.0", "10", "1e1", "-0", "0", "nan", "x", "1_0", "+1", "٣", "3", "inf", "1 1", "\t1"])
LINES = st.lists(WORDS | st.just("\n"), max_size=5).map(" ".join)


@given(LINES, LINES)
def test_equal_outputs_vote_together_and_no_others(text: str, other: str) -> None:
    assert (printed_key(text) == printed_key(other)) is same_printed(text, other)


def test_endless_output_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(compare_outputs, "Decimal", lambda word: read.append(word) or Decimal(word))
    assert not same_printed("1 2", "1.0 " * 1_000_000)
    assert len(read) == 4


@pytest.mark.parametrize(
    ("expected", "got", "as_lists", "as_tuples"),
    [
        ([1, 2], [1, 2], True, True),
        ([1, 2], (1, 2), True, False),
        ([[1, 2]], [(1, 2)], False, False),  # inner ones never count as lists
        ((1, 2), (1, 2), False, True),
        (1, 1.0, True, True),
        (1, True, True, True),
        (0.1 + 0.2, 0.3, False, False),
        ("1", 1, False, False),
        (None, None, True, True),
        ({1, 2}, {2, 1}, True, True),
        (None, Unknown("x"), False, False),
    ],
)
def test_returned_values(expected: Any, got: Any, as_lists: bool, as_tuples: bool) -> None:
    case = Case((), expected)
    assert is_right(case, got, tuples_are_lists=True) is as_lists
    assert is_right(case, got, tuples_are_lists=False) is as_tuples


def test_tolerances_and_views() -> None:
    near = Case((), 0.5, 0.1)
    assert [is_right(near, got, tuples_are_lists=True) for got in (0.55, 0.7, "0.5", None, 1e400)] == [
        True, False, False, False, False,
    ]  # fmt: skip
    close = Case((), 100.0, 0.0, relative=0.01)
    assert [is_right(close, got, tuples_are_lists=True) for got in (99.1, 98.9, 101, float("inf"), 100 + 0j, "x")] == [
        True, False, True, False, True, False,
    ]  # fmt: skip
    assert is_right(Case((), (1, 2), view="tuple"), [1, 2], tuples_are_lists=False)
    assert not is_right(Case((), (1, 2), view="tuple"), 3, tuples_are_lists=False)
    zero_of = Case(([-6, 11, -6, 1],), 0.0, 1e-4, "polynomial")
    assert [is_right(zero_of, x, tuples_are_lists=False) for x in (1, 2, 3.0, 4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("a\n```python\nx = 1\n```\nb", "x = 1"),
        ("```\nfirst\n```\nno:\n```python\nsecond\n\nmore\n```", "second\n\nmore"),
        ("```python\nx = 1\n```\nRun it:\n```\n3\n```", "3"),  # the last two lines, whatever they hold
        ("```python\nx = 1", None),
        ("x = 1", None),
        ("```\n\n```", None),
        ("  ```\nx\n  ```", None),  # the line must begin with it
        ("```python\n    return 1\n```", "    return 1"),
    ],
)
def test_the_program_stands_between_the_last_two_fences(text: str, program: str | None) -> None:
    assert find_program(text).answer == program


NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.sets(st.integers()) | st.frozensets(st.text())
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner)
    ),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_values_keep_their_kind(value: Any) -> None:
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("got", "true"),
    [(True, True), (5, True), (object(), True), (None, False), ([], False), (deque(), False), (deque([0]), True)],
)
def test_truth(got: Any, true: bool) -> None:
    """`assert f(x)` asks for no more than that, of whatever kind the value is."""
    carried = decode(encode(got))
    assert is_right(Case((), True, view="truth"), carried, tuples_are_lists=False) is true
    assert is_right(Case((), False, view="truth"), carried, tuples_are_lists=False) is not true


def test_equal_sets_are_written_alike() -> None:
    assert encode({"c", "a", (2, 1), "b"}) == {"set": ["a", "b", "c", {"tuple": [2, 1]}]}


def test_what_cannot_be_carried_equals_nothing() -> None:
    found = decode(encode([object()]))[0]
    assert isinstance(found, Unknown)
    assert found != found
    assert decode(encode(float("nan"))) != decode(encode(float("nan")))
