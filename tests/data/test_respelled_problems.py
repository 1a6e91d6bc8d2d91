"""How many copies of real problems are missed when somebody typesets them anew, and which other problems are matched.

The numbers are those of docs/guides/data.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from prism_prm.data.same_problem import Exclusions, KnownProblems, Splits, split_by_problem

_BRACED = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_SIGNS = {r"\times": "×", r"\cdot": "·", r"\div": "÷", r"\pi": "π", r"\theta": "θ", r"\infty": "∞", r"\pm": "±"}


def _quotes(text: str) -> str:
    text = re.sub(r"(?<=\w)'(?=\w)", "’", text)
    return re.sub(r'"([^"]*)"', r"“\1”", text).replace("``", "“").replace("''", "”")


def _signs(text: str) -> str:
    return re.sub(r"\\[a-z]+", lambda command: _SIGNS.get(command[0], command[0]), text)


def _powers(text: str) -> str:
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    return re.sub(r"\^(?:\{(\d+)\}|(\d))", lambda power: (power[1] or power[2]).translate(digits), text)


def _slashes(text: str) -> str:
    def slash(fraction: re.Match[str]) -> str:
        over, under = (f"({part})" if re.search(r"[-+ ]", part) else part for part in fraction.groups())
        return f"{over}/{under}"

    text = re.sub(r"(?<=\d)\s*(?=\\[dt]?frac)", " ", text)  # a mixed number
    return re.sub(rf"\\[dt]?frac{_BRACED}{_BRACED}", slash, text)


def _roots(text: str) -> str:
    def root(found: re.Match[str]) -> str:
        return f"√{found[1]}" if re.fullmatch(r"\w+", found[1]) else f"√({found[1]})"

    return re.sub(rf"\\sqrt{_BRACED}", root, text)


def _zero_width(text: str) -> str:
    return text.replace(" ", " \u200b").replace("=", "\u2060=")


def _plain_text(text: str) -> str:
    return _signs(_powers(_roots(_slashes(text)))).replace("$", "")


RESPELLINGS: dict[str, Callable[[str], str]] = {
    "curly quotes": _quotes,
    "× for \\times": _signs,
    "x² for x^2": _powers,
    "a/b for \\frac": _slashes,
    "√ for \\sqrt": _roots,
    "zero-width spaces": _zero_width,
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "formulas as plain text": _plain_text,
    "`Problem:` before it": lambda text: f"Problem: {text}",
    "`**Question 7.**` before it": lambda text: f"**Question 7.** {text}",
    "an instruction behind it": lambda text: f"{text}\nPut your final answer within \\boxed{{}}.",
}


def problems_in(file: Path) -> list[str]:
    """The distinct problems of a file."""
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    found = (record.get("problem") or record["question"] for record in records)
    return list(dict.fromkeys(one["problem"] if isinstance(one, dict) else one for one in found))


def misses(problems: list[str], respell: Callable[[str], str]) -> tuple[int, int, int]:
    """How many problems another spelling changes; how many of these are missed, and land in the other half."""
    changed = [(problem, other) for problem in problems if (other := respell(problem)) != problem]
    exclusions, splits = Exclusions(), split_by_problem(Splits({"a": 0.5, "b": 0.5}))
    for problem, _ in changed:
        exclusions.add(problem, "benchmark")
    halves = {problem: splits(problem) for problem, _ in changed}
    missed = sum(not exclusions.match(other) for _, other in changed)
    return len(changed), missed, sum(splits(other) != halves[problem] for problem, other in changed)


def test_copies_that_are_missed(real_data: Path) -> None:
    """Only problems of fewer than 13 words with other words around them."""
    sizes = {"math500/test": 500, "prm800k/phase1_train": 900, "gsm8k/test": 1319}
    numbered, instructed = "`**Question 7.**` before it", "an instruction behind it"
    found = {}
    for name, size in sizes.items():
        problems = problems_in(real_data / f"{name}.jsonl")
        assert len(problems) == size
        found[name] = {how: misses(problems, respell) for how, respell in RESPELLINGS.items()}
    assert {how: found["math500/test"][how][0] for how in RESPELLINGS} == {
        "curly quotes": 59, "× for \\times": 38, "x² for x^2": 127, "a/b for \\frac": 94, "√ for \\sqrt": 34,
        "zero-width spaces": 500, "no-break spaces": 500, "formulas as plain text": 406, "`Problem:` before it": 500,
        numbered: 500, instructed: 500,
    }  # fmt: skip
    assert {name: counts.pop(instructed) for name, counts in found.items()} == {
        "math500/test": (500, 27, 14), "prm800k/phase1_train": (900, 54, 26), "gsm8k/test": (1319, 0, 0),
    }  # fmt: skip
    assert {name: counts.pop(numbered) for name, counts in found.items()} == {
        "math500/test": (500, 27, 15), "prm800k/phase1_train": (900, 54, 31), "gsm8k/test": (1319, 0, 0),
    }  # fmt: skip
    missed = {(name, how) for name, counts in found.items() for how, (_, *lost) in counts.items() if any(lost)}
    assert missed == set()


def test_other_problems_that_are_matched(real_data: Path) -> None:
    """Nearly all of them are variants of one problem, with other numbers or another question."""
    names = ("math500/test", "prm800k/phase1_train", "gsm8k/test", "gsm8k/train")
    known = KnownProblems[str]()
    found: Counter[tuple[str, str, str]] = Counter()
    for name in names:
        for problem in problems_in(real_data / f"{name}.jsonl"):
            if (match := known.find(problem)) is not None:
                found[(match[1], match[0], name)] += 1
            known.add(problem, name)
    assert found == {
        ("ngram_overlap", "math500/test", "prm800k/phase1_train"): 5,
        ("ngram_overlap", "prm800k/phase1_train", "prm800k/phase1_train"): 4,
        ("ngram_overlap", "gsm8k/test", "gsm8k/test"): 1,
        ("ngram_overlap", "gsm8k/test", "gsm8k/train"): 2,
        ("ngram_overlap", "gsm8k/train", "gsm8k/train"): 17,
    }
