"""Decide whether two problems are the same, for splits by problem, decontamination, and negatives of other problems."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import xxhash

from prism_prm.data.formats import FIRST_STEP
from prism_prm.data.inputs import find_sources, read_records
from prism_prm.errors import ConfigError, DataError

_NAMES = {
    "×⋅·∙∗✕": "times", "÷": "div", "±": "pm", "∓": "mp", "√": "sqrt", "∛": "sqrt[3]", "∞": "infty", "∘": "circ",
    "∈": "in", "∉": "notin", "∪": "cup", "∩": "cap", "⊂": "subset", "⊆": "subseteq", "∅": "emptyset", "∖": "setminus",
    "∠": "angle", "△∆": "triangle", "⊥": "perp", "∥‖": "parallel", "≅": "cong", "∼": "sim", "≈": "approx",
    "≡": "equiv", "→": "to", "⇒": "Rightarrow", "∑": "sum", "∏": "prod", "∫": "int", "⌊": "lfloor", "⌋": "rfloor",
    "⌈": "lceil", "⌉": "rceil", "⟨": "langle", "⟩": "rangle", "ℓ": "ell", "≤≦⩽": "le", "≥≧⩾": "ge", "≠": "ne",
    "⋯": "dots", "º˚": "degree",
}  # fmt: skip
"""Signs → the names of their LaTeX commands."""
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu nu xi pi rho sigma tau phi chi psi omega"
_ONE_SIGN = str.maketrans(
    {sign: f"\\{name} " for signs, name in _NAMES.items() for sign in signs}
    | {
        unicodedata.lookup(f"GREEK {case} LETTER {name}"): f"\\{name.replace('lamda', 'lambda')} "
        for name in _GREEK.split()
        for case in ("SMALL", "CAPITAL")
    }
    | dict.fromkeys("‘’‚′´`", "'")
    | dict.fromkeys("“”„″«»", '"')
    | dict.fromkeys("‐‑‒–—―−﹣－", "-")
    | {"⁄": "/"}
)
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]")
_RAISED, _LOWERED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁱⁿ]+"), re.compile("[₀-₉₊₋₍₎ₐₑₒₓₕ-ₜᵢⱼ]+")
_MIXED_NUMBER = re.compile("(?<=\\d)(?=[¼-¾⅐-⅞])")
_LABEL = re.compile(r"\A[\s*_#]*(?:problem|question|exercise|example|q)[\s*_]*[:.][\s*_]*(?=\S)", re.IGNORECASE)
_SPELLINGS = [
    (re.compile(pattern.replace(r"\E", "(?![A-Za-z])")), spelling)
    for pattern, spelling in (
        (r"(?<=[\w)}])\*\*(?=[\w({])", "^"),
        (r"(?<![^\s*])\*+(?=[^\s*])|(?<=[^\s*])\*+(?![^\s*])", " "),  # of *emphasized* words
        (r"\\(?:times|cdot|ast)\E", "*"),
        (r"\\div\E", "/"),
        (r"\\var(epsilon|theta|pi|rho|sigma|phi)\E", r"\\\1"),
        (r"\\\\|\\[()\[\]]|\\q?quad\E|\\displaystyle\E|~|\\n\E|\\n(?=[A-Z])", " "),  # also a line break as \ and n
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)\E\s*\.?", " "),
        (r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|bb|cal|sf)|mbox|operatorname)\E", " "),
        (r"\\[dtc]?(frac|binom)\E", r"\\\1"),
        (r"\\binom\s*(\d)\s*(\d)", r"\\binom \1 \2 "),
        (r"\\log_(\d)(?=\d)", r"\\log_\1 "),
        (r"\\leq?(?:slant)?\E|<=", "≤"),
        (r"\\geq?(?:slant)?\E|>=", "≥"),
        (r"\\neq?\E", "≠"),
        (r"\\[lc]?dots[bcmio]?\E|\.\.\.", "…"),
        (r"\^\s*(?:\{\s*)?\\circ\E|\\degree\E", "°"),
        (r"\^\s*(?:\{\s*)?\\prime\E", "'"),
        (r"-{2,}", "-"),
        (r"(?<![\w.])\.(?=\d)", "0."),
    )
]
"""Patterns of equivalent typesetting → the common spelling; \\E stands for the end of a command's name."""


