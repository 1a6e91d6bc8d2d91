"""Critic questions and replies, and how to read a verdict: functions that never raise and never guess.

A reading is one row of values per step (P of each output; NaN if a step was not judged), or the reason for having none.
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
_OPENING = re.compile(r"\A[\W_]+")
"""Matches what may precede the first word of an answer: spaces, quotes, markup."""
LEAST_SHARE = 0.05
"""The minimum probability of both labels together at a verdict's position, unless one of them was written there."""
LONGEST_BOX = 200
"""The maximum length of a box in characters; a verdict is far shorter."""
SEVERAL = "several verdicts, the last counts"
MOST_BRACES = 10_000
"""The maximum number of braces to parse in one reply; formulas have many."""


class TokenChoice(msgspec.Struct, frozen=True, array_like=True):
    """A written token, and the most likely tokens at its position with their log-probabilities."""

    token: str
    top: tuple[tuple[str, float], ...]


class Reply(msgspec.Struct, frozen=True):
    """One answer of a model."""

    text: str
    reason: Literal["stop", "length", "content_filter", "too-long"]
    """Why it ended; "too-long": the question exceeded the server's context."""
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    """Whether token counts are estimated from text lengths, because the server reports none."""
    refused: bool = False
    stopped_by: str | None = None
    """The stop string, if the server reports it."""
    tokens: tuple[TokenChoice, ...] | None = None
    """Log-probabilities; None if the server returns none."""
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
    """One request: the turns so far, and the start of the critic's own turn."""

    turns: tuple[Turn, ...]
    begun: str
    """The critic's turn so far, to continue; "" starts a new one."""
    opening: str
    """What must precede it at the start of the turn."""
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
        """A 31-bit seed, as servers expect."""
        return int.from_bytes(hashlib.blake2b(repr(asdict(self)).encode("utf-8", "surrogatepass")).digest()[:4]) >> 1

    def key(self, format: str, model: str) -> str:
        """Return the key of the stored reply: a hash of the format, the model, and the whole question."""
        facts = json.dumps([format, model, asdict(self)], sort_keys=True)
        return hashlib.blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Reading:
    """The verdict of a reply: one row per step, one value per output."""

    rows: Rows
    by_log_probability: bool = False
    notes: tuple[str, ...] = ()
    """Oddities that do not invalidate it, e.g. several verdicts of which the last counts."""


def read_reply(reply: Reply, format: CriticFormat, num_steps: int) -> Reading | Missing:
    """Read the verdict of a reply's last part; `num_steps` matters for formats that judge whole solutions."""
    if reply.has_no_text:
        return "too-long" if reply.reason == "too-long" else "refusal"
    is_boxed = format.reads == "index" or (format.reads == "label" and format.label.at == "boxed")
    if reply.reason == "length" and is_boxed:
        return "cut-off"  # a box in it may not be the final one
    if format.reads == "label":
        reading = _read_label(reply.text, format.label, reply.tokens)
    elif format.reads == "index":
        reading = _read_index(reply.text, num_steps)
    else:
        reading = _read_scores(reply.text, [format.scores[output] for output in format.outputs], num_steps)
    if isinstance(reading, str):
        if reply.reason == "length" and reading in ("no-verdict", "bad-json", "empty"):
            return "cut-off"
        if not reply.text.strip():
            return "empty"
    return reading


def _read_label(text: str, labels: FormatLabels, tokens: Sequence[TokenChoice] | None) -> Reading | Missing:
    """Read a word, or the log-probabilities of both words at its position."""
    if labels.at == "start":
        if tokens is not None:
            return _from_choices(tokens[:1], labels)
        return _first_word(text, labels)
    # A turn that started with `\boxed` continues with `{Yes}`.
    words = [_normalize(box) for box in _boxes(f"\\boxed{text}" if text.lstrip().startswith("{") else text)]
    if not words or words[-1] not in _both(labels):
        return "no-verdict"
    notes = (SEVERAL,) if set(words) >= _both(labels) else ()
    if tokens is not None:
        positions = [choice for choice in tokens if _normalize(choice.token) == words[-1]]
        reading = _from_choices(positions[-1:], labels)
        if isinstance(reading, Reading):
            return Reading(reading.rows, True, notes)
    return Reading(((float(words[-1] == _normalize(labels.yes)),),), notes=notes)


def _boxes(text: str) -> list[str]:
    """Return the content of each `\\boxed{…}` without text markup; "" if its braces do not match."""
    return [_MARKUP.sub(r"\1", _braced(text, match.end())).strip() for match in _BOXED.finditer(text)]


