"""Extract the final answer, or the program, from the text of a solution, and report the method used.

Every method reads the text once, so a megabyte takes milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prism_prm.segments import response_of

TAIL = 4_000
"""Phrases and bare numbers are searched only in this many last characters, where a final answer is."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer and how it was found."""

    answer: str | None
    method: str
    """A key of EXTRACTORS, "fences" for a program, "given" if the pool has the answer, or "none"."""


_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(\{)?|\\.|[{}]", re.DOTALL)
_VISIBLE = re.compile(r"\S")
_BARE = re.compile(r"[^\s$.,;{}\\]+")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{…} that is closed and not empty; `\boxed 5` counts too."""
    span: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # for each open brace, the start of a box's content, or None
    for match in _BOX.finditer(text):
        token = match.group()
        if match.group(1):
            open_braces.append(match.end())
        elif token == "{":
            open_braces.append(None)
        elif token == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and _VISIBLE.search(text, start, match.start()):
                span = start, match.start()
        elif len(token) > 2 and (bare := _BARE.match(text, match.end())):
            span = bare.span()
    # Copy only the last one: there may be thousands of nested boxes.
    return None if span is None else text[slice(*span)].strip()


def after_hashes(text: str) -> str | None:
    """Return what follows the last `####` on its line, as in GSM8K."""
    _, hashes, after = text.rpartition("####")
    return (_strip_marks(after.split("\n", 1)[0]) or None) if hashes else None


_PHRASE = re.compile(
    r"(?:final\s+answer|answer|solution)\s*(?:\*\*)?\s*(?:is\s*:?|:|=)\s*(?:\*\*)?(?:\s*(?:that|equal to)\b)?", re.I
)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"\.(?:\s|$)|\n\s*\n|\n(?=\S)")
_NUMBER = re.compile(
    # Not an index, an exponent, a denominator or a part of a name: x_2, x^2, x/2, \sqrt{2}, F2 …
    r"(?:(?<![\w.)\]}^_/{])[-−])?(?<![\w^_/.{])"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*\d+(?:\.\d+)?)?(?:\s*\\?%)?"
    # … nor a factor: 4S, 3\sqrt{2}; but 12th and 5cm are numbers.
    r"(?![\d.]*[A-Za-z](?![A-Za-z])|[\d.]*\\(?:sqrt|pi|frac))"
    r"|-?\\[dt]?frac\{-?\d+\}\{-?\d+\}"
)
_MAX_PLAIN_WORDS = 3


def after_phrase(text: str) -> str | None:
    """Return what follows the last "answer is" or "answer:": a formula, else a few words, else the first number."""
    tail = text[-TAIL:]
    phrases = list(_PHRASE.finditer(tail))
    if not phrases:
        return None
    clause = tail[phrases[-1].end() :].lstrip()
    if formula := _MATH.match(clause):
        return _strip_marks(next(group for group in formula.groups() if group is not None)) or None
    clause = _strip_marks(_SENTENCE_END.split(clause, maxsplit=1)[0])
    if len(clause.split()) <= _MAX_PLAIN_WORDS and "$" not in clause:
        return clause or None
    if formula := _MATH.search(clause):
        return _strip_marks(next(group for group in formula.groups() if group is not None)) or None
    number = _NUMBER.search(clause)
    return number.group() if number else None


def last_number(text: str) -> str | None:
    """Guess the last number near the end, for solutions that state no answer; but none before a bare `####`."""
    numbers = list(_NUMBER.finditer(text.rpartition("####")[-1][-TAIL:]))
    return numbers[-1].group() if numbers else None


def _strip_marks(answer: str) -> str:
    """Strip surrounding punctuation and Markdown."""
    return answer.strip().strip("*").strip().rstrip(".,;:").strip()


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "####": after_hashes,
    "answer is": after_phrase,
    "last number": last_number,
}
"""The methods, most reliable first."""


def extract_answer(text: str, methods: Iterable[str] = tuple(EXTRACTORS)) -> Extraction:
    """Extract the final answer from a solution: from its response, if it thinks first.

    Args:
        text: the whole solution.
        methods: the methods to try in order; the first that finds an answer is used.

    Example:
        >>> extract_answer("So it is \\\\boxed{12}.").answer
        '12'
    """
    text = response_of(text)
    for method in methods:
        if (answer := EXTRACTORS[method](text)) is not None:
            return Extraction(answer, method)
    return Extraction(None, "none")


def find_program(text: str) -> Extraction:
    """Return what is between the last two lines that start with three backticks, as LiveCodeBench does.

    With fewer than two such lines there is no program, for example if the solution was cut inside its program. Only the
    response counts, if the solution thinks first.
    """
    lines = response_of(text).split("\n")
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""
    return Extraction(program, "fences") if program.strip() else Extraction(None, "none")