def _balanced(opening: str, closing: str) -> str:
    """Return a pattern for brackets and their content, with brackets nested up to a depth of eight."""
    other = f"[^{opening}{closing}]"
    inner = f"{other}*+"
    for _ in range(8):
        inner = f"(?:{other}|{opening}{inner}{closing})*+"
    return f"{opening}({inner}){closing}"


_PARENTHESES = _balanced(r"\(", r"\)")
_PART = r"\s*(?:%s|(\\[A-Za-z]+|[^\s{}\\]))" % _balanced(r"\{", r"\}")  # noqa: UP031  braces
_FRACTION = re.compile(rf"\\frac{_PART}{_PART}")
_OVER, _UNDER = re.compile(rf"(?<![\w)}}\]]){_PARENTHESES}(?=\s*/)"), re.compile(rf"(?<=/){_PARENTHESES}(?!\s*[(^])")
_DOUBLED = re.compile(rf"\((?=\(){_PARENTHESES}\)")
_UNDER_A_SIGN = re.compile(rf"(\bsqrt\s*|[_^]){_PARENTHESES}")
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:,\s*|\{,\}|,\\!|\\,)\d{3})+(?!\d)")
_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)*|[^\w\s]|_")
_IGNORED = frozenset("$\\{}.,;:!?'\"#")
"""Punctuation and formula markup, which differ between copies of a problem; operators do not differ."""
_NOT_BETWEEN_NUMBERS = re.compile(r"(?<!\d) | (?!\d)")


@lru_cache(maxsize=2**10)
def problem_words(problem: str) -> tuple[str, ...]:
    """Return the words, numbers and signs of a problem, without differences in case, spacing and typesetting."""
    text = _MIXED_NUMBER.sub(" ", _INVISIBLE.sub("", problem))
    text = _LOWERED.sub(r"_{\g<0>}", _RAISED.sub(r"^{\g<0>}", text)).translate(_ONE_SIGN)
    text = unicodedata.normalize("NFKC", text).translate(_ONE_SIGN)
    text = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number.group()), _LABEL.sub("", text, count=1))
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)

    def slash(match: re.Match[str]) -> str:
        over, under = match[1] or match[2] or "", match[3] or match[4] or ""
        return f" {over.strip()}/{under.strip()} "

    while (replaced := _FRACTION.sub(slash, text)) != text:  # a/b is common to formulas and plain text
        text = replaced
    text = _DOUBLED.sub(r"(\1)", text)
    text = _OVER.sub(r"\1", _UNDER.sub(r"\1", text))
    text = _UNDER_A_SIGN.sub(r"\1 \2 ", text)
    return tuple(token for token in _TOKEN.findall(text.lower()) if token not in _IGNORED)


def normalize_problem(problem: str) -> str:
    """Normalize a problem, so that equal problems become equal strings; spaces stay only between numbers."""
    return _NOT_BETWEEN_NUMBERS.sub("", " ".join(problem_words(problem)))


NGRAM = 13
"""The default length of compared n-grams, in words."""
OVERLAP = 0.3
"""Two problems are the same if they share at least this part of the shorter one's n-grams.

A single n-gram is not enough: some phrases are long, such as "Enter your answer in the form …, where A, B, C, D are
integers".
"""
MAX_NGRAMS = 24
"""The maximum number of n-grams indexed per problem, among those that are new; this bounds memory."""
COMMON = 32
"""An n-gram that this many problems share with earlier ones is an instruction, and does not count."""

Overlap = Literal["same_problem", "ngram_overlap"]
T = TypeVar("T")