def _braced(text: str, start: int) -> str:
    """Return what is between the brace at `start` and the one that closes it; "" if there is none."""
    depth = 0
    for at in range(start, min(len(text), start + LONGEST_BOX)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth <= 0:
            return text[start + 1 : at]
    return ""


def _first_word(text: str, labels: FormatLabels) -> Reading | Missing:
    words = [_normalize(word) for word in re.findall(r"\w+", _OPENING.sub("", text))]
    if not words or words[0] not in _both(labels):
        return "no-verdict"
    if _both(labels) <= set(words):
        return "two-verdicts"
    return Reading(((float(words[0] == _normalize(labels.yes)),),))


def _from_choices(positions: Sequence[TokenChoice], labels: FormatLabels) -> Reading | Missing:
    """Compute P(yes) / (P(yes) + P(no)) at the verdict's position.

    There is a verdict if a label was written there, or if both together are likely enough. A label that is not listed
    gets the smallest listed value.
    """
    if not positions or not positions[0].top:
        return "no-verdict"
    top = positions[0].top
    least = min(value for _, value in top)
    yes, no = _label_value(labels.yes, top), _label_value(labels.no, top)
    share = sum(math.exp(value) for value in (yes, no) if value is not None)
    if share == 0 or (share < LEAST_SHARE and _normalize(positions[0].token) not in _both(labels)):
        return "no-verdict"
    for label, value, other in ((labels.yes, yes, no), (labels.no, no, yes)):
        # If first parts of a label are likely enough, it may be written in several tokens.
        partial = sum(math.exp(log_p) for token, log_p in top if is_part(token, label))
        if value is None and (other == least or partial >= LEAST_SHARE):
            return "no-verdict"
    yes, no = least if yes is None else yes, least if no is None else no
    highest = max(yes, no)
    a, b = math.exp(yes - highest), math.exp(no - highest)
    return Reading(((a / (a + b),),), by_log_probability=True)


def is_part(token: str, label: str) -> bool:
    """Whether a token is only the first part of a label, like `in` of `incorrect`."""
    part, full = _normalize(token), _normalize(label)
    return bool(part) and part != full and full.startswith(part)


def _label_value(label: str, top: Sequence[tuple[str, float]]) -> float | None:
    """Return the log-probability of a label as written, else of its most likely spelling (` yes`, `YES`), else None."""
    exact = [value for token, value in top if token == label]
    others = [value for token, value in top if _normalize(token) == _normalize(label)]
    return max(exact or others, default=None)


def _normalize(word: str) -> str:
    return word.strip().lower()


def _both(labels: FormatLabels) -> set[str]:
    return {_normalize(labels.yes), _normalize(labels.no)}


def _read_index(text: str, num_steps: int) -> Reading | Missing:
    """Read the last `\\boxed{}` as the index of the earliest wrong step, or -1.

    That step is wrong, earlier steps are right, later ones are not judged.
    """
    boxes = _boxes(text)
    if not boxes or not _INDEX.fullmatch(boxes[-1]):
        return "no-verdict"
    index = int(boxes[-1].replace("\u2212", "-").replace("\u2013", "-"))
    if not -1 <= index < num_steps:
        return "out-of-range"
    return Reading(rows_of_index(index, num_steps), notes=(SEVERAL,) if len(set(boxes)) > 1 else ())


def rows_of_index(index: int, num_steps: int, sure: float = 1.0) -> Rows:
    """Convert an index, given by a share `sure` of the votes, to rows."""
    right, wrong = 0.5 + sure / 2, 0.5 - sure / 2
    if index < 0:
        return ((right,),) * num_steps
    return ((right,),) * index + ((wrong,),) + ((math.nan,),) * (num_steps - index - 1)


def _read_scores(text: str, keys: Sequence[str], num_steps: int) -> Reading | Missing:
    """Read JSON lists with a number x from -1 to 1 for each step; P = (1 + x) / 2.

    As in PRMBench's code, comments are dropped, and the first object counts.
    """
    scores = next(_objects(text), None)
    if scores is None or any(key not in scores for key in keys):
        return "bad-json"
    columns = [scores[key] for key in keys]
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
    """Yield the outermost JSON objects in a text, whatever surrounds them."""
    depth = start = 0
    for brace in islice(_BRACE.finditer(text), MOST_BRACES):
        if brace[0] == "{":
            start = start if depth else brace.start()
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return  # PRMBench gives up here, too
        if not depth:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(_COMMENT.sub("", text[start : brace.end()]))
