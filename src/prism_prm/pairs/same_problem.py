"""When two problems are the same: for splits by problem, decontamination, and drawing from other problems."""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from prism_prm.data.inputs import find_sources, rows
from prism_prm.data.math_shepherd import FIRST_STEP
from prism_prm.data.reader import decode
from prism_prm.errors import ConfigError, DataError

_SPELLINGS = [
    (re.compile(pattern.replace(r"\E", "(?![A-Za-z])")), spelling)
    for pattern, spelling in (
        (r"\\\\|\\[()\[\]]|\\q?quad\E|\\displaystyle\E|~|\\n\E|\\n(?=[A-Z])", " "),  # also a line break as \ and n
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)\E\s*\.?", " "),
        (r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it)|mbox|operatorname)\E", " "),
        (r"\\[dtc]?(frac|binom)\E(?:\s*(\d)\s*(\d))?", r"\\\1 \2 \3 "),
        (r"\\log_(\d)(?=\d)", r"\\log_\1 "),
        (r"\\leq?(?:slant)?\E|<=", "≤"),
        (r"\\geq?(?:slant)?\E|>=", "≥"),
        (r"\\neq?\E", "≠"),
        (r"\\[lc]?dots[bcmio]?\E|\.\.\.", "…"),
        (r"\^\s*(?:\{\s*)?\\circ\E", "°"),
        (r"[−–]", "-"),
        (r"(?<![\w.])\.(?=\d)", "0."),
    )
]
"""Ways to typeset one thing, and the one that they are read as; \\E stands for the end of a command's name."""
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:,\s*|\{,\}|,\\!|\\,)\d{3})+(?!\d)")
_TOKEN = re.compile(r"\w+(?:(?<=\d)\.\d\w*)*|[^\w\s]")
_IGNORED = frozenset("$\\{}.,;:!?'\"")
"""Punctuation and the mark-up of formulas differ between copies of one problem; signs of operations do not."""
_NOT_BETWEEN_NUMBERS = re.compile(r"(?<!\d) | (?!\d)")


def problem_words(problem: str) -> list[str]:
    """The words, numbers and signs that make up a problem, without differences of case, spacing and mark-up."""
    text = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number.group()), problem)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return [token for token in _TOKEN.findall(text.lower()) if token not in _IGNORED]


def normalise_problem(problem: str) -> str:
    """Equal for problems that are the same; spaces, which copies of formulas disagree on, stay between numbers only."""
    return _NOT_BETWEEN_NUMBERS.sub("", " ".join(problem_words(problem)))


@dataclass(frozen=True, slots=True)
class Splits:
    """Shares by name. A problem's split follows from its text and the seed alone, so adding data moves nothing."""

    shares: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        bad = [f"{name}={share:g}" for name, share in self.shares.items() if not 0 < share <= 1 or not name]
        if bad or not math.isclose(sum(self.shares.values()), 1.0, abs_tol=1e-6):
            raise ConfigError(f"split shares must be named, positive and add to 1; found {dict(self.shares)}")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Splits:
        """From "train=0.9,test=0.1"."""
        shares: dict[str, float] = {}
        for part in text.split(","):
            name, _, share = part.strip().partition("=")
            try:
                shares[name] = float(share)
            except ValueError:
                raise ConfigError(f"split {part!r} is not NAME=SHARE, as in train=0.9,test=0.1") from None
        if len(shares) != len(text.split(",")):
            raise ConfigError(f"split {text!r} names a part twice")
        try:
            return cls(shares, seed)
        except ConfigError as error:
            raise ConfigError(f"split {text!r}: {error}") from None

    def split_of(self, problem: str) -> str:
        """The split of a problem."""
        digest = hashlib.blake2b(f"{self.seed}\0{normalise_problem(problem)}".encode(), digest_size=8).digest()
        names, ends = list(self.shares), list(accumulate(self.shares.values()))
        place = int.from_bytes(digest) / 2**64
        return names[min(bisect_right(ends, place), len(names) - 1)]


OVERLAP = 0.3
"""Two problems are one if this share of the shorter one's runs of words is common to both.

A single run would not do: phrases such as "Enter your answer in the form …, where A, B, C, D are integers" are long.
"""

Overlap = Literal["same_problem", "ngram_overlap"]


@dataclass(frozen=True, slots=True, eq=False)
class _Excluded:
    """A problem that must not be learned from; two are the same only if they are one object."""

    file: str
    num_ngrams: int


@dataclass(slots=True)
class Exclusions:
    """Problems that must not be learned from, such as those of a benchmark."""

    ngram: int = 13
    """The length in words of the runs that are compared; 0 compares only whole problems."""
    counts: dict[str, Counter[Overlap]] = field(default_factory=dict)
    """By file, how many trees were left out and why."""
    _problems: dict[str, _Excluded] = field(default_factory=dict)
    _by_ngram: dict[int, list[_Excluded]] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Iterable[str | Path], ngram: int = 13) -> Exclusions:
        """The problems in some files, of any format that is read here or with a field that names a problem."""
        exclusions = cls(ngram)
        for source in find_sources(files):
            exclusions.counts[source.name] = Counter()
            for row in rows(source):
                try:
                    problems = list(_problems_in(decode(row, dict[str, Any])))
                except DataError as error:
                    raise DataError(f"{row.where}: {error}", reason=error.reason) from error
                if not problems:
                    raise DataError(
                        f"{row.where}: no problem in any of the fields {', '.join(_FIELDS)}", reason="missing-field"
                    )
                for problem in problems:
                    exclusions.add(problem, source.name)
        return exclusions

    def add(self, problem: str, file: str) -> None:
        """Exclude a problem; the first file that has it is named."""
        key = normalise_problem(problem)
        if key in self._problems:
            return
        ngrams = self._ngrams_of(problem)
        excluded = self._problems[key] = _Excluded(file, len(ngrams))
        for ngram in ngrams:
            self._by_ngram.setdefault(ngram, []).append(excluded)

    def match(self, problem: str) -> bool:
        """Whether a problem is excluded; counts it by file and reason if so."""
        reason: Overlap = "same_problem"
        excluded = self._problems.get(normalise_problem(problem))
        if excluded is None:
            reason = "ngram_overlap"
            excluded = self._overlapping(self._ngrams_of(problem))
        if excluded is None:
            return False
        self.counts.setdefault(excluded.file, Counter())[reason] += 1
        return True

    def _overlapping(self, ngrams: set[int]) -> _Excluded | None:
        """An excluded problem that shares enough of these runs of words, or None."""
        shared = Counter(excluded for ngram in ngrams for excluded in self._by_ngram.get(ngram, ()))
        enough = (
            excluded for excluded, count in shared.items() if count >= OVERLAP * min(len(ngrams), excluded.num_ngrams)
        )
        return next(enough, None)

    def _ngrams_of(self, problem: str) -> set[int]:
        words, size = problem_words(problem), self.ngram
        return {hash(tuple(words[i : i + size])) for i in range(len(words) - size + 1)} if size else set()


_FIELDS = (
    "problem", "question", "questions", "prompt", "original_question", "modified_question", "question_content", "input",
)  # fmt: skip


def _problems_in(record: Mapping[str, Any]) -> Iterator[str]:
    """Every text in a record that is a problem."""
    for name in _FIELDS:
        value = record.get(name)
        if isinstance(value, dict):  # PRM800K keeps the problem in {"question": {"problem": …}}
            value = value.get("problem")
        if isinstance(value, str) and value.strip():
            yield FIRST_STEP.split(value, maxsplit=1)[0] if name == "input" else value
