"""What a critic is asked, what it wrote, and how its verdict is read: total functions that never raise and never guess.

A reading is one row of values per step (P of each output; NaN if a step was not judged), or what is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import msgspec

from prism_prm.backends.critic_format import CriticFormat, FormatLabels

Turn = tuple[str, str]
"""(role, content)."""
Missing = Literal[
    "no-verdict", "two-verdicts", "bad-json", "wrong-length", "out-of-range", "refusal", "cut-off", "empty", "too-long"
]
"""Why a reply has no usable verdict."""
Rows = tuple[tuple[float, ...], ...]
"""One row per step, one probability per output."""
_BOXED = re.compile(r"\\boxed(?![A-Za-z])\s*")
_MARKUP = re.compile(r"\\(?:text|textbf|textit|texttt|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_INDEX = re.compile(r"[-\u2212\u2013]?\d{1,6}", re.ASCII)
_BRACE = re.compile(r"[{}]")
_COMMENT = re.compile(r"(?://|#).*")
_OPENING = re.compile(r"\s*[\W_]*")
"""What may stand before the first word of an answer: spaces, quotes, markup."""
LEAST_SHARE = 0.05
"""The probability that both labels together need where a verdict is read, unless one of them was written there."""
LONGEST_BOX = 200
"""Characters; a verdict has far fewer."""
SEVERAL = "several verdicts, the last counts"
MOST_BRACES = 10_000
"""Braces that are looked at in one reply; formulas have many."""


class TokenChoice(msgspec.Struct, frozen=True, array_like=True):
    """A token as it was written, and the likeliest ones in its place with their log-probabilities."""

    token: str
    top: tuple[tuple[str, float], ...]


class Reply(msgspec.Struct, frozen=True):
    """One answer of a model."""

    text: str
    reason: Literal["stop", "length", "content_filter", "too-long"]
    """Why it ends; "too-long": the server did not take the question."""
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    """Whether the numbers of tokens are guessed from the length of the texts, because the server gives none."""
    refused: bool = False
    stopped_by: str | None = None
    """The stop string, if the server names it."""
    tokens: tuple[TokenChoice, ...] | None = None
    """Log-probabilities; None if the server gives none."""
    seconds: float = 0.0

    @property
    def has_no_text(self) -> bool:
        """Whether there is nothing to continue or to read."""
        return self.refused or self.reason in ("content_filter", "too-long")

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class CriticQuestion:
    """One request: the turns so far, and how the critic's own turn begins."""

    turns: tuple[Turn, ...]
    begun: str
    """The critic's turn so far, to be continued; "" begins a new one."""
    opening: str
    """What must stand before it at the head of the turn."""
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    stops: tuple[str, ...]
    log_probabilities: bool
    draw: str
    """Which of several answers to the same question: `vote.redraw`."""

    @property
    def seed(self) -> int:
        """A seed of 31 bits, as servers take them."""
        return int.from_bytes(hashlib.blake2b(repr(asdict(self)).encode("utf-8", "surrogatepass")).digest()[:4]) >> 1

    def key(self, format: str, model: str) -> str:
        """What a reply is kept under: the format, the model, and everything that is asked."""
        said = json.dumps([format, model, asdict(self)], sort_keys=True)
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says: one row per step, one value per output."""

    rows: Rows
    by_log_probability: bool = False
    notes: tuple[str, ...] = ()
    """What is odd about it without making it useless, e.g. several verdicts of which the last counts."""


def read_reply(reply: Reply, format: CriticFormat, num_steps: int) -> Reading | Missing:
    """The verdict of a reply (of its last part); `num_steps` counts for formats that judge whole solutions."""
    if reply.has_no_text:
        return "too-long" if reply.reason == "too-long" else "refusal"
    is_boxed = format.reads == "index" or (format.reads == "label" and format.label.at == "boxed")
    if reply.reason == "length" and is_boxed:
        return "cut-off"  # a box that it has is not its last word
    if format.reads == "label":
        found = _read_label(reply.text, format.label, reply.tokens)
    elif format.reads == "index":
        found = _read_index(reply.text, num_steps)
    else:
        found = _read_scores(reply.text, [format.scores[output] for output in format.outputs], num_steps)
    if isinstance(found, str):
        if reply.reason == "length" and found in ("no-verdict", "bad-json", "empty"):
            return "cut-off"
        if not reply.text.strip():
            return "empty"
    return found


def _read_label(text: str, labels: FormatLabels, tokens: Sequence[TokenChoice] | None) -> Reading | Missing:
    """A word, or the log-probabilities of both words where it stands."""
    if labels.at == "start":
        if tokens is not None:
            return _from_choices(tokens[:1], labels)
        return _first_word(text, labels)
    # A turn that was begun with `\boxed` continues with `{Yes}`.
    words = [_normal(box) for box in _boxes(f"\\boxed{text}" if text.lstrip().startswith("{") else text)]
    if not words or words[-1] not in _both(labels):
        return "no-verdict"
    notes = (SEVERAL,) if set(words) >= _both(labels) else ()
    if tokens is not None:
        places = [choice for choice in tokens if _normal(choice.token) == words[-1]]
        read = _from_choices(places[-1:], labels)
        if isinstance(read, Reading):
            return Reading(read.rows, True, notes)
    return Reading(((float(words[-1] == _normal(labels.yes)),),), notes=notes)


def _boxes(text: str) -> list[str]:
    """The content of each `\\boxed{…}`, without the markup of words; "" where its braces do not match."""
    return [_MARKUP.sub(r"\1", _braced(text, found.end())).strip() for found in _BOXED.finditer(text)]


def _braced(text: str, start: int) -> str:
    """What is between the brace at `start` and the one that closes it; "" if there are none."""
    depth = 0
    for at in range(start, min(len(text), start + LONGEST_BOX)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth <= 0:
            return text[start + 1 : at]
    return ""


def _first_word(text: str, labels: FormatLabels) -> Reading | Missing:
    opening = _OPENING.match(text)
    rest = text[opening.end() if opening else 0 :]
    word = re.match(r"\w+", rest)
    first = _normal(word[0]) if word else ""
    if first not in _both(labels):
        return "no-verdict"
    others = {_normal(other) for other in re.findall(r"\w+", rest)} & _both(labels)
    if len(others) > 1:
        return "two-verdicts"
    return Reading(((float(first == _normal(labels.yes)),),))


def _from_choices(places: Sequence[TokenChoice], labels: FormatLabels) -> Reading | Missing:
    """P(yes) / (P(yes) + P(no)) where the verdict is, if there is one: a label was written there, or both together are
    likely enough. A label that is not shown gets the smallest value shown.
    """
    if not places or not places[0].top:
        return "no-verdict"
    top = places[0].top
    least = min(value for _, value in top)
    yes, no = _shown(labels.yes, top), _shown(labels.no, top)
    share = sum(math.exp(value) for value in (yes, no) if value is not None)
    if share == 0 or (share < LEAST_SHARE and _normal(places[0].token) not in _both(labels)):
        return "no-verdict"
    for label, value, other in ((labels.yes, yes, no), (labels.no, no, yes)):
        # Beginnings of a label that are likely enough mean that it may be written in several tokens.
        begun = sum(math.exp(one) for token, one in top if is_part(token, label))
        if value is None and (other == least or begun >= LEAST_SHARE):
            return "no-verdict"
    yes, no = least if yes is None else yes, least if no is None else no
    highest = max(yes, no)
    a, b = math.exp(yes - highest), math.exp(no - highest)
    return Reading(((a / (a + b),),), by_log_probability=True)


def is_part(token: str, label: str) -> bool:
    """Whether a token begins a label and does not end it, as `in` does `incorrect`."""
    part, whole = _normal(token), _normal(label)
    return bool(part) and part != whole and whole.startswith(part)


def _shown(label: str, top: Sequence[tuple[str, float]]) -> float | None:
    """The log-probability of a label as it is written, else of its likeliest spelling (` yes`, `YES`); None: none."""
    spelled = [value for token, value in top if token == label]
    others = [value for token, value in top if _normal(token) == _normal(label)]
    return max(spelled or others, default=None)


def _normal(word: str) -> str:
    return word.strip().lower()


def _both(labels: FormatLabels) -> set[str]:
    return {_normal(labels.yes), _normal(labels.no)}


def _read_index(text: str, num_steps: int) -> Reading | Missing:
    """The last `\\boxed{}` as the index of the earliest wrong step, or -1: it is wrong, earlier steps are right, later
    ones are not judged.
    """
    boxes = _boxes(text)
    if not boxes or not _INDEX.fullmatch(boxes[-1]):
        return "no-verdict"
    index = int(boxes[-1].replace("\u2212", "-").replace("\u2013", "-"))
    if not -1 <= index < num_steps:
        return "out-of-range"
    return Reading(rows_of_index(index, num_steps), notes=(SEVERAL,) if len(set(boxes)) > 1 else ())


def rows_of_index(index: int, num_steps: int, sure: float = 1.0) -> Rows:
    """The rows that an index stands for, held by a share `sure` of the votes."""
    right, wrong = 0.5 + sure / 2, 0.5 - sure / 2
    if index < 0:
        return ((right,),) * num_steps
    return ((right,),) * index + ((wrong,),) + ((math.nan,),) * (num_steps - index - 1)


def _read_scores(text: str, keys: Sequence[str], num_steps: int) -> Reading | Missing:
    """JSON lists with a number from -1 to 1 for each step; P is half of 1 + the number. As PRMBench reads it: comments
    are dropped, and the first object counts.
    """
    found = next(_objects(text), None)
    if found is None or any(key not in found for key in keys):
        return "bad-json"
    columns = [found[key] for key in keys]
    if not all(isinstance(column, list) for column in columns):
        return "bad-json"
    if any(len(column) != num_steps for column in columns):
        return "wrong-length"
    values = [value for column in columns for value in column]
    if not all(type(value) in (int, float) for value in values):
        return "bad-json"
    if not all(-1 <= value <= 1 for value in values):
        return "out-of-range"
    return Reading(tuple(tuple((1 + value) / 2 for value in row) for row in zip(*columns, strict=True)))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in a text, whatever stands around them."""
    depth = start = 0
    for brace in islice(_BRACE.finditer(text), MOST_BRACES):
        if brace[0] == "{":
            start = start if depth else brace.start()
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return  # where PRMBench gives up
        if not depth:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(_COMMENT.sub("", text[start : brace.end()]))
