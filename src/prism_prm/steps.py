"""Split solutions into steps, with the same rule for whole solutions and for the steps of a search.

In prose a blank line ends a step. In fenced code it does so only where brackets and strings are closed: half an
expression is not a step. Code keeps its indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

STOP = "\n\n"
"""The separator of steps."""
Span = tuple[int, int]

_FENCE = re.compile(
    r"^[ \t]*(?P<ticks>`{3,}(?!`)|~{3,}(?!~))[^\n]*\n(?P<body>.*?)(?:^[ \t]*(?P=ticks)[^\n]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A fenced block of code; an unclosed one runs to the end."""
_TOKEN = re.compile(r"\\(?:\r\n|.)|'''|\"\"\"|['\"#()\[\]{}\n]", re.DOTALL)


def code_blocks(text: str) -> list[Span]:
    """The spans of code between fences."""
    return [match.span("body") for match in _FENCE.finditer(text)]


def unfinished_code(text: str) -> Iterator[Span]:
    """The spans of code that must not be split: the lines from one that opens a bracket or string to its end."""
    for first, last in code_blocks(text):
        begin = -1
        for start, end, opened, _ in code_lines(text, first, last):
            if opened:
                begin = start if begin < 0 else begin
            elif begin >= 0:
                yield begin, end
                begin = -1
        if begin >= 0:
            yield begin, last


def code_lines(text: str, first: int, last: int) -> Iterator[tuple[int, int, str, int]]:
    """(start, end, opened, comment) of each line of code: what is open at its end, a quote, "(" for a bracket, or "",
    and where its comment begins, or its end."""
    depth, quote, comment, start = 0, "", -1, first
    for match in _TOKEN.finditer(text, first, last):
        token = match.group()
        if token == "\n" or (comment >= 0 and token.endswith("\n")):  # a comment cannot be continued
            end = match.end() - 1
            quote = quote if len(quote) == 3 else ""  # a plain string ends with its line
            yield start, end, quote or "(" * bool(depth), end if comment < 0 else comment
            start, comment = match.end(), -1
        elif quote:
            quote = "" if quote in (token, token[0]) else quote
        elif comment < 0:
            comment = match.start() if token == "#" else -1
            quote = token if token[0] in "'\"" else ""
            depth = depth + 1 if token in "([{" else max(0, depth - 1) if token in ")]}" else depth
    yield start, last, quote if len(quote) == 3 else "(" * bool(depth), last if comment < 0 else comment


def ends_step(text: str) -> bool:
    """Whether a step may end at the end of this text, the beginning of a solution."""
    first, last = (code_blocks(text) or [(0, 0)])[-1]
    if last < len(text) or not last:
        return True
    *_, (_, _, opened, _) = code_lines(text, first, last)
    return not opened


def ends_in_code(text: str) -> bool:
    """Whether this text, the beginning of a solution, ends inside of code."""
    blocks = code_blocks(text)
    # A closed block is followed by its fence, so only an open one runs to the end.
    return bool(blocks) and blocks[-1][1] == len(text)


def trimmed(piece: str, *, in_code: bool) -> str:
    """A step without surrounding white space; one that starts inside of code keeps its indentation."""
    if not in_code:
        return piece.strip()
    return re.sub(r"\A\s*\n", "", piece).rstrip()


def cut_steps(text: str, stop: str = STOP) -> list[str]:
    """Split a completion at stop strings, as a search would have written its steps."""
    return [step for step, _ in cut_with_ends(text, stop)]


def cut_with_ends(text: str, stop: str = STOP) -> list[tuple[str, int]]:
    """The same, as (step, index after the step and its stop string)."""
    return _cut(text, [match.span() for match in re.finditer(re.escape(stop), text)], unfinished_code(text))


def cut_at(text: str, borders: Iterable[Span], kept: Iterable[Span]) -> list[str]:
    """Split at the borders that are not within spans to be `kept` whole."""
    return [step for step, _ in _cut(text, borders, kept)]


def _cut(text: str, borders: Iterable[Span], kept: Iterable[Span]) -> list[tuple[str, int]]:
    whole, code = marked(text, kept), marked(text, code_blocks(text))
    found: list[tuple[str, int]] = []
    at = 0
    for start, end in [*sorted(borders), (len(text), len(text))]:
        if start < at or whole.find(1, start, end) >= 0:
            continue
        found.append((trimmed(text[at:start], in_code=at < len(text) and bool(code[at])), end))
        at = end
    return [(step, end) for step, end in found if step.strip()]


def marked(text: str, spans: Iterable[Span]) -> bytearray:
    """For each character, whether it is in one of the spans."""
    marks = bytearray(len(text))
    for first, last in spans:
        marks[first:last] = bytes([1]) * (last - first)
    return marks


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
"""Blocks that must not be split. An unclosed block runs to the end."""

_INLINE = re.compile(r"\\\(|(?<![\\$])\$(?!\$)[^$\n]+\$")
r"""Inline formulas, in which a period does not end a sentence; of `\(…\)` only the opening."""

_BLANK_LINE = re.compile(r"\n(?:[ \t]*\n)+")
_MARKER = re.compile(r"\n(?=[ \t]*(?:\*\*|\#+[ ]*)?(?:Step[ ]*\d+\b|\d{1,3}[.)][ \t]|[-*•][ \t]))", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)\s+(?=[A-Z\\$(])")


def split_steps(text: str) -> list[str]:
    """Split a solution into steps; nothing but surrounding white space is lost.

    Splits at blank lines and markers ("Step 2:", "3.", "-"). If there are none, each line is a step, and a single line
    is split into sentences. Fenced code is split only at blank lines where its brackets and strings are closed, and
    keeps its indentation.

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
    """The spans of inline formulas."""
    at, close, line_end = 0, -1, -1
    while found := _INLINE.search(text, at):
        start, at = found.span()
        if found.group() != "\\(":
            yield start, at
            continue
        # Each end is searched for once, not once for every `\(` before it: there may be thousands, all unclosed. The
        # remainder turns -1 (not found) into the end of the text.
        close = close if close >= at else text.find("\\)", at) % (len(text) + 1)
        line_end = line_end if line_end >= at else text.find("\n", at) % (len(text) + 1)
        if close < line_end:
            at = close + 2
            yield start, at