class KnownProblems(Generic[T]):
    """Maps problems to values, however they are typeset."""

    def __init__(self, ngram: int = NGRAM) -> None:
        self.ngram = ngram
        """The length of compared n-grams, in words; 0 compares only whole problems."""
        self._values: dict[str, T] = {}
        self._by_ngram: dict[int, str] = {}
        self._sharing: Counter[int] = Counter()

    def add(self, problem: str, value: T) -> None:
        """Add a problem; a known problem keeps its value."""
        key = normalize_problem(problem)
        if key not in self._values:
            self._values[key] = value
            ngrams = self._ngrams(problem)
            new = {ngram for ngram in ngrams if ngram not in self._by_ngram}
            self._sharing.update(ngrams - new)
            self._by_ngram |= dict.fromkeys(sorted(new)[:MAX_NGRAMS], problem)

    def find(self, problem: str) -> tuple[T, Overlap] | None:
        """Return the value of the same problem, or else of the one with the largest overlap, if that is enough."""
        if (key := normalize_problem(problem)) in self._values:
            return self._values[key], "same_problem"
        ngrams = self._ngrams(problem)
        overlaps: dict[str, float] = {}
        for ngram in sorted(ngrams):
            if (other := self._by_ngram.get(ngram)) and other not in overlaps:
                others = self._ngrams(other)
                overlaps[other] = len(ngrams & others) / (min(len(ngrams), len(others)) or 1)
        nearest = max(overlaps, key=overlaps.__getitem__, default=None)
        if nearest is None or overlaps[nearest] < OVERLAP:
            return None
        return self._values[normalize_problem(nearest)], "ngram_overlap"

    def _ngrams(self, problem: str) -> set[int]:
        """Return the hashes of a problem's n-grams, without common ones."""
        words, size = problem_words(problem), self.ngram
        starts = range(len(words) - size + 1) if size else ()
        texts = (" ".join(words[i : i + size]) for i in starts)
        ngrams = {xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts}
        return {ngram for ngram in ngrams if self._sharing[ngram] < COMMON}


@dataclass(frozen=True, slots=True)
class Splits:
    """Split shares by name."""

    shares: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        bad = [f"{name}={share:g}" for name, share in self.shares.items() if not 0 < share <= 1 or not name]
        if bad or not math.isclose(sum(self.shares.values()), 1.0, abs_tol=1e-6):
            raise ConfigError(f"split shares must be named, positive and add to 1; found {dict(self.shares)}")

    def draw(self, problem: str) -> str:
        """Draw the split of a problem from its text and the seed."""
        digest = hashlib.blake2b(f"{self.seed}\0{normalize_problem(problem)}".encode(), digest_size=8).digest()
        names, ends = list(self.shares), list(accumulate(self.shares.values()))
        uniform = int.from_bytes(digest) / 2**64
        return names[min(bisect_right(ends, uniform), len(names) - 1)]


def split_by_problem(splits: Splits) -> Callable[[str], str]:
    """Return a function from problem to split. The first of equal problems decides, so more data moves nothing."""
    known = KnownProblems[str]()

    def split_of(problem: str) -> str:
        match = known.find(problem)
        split = match[0] if match else splits.draw(problem)
        known.add(problem, split)
        return split

    return split_of


class Exclusions(KnownProblems[str]):
    """Problems to leave out of training, such as those of a benchmark, each with the first file that has it."""

    def __init__(self, ngram: int = NGRAM) -> None:
        super().__init__(ngram)
        self.counts: dict[str, Counter[Overlap]] = {}
        """The number of excluded trees, by file and reason."""

    @classmethod
    def read(cls, files: Iterable[str | Path], ngram: int = NGRAM) -> Exclusions:
        """Read the problems of files, in any known format or with a field that holds a problem."""
        exclusions = cls(ngram)
        for source in find_sources(files):
            exclusions.counts[source.name] = Counter()
            for _, problems in read_records(source.name, _problems_in):
                for problem in problems:
                    exclusions.add(problem, source.name)
        return exclusions

    def match(self, problem: str) -> bool:
        """Whether a problem is excluded; counts it by file and reason if so."""
        overlap = self.find(problem)
        if overlap is not None:
            file, reason = overlap
            self.counts.setdefault(file, Counter())[reason] += 1
        return overlap is not None


_FIELDS = (
    "problem", "question", "questions", "prompt", "original_question", "modified_question", "question_content", "input",
    "statement",
)  # fmt: skip
_PROGRAMS = ("buggy", "faulty")
"""Only a bug fix may name its problem by `task`; elsewhere that is often a kind of problem."""


def _problems_in(record: Mapping[str, Any]) -> list[str]:
    """Return every field of a record that is a problem."""
    problems = []
    names = (*_FIELDS, "task") if any(name in record for name in _PROGRAMS) else _FIELDS
    for name in names:
        value = record.get(name)
        if name == "task" and isinstance(value, int):
            value = str(value)
        if isinstance(value, dict):  # PRM800K keeps the problem in {"question": {"problem": …}}
            value = value.get("problem")
        if isinstance(value, str) and value.strip():
            problems.append(FIRST_STEP.split(value, maxsplit=1)[0] if name == "input" else value)
    if not problems:
        raise DataError(f"no problem in any of the fields {', '.join(_FIELDS)}", reason="missing-field")
    return problems
