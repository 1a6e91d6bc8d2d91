"""Find the final answer in the text of a solution, or its program, and say by which method it was found.

Every method reads the text once, so a megabyte of it costs milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TAIL = 4_000
"""Phrases and bare numbers are searched in this many last characters: a final answer is at the end."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer and where it came from."""

    answer: str | None
    method: str
    """A key of EXTRACTORS, "fences" for a program, "given" where the pool itself holds the answer, or "none"."""


_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(\{)?|\\.|[{}]", re.DOTALL)
_VISIBLE = re.compile(r"\S")
_BARE = re.compile(r"[^\s$.,;{}\\]+")


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…} that is closed and not empty; `\boxed 5` counts too."""
    found: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # for each open brace, where the content of a box starts, or None
    for match in _BOX.finditer(text):
        token = match.group()
        if match.group(1):
            open_braces.append(match.end())
        elif token == "{":
            open_braces.append(None)
        elif token == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and _VISIBLE.search(text, start, match.start()):
                found = start, match.start()
        elif len(token) > 2 and (bare := _BARE.match(text, match.end())):
            found = bare.span()
    # Only the last one is copied: boxes may be nested by the thousand.
    return None if found is None else text[slice(*found)].strip()


def after_hashes(text: str) -> str | None:
    """What follows the last `####` on its line, as in GSM8K."""
    _, mark, after = text.rpartition("####")
    return (_tidy(after.split("\n", 1)[0]) or None) if mark else None


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
    """What follows the last "answer is" or "answer:": its formula, else its few words, else its first number."""
    tail = text[-TAIL:]
    phrases = list(_PHRASE.finditer(tail))
    if not phrases:
        return None
    clause = tail[phrases[-1].end() :].lstrip()
    if formula := _MATH.match(clause):
        return _tidy(next(group for group in formula.groups() if group is not None)) or None
    clause = _tidy(_SENTENCE_END.split(clause, maxsplit=1)[0])
    if len(clause.split()) <= _MAX_PLAIN_WORDS and "$" not in clause:
        return clause or None
    if formula := _MATH.search(clause):
        return _tidy(next(group for group in formula.groups() if group is not None)) or None
    number = _NUMBER.search(clause)
    return number.group() if number else None


def last_number(text: str) -> str | None:
    """The last number near the end: a guess, for solutions that state no answer; not one before a bare `####`."""
    numbers = list(_NUMBER.finditer(text.rpartition("####")[-1][-TAIL:]))
    return numbers[-1].group() if numbers else None


def _tidy(answer: str) -> str:
    """Without the marks of a sentence or of Markdown around it."""
    return answer.strip().strip("*").strip().rstrip(".,;:").strip()


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "####": after_hashes,
    "answer is": after_phrase,
    "last number": last_number,
}
"""The methods, most reliable first; the last is a last resort."""


def extract_answer(text: str, methods: Iterable[str] = tuple(EXTRACTORS)) -> Extraction:
    """The final answer in a solution, and how it was found.

    Args:
        text: a whole solution.
        methods: the ways to find it, most reliable first; the first that finds one is used.

    Example:
        >>> extract_answer("So it is \\\\boxed{12}.").answer
        '12'
    """
    for method in methods:
        if (answer := EXTRACTORS[method](text)) is not None:
            return Extraction(answer, method)
    return Extraction(None, "none")


def find_program(text: str) -> Extraction:
    """What stands between the last two lines that begin with three backticks, as LiveCodeBench has it.

    With fewer than two such lines there is no program: a solution that was cut inside its program has none.
    """
    lines = text.split("\n")
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""
    return Extraction(program, "fences") if program.strip() else Extraction(None, "none")
