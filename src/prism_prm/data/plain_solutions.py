"""Plain solutions: a problem and one text, which `split_steps` cuts into steps (only with `--split-steps`).

A text is cut where its writer did: at blank lines, "Step i:" and list markers, or sentences. Displayed formulas and
LaTeX environments are never cut, and code in a fence only at blank lines (see `steps`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from prism_prm.data.draft import Draft, Format, ReadOptions, require_texts
from prism_prm.errors import DataError
from prism_prm.steps import Span, cut_at, marked, unfinished_code

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

_BLANK_LINE = re.compile(r"\n(?:[ \t]*\n)+")
_MARKER = re.compile(r"\n(?=[ \t]*(?:\*\*|\#+[ ]*)?(?:Step[ ]*\d+\b|\d{1,3}[.)][ \t]|[-*•][ \t]))", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)\s+(?=[A-Z\\$(])")


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


def read_solution(record: PlainSolution, options: ReadOptions) -> list[Draft]:
    """The record as one solution, unlabeled unless its user trusts it."""
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


SOLUTIONS = tuple(
    Format("solutions", PlainSolution, frozenset({problem, solution}), read_solution)
    for solution in SOLUTION_FIELDS
    for problem in PROBLEM_FIELDS
)
"""Tried after all other formats, and only when the user asks for splitting into steps."""


def refuse_pool(field: str) -> NoReturn:
    """A record with several solutions is not one solution; its `answer` is the reference, not a text to score."""
    raise DataError(f"this is {POOL.format(field)}", reason="wrong-format")


def split_steps(text: str) -> list[str]:
    """The steps of a solution, without surrounding white space; nothing else is lost.

    Cuts at blank lines and markers ("Step 2:", "3.", "-"). If there are none, each line is a step, and a text of one
    line is cut into sentences. Code in a fence is cut only at blank lines where its brackets and strings are closed,
    and keeps its indentation.

    Args:
        text: a whole solution.

    Example:
        >>> split_steps("First we add.\\n\\n1 + 2 = 3")
        ['First we add.', '1 + 2 = 3']
    """
    blocks = list(_BLOCK.finditer(text))
    kept = [match.span() for match in blocks]
    formulas = [match.span() for match in blocks if match["fence"] is None]
    outside = marked(text, kept)

    def borders(pattern: re.Pattern[str]) -> list[Span]:
        """Where a pattern matches outside of all blocks."""
        return [span for match in pattern.finditer(text) if outside.find(1, *(span := match.span())) < 0]

    blank_lines = [match.span() for match in _BLANK_LINE.finditer(text)]
    steps = cut_at(text, blank_lines + borders(_MARKER), [*formulas, *unfinished_code(text)])
    if len(steps) == 1:
        steps = cut_at(text, borders(re.compile(r"\n")), [])
    return steps if len(steps) != 1 else cut_at(text, borders(_SENTENCE), _inline_formulas(text))


def _inline_formulas(text: str) -> Iterator[tuple[int, int]]:
    """Where formulas in a line stand."""
    at, close, line_end = 0, -1, -1
    while found := _INLINE.search(text, at):
        start, at = found.span()
        if found.group() != "\\(":
            yield start, at
            continue
        # Each end is looked for once, not once for every `\(` before it: there may be thousands, never closed. The
        # remainder makes -1, for none, the end of the text.
        close = close if close >= at else text.find("\\)", at) % (len(text) + 1)
        line_end = line_end if line_end >= at else text.find("\n", at) % (len(text) + 1)
        if close < line_end:
            at = close + 2
            yield start, at
