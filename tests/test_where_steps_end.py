"""One rule for where steps end: of whole solutions, of completions, and of a search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm import split_steps
from prism_prm.backends.policy import Sampling, StepRequest, Written, cut_at_stop, write_steps
from prism_prm.search.tree import child, root
from prism_prm.steps import cut_steps, ends_in_code, ends_step

CODE = '''We sort first.

```python
def f(xs):
    total = sum(
        xs,

        start=0,
    )

    """A text

    with a gap (and an open bracket."""

    return total  # not [ closed

print("it's", f([1]))
```

That is all.'''
STEPS = [
    "We sort first.",
    "```python\ndef f(xs):\n    total = sum(\n        xs,\n\n        start=0,\n    )",
    '    """A text\n\n    with a gap (and an open bracket."""',
    "    return total  # not [ closed",
    'print("it\'s", f([1]))\n```',
    "That is all.",
]


class Reciting:
    """A policy that writes a given text, up to the stop string each time."""

    name, has_log_likelihood = "reciting", False

    def __init__(self, text: str) -> None:
        self.text = text

    def identity(self) -> str:
        return "reciting"

    def prompt(self, problem: str) -> str:
        return problem

    def close(self) -> None: ...

    def write(self, asks: list[StepRequest], sampling: Sampling) -> list[Written]:
        written = []
        for ask in asks:
            piece, stopped = cut_at_stop(self.text[len(ask.text) - len("Q ```\n") :], sampling.stop)
            written.append(Written(piece, "stop" if stopped else "end", max(1, len(piece))))
        return written


def searched(text: str, segmenter: str = "paragraph") -> list[str]:
    """The steps of a search whose policy writes this text."""
    policy, node, sampling = Reciting(text), root("Q ```\n"), Sampling(segmenter=segmenter)
    while not node.is_finished:  # the fence in the prompt is not the solution's
        request = StepRequest(node.text, 0, 10_000, start=node.start, num_steps=len(node.nodes()))
        (written,) = write_steps(policy, [request], sampling)
        before, node = len(node.nodes()), child(node, 0, written, sampling)
        assert node.is_finished or len(node.nodes()) > before
    return [one.step for one in node.nodes()]


def test_code_is_cut_where_it_is_closed_and_keeps_its_indentation() -> None:
    assert cut_steps(CODE) == STEPS
    assert split_steps(CODE) == STEPS
    assert searched(CODE) == STEPS
    assert "\n\n".join(STEPS) == CODE


WRITTEN = ["", "a b", "```python", "```", "    x = f(", "y)", "s = '''", "'''", "# it's (", "# C:\\", 't = "("', "~~~"]
LINES = st.sampled_from(WRITTEN)


@given(st.lists(LINES, max_size=14).map("\n".join))
def test_a_search_cuts_as_whole_solutions_are_cut(text: str) -> None:
    assert searched(text) == cut_steps(text)


@given(st.lists(LINES, min_size=1, max_size=14).map(lambda lines: "a\n\n" + "\n".join(lines) + "\n\nb"))
def test_solutions_with_paragraphs_are_split_by_the_same_rule(text: str) -> None:
    found = cut_steps(text)
    assert split_steps(text) == found or len(found) == 1  # without a border it looks for lines and sentences


@pytest.mark.parametrize(
    ("text", "whole", "in_code"),
    [
        ("prose (", True, False),
        ("```\nf(", False, True),
        ("```\nf(\n)", True, True),
        ("```\nf(\n```\n", True, False),
        ("```\nx = 'it\\'s (\n", True, True),
        ('```\nx = """a\n\n', False, True),
        ("```\nx = '' # ]}) (\n\n", True, True),
        ("```\n# C:\\\nx = f(\n\n", False, True),  # a comment that ends in a backslash ends all the same
        ("```\n)\n\n", True, True),
        ("~~~\n```\nf(\n\n", False, True),
    ],
)
def test_what_is_open(text: str, whole: bool, in_code: bool) -> None:
    assert (ends_step(text), ends_in_code(text)) == (whole, in_code)


def test_code_that_is_never_closed_is_cut_at_the_limit() -> None:
    policy = Reciting("```\nf(" + "\n\n(" * 1000)
    (written,) = write_steps(policy, [StepRequest("Q ```\n", 0, 50, start=6)], Sampling())
    assert (written.ending, written.num_tokens) == ("cut", 50)
