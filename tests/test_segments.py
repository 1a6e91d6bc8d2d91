"""Segmenters: what they cut, that nothing is lost, and that a search cuts as whole texts are cut."""

from __future__ import annotations

import io
import json
import tokenize
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.backends.policy import Sampling
from prism_prm.errors import ConfigError
from prism_prm.segments import (
    SEGMENTERS,
    blocks,
    complete_steps,
    cut_text,
    find_segmenter,
    first_response,
    last_revision,
    response_of,
    roles_of,
    split_text,
    thinking_nodes,
    thinking_tokens,
    without_tags,
)
from prism_prm.steps import cut_steps
from prism_prm.tree import Step, StepTree
from test_where_steps_end import CODE, LINES, searched

TRACE = (
    "<think>\nOkay, we need 12 * 12. Let me see. 12 * 10 is 120.\n\nSo far so good.\n\n"
    "$$12 \\cdot 2 = 24$$\n\nWait, is it 120 + 24 = 154? Hmm, 120 + 24 = 144.\n</think>\n\n"
    "The product is 144.\n\nThe answer is \\boxed{144}."
)
STEPS = {
    "paragraph": [
        "<think>\nOkay, we need 12 * 12. Let me see. 12 * 10 is 120.",
        "So far so good.",
        "$$12 \\cdot 2 = 24$$",
        "Wait, is it 120 + 24 = 154? Hmm, 120 + 24 = 144.\n</think>",
        "The product is 144.",
        "The answer is \\boxed{144}.",
    ],
    "thinking": [TRACE[: TRACE.index("The product")].strip(), "The product is 144.", "The answer is \\boxed{144}."],
    "thinking:16": [
        "<think>\nOkay, we need 12 * 12. Let me see. 12 * 10 is 120.",
        "So far so good.\n\n$$12 \\cdot 2 = 24$$",
        "Wait, is it 120 + 24 = 154? Hmm, 120 + 24 = 144.\n</think>",
        "The product is 144.",
        "The answer is \\boxed{144}.",
    ],
    "marker": [
        "<think>\nOkay, we need 12 * 12. Let me see. 12 * 10 is 120.",
        "So far so good.\n\n$$12 \\cdot 2 = 24$$",
        "Wait, is it 120 + 24 = 154?",
        "Hmm, 120 + 24 = 144.\n</think>",
        "The product is 144.\n\nThe answer is \\boxed{144}.",
    ],
    "sentence": [
        "<think>\nOkay, we need 12 * 12.",
        "Let me see.",
        "12 * 10 is 120.",
        "So far so good.",
        "$$12 \\cdot 2 = 24$$",
        "Wait, is it 120 + 24 = 154?",
        "Hmm, 120 + 24 = 144.\n</think>",
        "The product is 144.",
        "The answer is \\boxed{144}.",
    ],
    "tokens:40": [
        "<think>\nOkay, we need 12 * 12. Let me see. 12 * 10 is 120.\n\nSo far so good.\n\n$$12 \\cdot 2 =",
        "24$$\n\nWait, is it 120 + 24 = 154? Hmm, 120 + 24 = 144.\n</think>",
        "The product is 144.\n\nThe answer is \\boxed{144}.",
    ],
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_a_person_can_check(name: str) -> None:
    assert split_text(TRACE, name) == STEPS[name]
    assert "".join(cut_text(TRACE, name)) == TRACE
    assert searched(TRACE, name) == STEPS[name]


PARTS = ["\n", "\n\n", " ", "<think>", "</think>", "Wait, ", "So ", "a b. ", "x = 1", "$$", "\\[", "\\]", "```\n",
         "3. ", "\\begin{align}", "\\end{align}", "\t", "Step 2", "é", "e.g. "]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.parametrize("name", [*SEGMENTERS, "thinking:3", "tokens:2"])
@given(text=TEXTS)
def test_joining_the_pieces_gives_the_text_back(name: str, text: str) -> None:
    pieces = cut_text(text, name)
    assert "".join(pieces) == text
    assert all(piece.strip() for piece in pieces) or len(pieces) == 1
    assert "".join("".join(split_text(text, name)).split()) == "".join(text.split())
    assert complete_steps(text, name) == split_text(text, name)[: len(complete_steps(text, name))]


@given(st.lists(LINES, max_size=14).map("\n".join))
def test_paragraphs_are_the_steps_of_a_search(text: str) -> None:
    assert split_text(text, "paragraph") == cut_steps(text)


WORDS = ["Wait, no.", "So it is.", "3. x", "a b c. Then d.", "$$x", "y$$", "<think>", "</think>", "```python", "```",
         "Let me see?", "1 + 1 = 2", "Step 2: go", "", ""]  # fmt: skip


@pytest.mark.parametrize("name", [*SEGMENTERS, "thinking:5", "tokens:4"])
@given(lines=st.lists(st.sampled_from(WORDS), max_size=14))
def test_a_search_cuts_as_whole_texts_are_cut(name: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    assert searched(text, name) == split_text(text, name)


def test_code_and_formulas_stay_whole_and_a_stray_mark_ends() -> None:
    text = "a\n\n```python\nx = 1\n\ny = 2\n```\n\nb\n\n\\[\nz\n\n\\]\n\nc"
    assert split_text(text, "thinking") == ["a", "```python\nx = 1\n\ny = 2\n```", "b", "\\[\nz\n\n\\]", "c"]
    stray = "$$ oops\n\n" + "word\n\n" * 2000
    ((start, end),) = blocks(stray)
    assert (start, end) == (0, 2000)
    assert len(split_text(stray, "thinking")) > 1500
    assert split_text(CODE, "thinking")[1].count("\n\n") == 5


def test_roles_and_the_response() -> None:
    steps = STEPS["thinking:16"]
    assert roles_of(steps) == ["thinking"] * 3 + ["response"] * 2
    assert first_response(["a", "b"]) == 0
    assert first_response(["<think>a", "b"]) == 2
    assert first_response(["the prompt began it", "so</think>", "b"]) == 2
    assert response_of(TRACE) == "The product is 144.\n\nThe answer is \\boxed{144}."
    assert response_of("<think>The answer is 4.") == ""
    assert response_of("The answer is 4.") == "The answer is 4."
    assert without_tags("<think>\na</think>") == "a"
    assert without_tags("<think>") == "<think>"


def test_roles_in_a_tree() -> None:
    texts = ["<think>a", "b", "c</think>", "d", "e</think>", "f", "plain"]
    parents = (-1, 0, 1, 2, 1, 4, -1)
    tree = StepTree(0, "Why?", tuple(map(Step, texts)), parents, ())
    assert thinking_nodes(tree) == [True, True, True, False, True, False, False]
    no_opening = StepTree.chain("Why?", ["a", "b</think>", "c"])
    assert thinking_nodes(no_opening) == [True, True, False]


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (["x = 2", "Wait, x = 3", "So 3"], 1),
        (["Actually, no", "fine", "It is 5. But wait, 6?", "7"], 2),
        (["x = 2", "so we wait here", "done"], 0),
        (["<think>Hold on", "a</think>"], 0),
        (["a", "That's not right. It is 4.", "b"], 1),
    ],
)
def test_the_last_revision(steps: list[str], last: int) -> None:
    assert last_revision(steps) == last


