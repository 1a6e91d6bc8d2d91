from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm import read_trees, split_steps
from prism_prm.data.formats import ReadOptions
from prism_prm.steps import _inline_formulas


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("First.\n\nSecond.\n \n\nThird.", ["First.", "Second.", "Third."]),
        ("Step 1: a\nmore\nStep 2: b", ["Step 1: a\nmore", "Step 2: b"]),
        ("**Step 1** a\n## Step 2: b", ["**Step 1** a", "## Step 2: b"]),
        ("Plan:\n1. a\n2) b\n- c\n* d", ["Plan:", "1. a", "2) b", "- c", "* d"]),
        ("one\ntwo", ["one", "two"]),
        ("We add 2. Then 3.5 is left. So $x. Y$ holds! \\boxed{1}", ["We add 2.", "Then 3.5 is left.",
         "So $x. Y$ holds!", "\\boxed{1}"]),
        ("By e.g. Theorem A. B. Smith we are done.", ["By e.g. Theorem A. B. Smith we are done."]),
        ("Code:\n```python\nx = 1\n\n    y = 2\n```\n\nDone.", ["Code:\n```python\nx = 1", "    y = 2\n```", "Done."]),
        ("```\nx = [\n\n  1]\n\ny = 2\n```", ["```\nx = [\n\n  1]", "y = 2\n```"]),
        ("```\n- a\n1. b\nStep 2: c\n```", ["```\n- a\n1. b\nStep 2: c\n```"]),
        ("So\n\\begin{align*}\na &= 1 \\\\\n\nb &= 2\n\\end{align*}\n\nDone.",
         ["So\n\\begin{align*}\na &= 1 \\\\\n\nb &= 2\n\\end{align*}", "Done."]),
        ("$$a\n\n= b$$\n\n\\[c\n\n= d\\]", ["$$a\n\n= b$$", "\\[c\n\n= d\\]"]),
        ("a\n\n```\nnever closed(\n\nb", ["a", "```\nnever closed(\n\nb"]),
        ("Whole", ["Whole"]),
        ("  \n ", []),
    ],
)  # fmt: skip
def test_where_steps_end(text: str, steps: list[str]) -> None:
    assert split_steps(text) == steps


@given(st.text(st.sampled_from("ab.\n $`\\[]-1S "), max_size=60))
def test_nothing_is_lost(text: str) -> None:
    steps = split_steps(text)
    assert "".join("".join(steps).split()) == "".join(text.split())
    assert all(step.strip() and step == step.rstrip() and not step.startswith("\n") for step in steps)
    assert "```" in text or all(step == step.lstrip() for step in steps)


HUGE = 400_000


@pytest.mark.parametrize(
    ("text", "num_steps"),
    [
        ("\\(" * (HUGE // 2), 1),
        ("\\(" * (HUGE // 2) + "\n\\)", 2),
        ("`" * HUGE, 1),
        ("~" * HUGE + " a. B", 2),
        ("a\n\n$$b\n\nc$$\n\n" * (HUGE // 12), 2 * (HUGE // 12)),
    ],
)
def test_hostile_texts_take_no_square_of_their_length(text: str, num_steps: int) -> None:
    assert len(split_steps(text)) == num_steps


@given(st.lists(st.sampled_from(["\\(", "\\)", "$", "\\$", "\n", ". A", " "]), max_size=40).map("".join))
def test_formulas_in_a_line_are_those_that_a_plain_pattern_finds(text: str) -> None:
    plain = re.compile(r"\\\(.*?\\\)|(?<![\\$])\$(?!\$)[^$\n]+\$")
    assert list(_inline_formulas(text)) == [match.span() for match in plain.finditer(text)]


def test_real_solutions_keep_their_environments(real_data: Path) -> None:
    trees = list(read_trees(real_data / "math500" / "test.jsonl", options=ReadOptions(split_steps=True)))
    assert len(trees) == 500
    texts = [step.text for tree in trees for step in tree.nodes]
    assert len(texts) > 1000
    for begin, end in (("[asy]", "[/asy]"), ("\\begin{align*}", "\\end{align*}"), ("\\begin{cases}", "\\end{cases}")):
        assert all(text.count(begin) == text.count(end) for text in texts)
