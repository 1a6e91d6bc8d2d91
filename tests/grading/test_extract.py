from __future__ import annotations

import pytest

from prism_prm.grading.extract import Extraction, extract_answer


@pytest.mark.parametrize(
    ("text", "answer", "method"),
    [
        (r"so \boxed{3}.", "3", "boxed"),
        (r"\boxed{1} then \boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}", "boxed"),
        (r"\boxed{\text{a \} b}} rest", r"\text{a \} b}", "boxed"),
        (r"\fbox{7}", "7", "boxed"),
        (r"is \boxed 5$", "5", "boxed"),
        (r"\boxed{4} and at the end \boxed{}", "4", "boxed"),
        (r"\boxed{4} cut off \boxed{\frac{1}{", "4", "boxed"),
        (r"\boxed{x = \boxed{6}}", r"x = \boxed{6}", "boxed"),
        ("48/2 = 24\n#### 1,072", "1,072", "####"),
        ("#### 5\nThe answer is 6.", "5", "####"),
        ("48/2 = 24\n####", None, "none"),
        ("48/2 = 24\n#### \n", None, "none"),
        ("48/2 = 24\n####\n24", "24", "last number"),
        ("The answer is 24.\n####", "24", "answer is"),
        ("The answer is 42.", "42", "answer is"),
        ("The final answer is: $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}", "answer is"),
        ("**Answer:** **Tuesday**", "Tuesday", "answer is"),
        ("The answer is \\(x^2\\), as wanted", "x^2", "answer is"),
        ("The answer is that there are 12 ways to do it.", "12", "answer is"),
        ("Answer: 3.5\nThank you.", "3.5", "answer is"),
        ("We get 5 apples, and so 1,234 pears", "1,234", "last number"),
        ("a drop of -3.25 percent", "-3.25", "last number"),
        ("from 7 to 9-4", "4", "last number"),
        ("it is \\frac{3}{4} of it", r"\frac{3}{4}", "last number"),
        ("1/3 of it", "1/3", "last number"),
        ("of 5 pairs the 12th.", "12", "last number"),
        ("so 7 gives x_{2} and x^2, F3 and 4S/3 or 3\\sqrt{2}", "7", "last number"),
        ("we get 12.5", "12.5", "last number"),
        ("it costs $5.", "5", "last number"),
        ("(-4)", "-4", "last number"),
        ("nothing at all", None, "none"),
        ("", None, "none"),
    ],
)
def test_finds_the_answer_and_says_how(text: str, answer: str | None, method: str) -> None:
    assert extract_answer(text) == Extraction(answer, method)


def test_methods_can_be_chosen() -> None:
    assert extract_answer("we get 5", methods=["boxed", "answer is"]) == Extraction(None, "none")


@pytest.mark.parametrize("junk", ["\\boxed{", "{", "}", "$", "answer is ", "1,", "\\", "1 "])
def test_a_megabyte_of_anything_is_read_once(junk: str) -> None:
    # Were any of these quadratic, a megabyte would take hours and the test run would not end.
    extract_answer(junk * (1_000_000 // len(junk)))


def test_boxes_within_boxes_are_read_once() -> None:
    """The content of each box holds all the boxes within it: copied one by one they would be 300 gigabytes."""
    depth = 200_000
    inside = r"\boxed{" * (depth - 1) + "6" + "}" * (depth - 1)
    assert extract_answer(rf"\boxed{{ {inside} }}") == Extraction(inside, "boxed")
