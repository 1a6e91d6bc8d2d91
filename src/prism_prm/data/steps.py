"""Cut the text of a solution into steps, where its writer did: blank lines, "Step i:" and list markers, or sentences.

Code fences, displayed formulas and LaTeX environments are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def split_steps(text: str) -> list[str]:
    """The steps of a solution, without the white space around them; joined they give the whole text again.

    Blank lines and markers ("Step 2:", "3.", "-") are the borders. Without any of them each line is a step, and a
    text of one line is cut into sentences.

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