def test_names_and_budgets() -> None:
    assert find_segmenter("thinking")[1] == 64
    assert find_segmenter("tokens:7")[1] == 7
    for name, words in (("lines", "Known: paragraph, thinking, marker"), ("tokens:0", "thinking:N, tokens:N"),
                        ("marker:3", "thinking:N, tokens:N")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            find_segmenter(name)
    assert [thinking_tokens(one) for one in ("scored", "context", "dropped", "last-9")] == [
        float("inf"), float("inf"), 0, 9,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="scored, context, dropped, or last-N"):
        thinking_tokens("hidden")


PROGRAM = """\
import sys


@cache
# doubles
def double(
    x,
):
    \'\'\'Return: twice
def of x\'\'\'
    return 2 * x  # see below: (

for line in sys.stdin:
    if line:  # not blank
        print(double(int(line)),
              end="(")
    else:
        total = 1 + \\
            2

# the end
"""
LOGICAL_LINES = [
    "import sys\n",
    "\n\n@cache\n# doubles\ndef double(\n    x,\n):\n    '''Return: twice\ndef of x'''\n",
    "    return 2 * x  # see below: (\n",
    '\nfor line in sys.stdin:\n    if line:  # not blank\n        print(double(int(line)),\n              end="(")\n',
    "    else:\n        total = 1 + \\\n            2\n",
    "\n# the end\n",
]


def test_logical_lines_a_person_can_check() -> None:
    assert cut_text(PROGRAM, "code") == LOGICAL_LINES
    steps = [line.strip("\n") for line in LOGICAL_LINES]
    assert split_text(PROGRAM, "code") == searched(PROGRAM, "code") == steps
    assert Sampling(segmenter="code").stop == "\n"
    fenced = f"It doubles (see\nhere):\n\n```python\n{PROGRAM}```\n\nThat's it."
    assert split_text(fenced, "code") == searched(fenced, "code") == [
        f"It doubles (see\nhere):\n\n```python\n{steps[0]}", *steps[1:5], "# the end\n```\n\nThat's it.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("x = f(1\ny = 2\nreturn y\n", ["x = f(1", "y = 2", "return y"]),
        ("x = f(\nfor i in y:\n    z", ["x = f(", "for i in y:\n    z"]),
        ("x = [i\n  for i in y]\nz", ["x = [i\n  for i in y]", "z"]),
        ("x = '''a\nb\n```\ny\nz", ["x = '''a", "b", "```\ny", "z"]),
        ("x = (1,\ny\nz", ["x = (1,\ny\nz"]),  # may still be closed
        ("x = (1,\n" + "y,\n" * 4000, ["x = (1,", *["y,"] * 4000]),
        ("x = 1)\n'\ny:", ["x = 1)", "'", "y:"]),
        ("\tx\r\n\r\n\ty", ["\tx", "\ty"]),
        ("x = 1 + \\\r\n  2\r\ny = 'a\\\r\nb'  # c \\\r\nz", ["x = 1 + \\\r\n  2", "y = 'a\\\r\nb'  # c \\", "z"]),
        ("x\n\f\nclass A:\n  y", ["x", "class A:\n  y"]),
    ],
)
def test_broken_programs_are_cut_at_each_line(text: str, steps: list[str]) -> None:
    assert split_text(text, "code") == steps


CODE_LINES = ["x = f(", ")", "    y = 1", "if x:", "return", "return x", "for i in x:", "@cache", "# it's (", "'''",
              '"', "```", "```python", "~~~", "a \\", "", "", "</think>", "else", "x[:", "\t",
              "Here is it:"]  # fmt: skip


@given(st.lists(st.sampled_from(CODE_LINES), max_size=14).map("\n".join), st.integers(0, 200))
def test_a_search_cuts_code_as_whole_programs_are_cut(text: str, at: int) -> None:
    steps = split_text(text, "code")
    assert searched(text, "code") == steps
    complete = complete_steps(text[:at], "code")
    assert complete == steps[: len(complete)]


def logical_lines(program: str) -> list[int]:
    """Where steps end, by Python's own tokens."""
    starts = [0, *accumulate(map(len, program.splitlines(keepends=True)))]
    ends: list[int] = []
    line: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        if token.type == tokenize.NEWLINE:
            if line[-1] != ":" and line[0] != "@":
                ends.append(starts[token.start[0]])
            line = []
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            line.append(token.string)
    return ends


def test_real_programs_are_cut_as_python_reads_them(real_data: Path) -> None:
    lines = (real_data / "code_pairs" / "condefects_python.jsonl").read_text(encoding="utf-8").splitlines()
    programs = [record[version] for record in map(json.loads, lines) for version in ("faulty", "correct")]
    num_steps = 0
    for program in programs:
        pieces = cut_text(program, "code")
        assert "".join(pieces) == program
        ends = list(accumulate(map(len, pieces)))
        assert ends[:-1] == [end for end in logical_lines(program) if program[end:].strip()]
        num_steps += len(pieces)
    assert (len(programs), num_steps) == (3858, 110_752)
