"""Plain solutions: a problem and one text, which `split_steps` cuts into steps (only with `--split-steps`).

A text is cut where its writer did: at blank lines, "Step i:" and list markers, or sentences. Code fences, displayed
formulas and LaTeX environments are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError

PROBLEM_FIELDS = ("problem", "question", "prompt")
SOLUTION_FIELDS = ("solution", "response", "completion", "answer")
POOL_FIELDS = ("solutions", "samples", "completions", "responses", "generations", "outputs")
"""Names for a list of solutions: a record with one is of a pool."""
POOL = "a pool: `{}` lists several solutions. `prism rerank` reads it, and scores it with --prm."

_BLOCK = re.compile(
    r"""
      (?P<fence>^[ \t]*(?P<ticks>`{3,}(?!`)|~{3,}(?!~))[^\n]*\n.*?(?:^[ \t]*(?P=ticks)[^\n]*$|\Z))
    | \\begin\{(?P<name>[A-Za-z]+\*?)\}.*?(?:\\end\{(?P=name)\}|\Z)
    | \[asy\].*?(?:\[/asy\]|\Z)
    | \$\$.*?(?:\$\$|\Z)
    | \\\[.*?(?:\\\]|\Z)
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""What must stay whole. A block that is never closed runs to the end."""

_INLINE = re.compile(r"\\\(|(?<![\\$])\$(?!\$)[^$\n]+\$")
r"""Formulas in a line, in which a full stop ends nothing; of `\(…\)` only the beginning."""

_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_MARKER = re.compile(r"\n(?=[ \t]*(?:\*\*|\#+[ ]*)?(?:Step[ ]*\d+\b|\d{1,3}[.)][ \t]|[-*•][ \t]))", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)\s+(?=[A-Z\\$(])")

_CUTS = (_BLANK_LINE, _MARKER)
"""Every place where one of these matches is a border between steps."""


class PlainSolution(msgspec.Struct):
    """Several datasets' names for the same two things."""

    problem: str | None = None
    question: str | None = None
    prompt: str | None = None
    solution: str | None = None
    response: str | None = None
    completion: str | None = None
    answer: str | int | float | None = None
    id: str | int = ""
    solutions: Any = None
    samples: Any = None
    completions: Any = None
    responses: Any = None
    generations: Any = None
    outputs: Any = None


KEYS = tuple(frozenset({problem, solution}) for solution in SOLUTION_FIELDS for problem in PROBLEM_FIELDS)


def read_solution(record: PlainSolution, options: ReadOptions) -> list[Draft]:
    """The record as one solution, unlabelled unless its user trusts it."""
    for field in POOL_FIELDS:
        if isinstance(getattr(record, field), list):
            refuse_pool(field)
    problem = next((value for field in PROBLEM_FIELDS if (value := getattr(record, field))), "")
    found = [(field, value) for field in SOLUTION_FIELDS if (value := getattr(record, field))]
    if not found or not isinstance(found[0][1], str):
        raise DataError(f"no solution text in any of the fields {', '.join(SOLUTION_FIELDS)}", reason="empty-text")
    field, text = found[0]
    texts = split_steps(text)
    require_texts(problem, texts)
    labels = [1.0 if options.trust_solutions else None] * len(texts)
    # The field `answer` is the solution itself in some datasets, and the reference answer beside one in others.
    answer = None if field == "answer" or record.answer is None else str(record.answer)
    return [Draft.chain(problem, texts, labels, name=str(record.id), answer=answer, ended=True)]


def refuse_pool(field: str) -> NoReturn:
    """A record with several solutions is not one solution; its `answer` is the reference, not a text to score."""
    raise DataError(f"this is {POOL.format(field)}", reason="wrong-format")


def split_steps(text: str) -> list[str]:
    """The steps of a solution, without surrounding white space; nothing else is lost.

    Cuts at blank lines and markers ("Step 2:", "3.", "-"). If there are none, each line is a step, and a text of one "
    "line is cut into sentences.

    Args:
        text: a whole solution.

    Example:
        >>> split_steps("First we add.\\n\\n1 + 2 = 3")
        ['First we add.', '1 + 2 = 3']
    """
    kept = [match.span() for match in _BLOCK.finditer(text)]
    for patterns in (_CUTS, (re.compile(r"\n"),)):
        steps = _cut(text, [m.span() for pattern in patterns for m in pattern.finditer(text)], kept)
        if len(steps) > 1:
            return steps
    return _cut(text, [match.span() for match in _SENTENCE.finditer(text)], [*kept, *_inline_formulas(text)])


def _inline_formulas(text: str) -> Iterator[tuple[int, int]]:
    """Where formulas in a line stand."""
    at, close, line_end = 0, -1, -1
    while found := _INLINE.search(text, at):
        start, at = found.span()
        if found.group() != "\\(":
            yield start, at
            continue
        # Each end is looked for once, not once for every `\(` before it: there may be thousands, never closed.
        close = close if close >= at else _find("\\)", text, at)
        line_end = line_end if line_end >= at else _find("\n", text, at)
        if close < line_end:
            at = close + 2
            yield start, at


def _find(what: str, text: str, at: int) -> int:
    """Where it occurs next; the text's end where it does not."""
    found = text.find(what, at)
    return len(text) if found < 0 else found


def _cut(text: str, borders: list[tuple[int, int]], kept: list[tuple[int, int]]) -> list[str]:
    """The pieces between those borders that do not lie within a kept block."""
    whole = bytearray(len(text))  # per character, whether it stands in a kept block
    for first, last in kept:
        whole[first:last] = bytes([1]) * (last - first)
    steps: list[str] = []
    at = 0
    for start, end in sorted(borders):
        if start < at or whole.find(1, start, end) >= 0:
            continue
        steps.append(text[at:start])
        at = end
    return [step for piece in [*steps, text[at:]] if (step := piece.strip())]
