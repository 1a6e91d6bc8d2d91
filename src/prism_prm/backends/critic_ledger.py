"""Store a critic's replies on disk, so that no question is sent twice, and count what they cost."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.backends.critic_replies import Missing, Reading, Reply
from prism_prm.errors import DataError, PrismError
from prism_prm.files import JsonLines
from prism_prm.job import locked_file

MOST_FILES = 1000


class Replies:
    """All replies in a folder; this process appends to its own file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_key: dict[str, Reply] = {}
        for path in sorted(folder.glob("replies-*.jsonl")):
            try:
                for line in JsonLines(path).read():
                    self.by_key[line["key"]] = msgspec.convert(line["reply"], Reply)
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise DataError(f"{path}: not a file of replies ({error}); fix or remove it") from None
        self._locks = contextlib.ExitStack()
        self._files: tuple[JsonLines, JsonLines] | None = None

    def append(self, key: str, reply: Reply, about: dict[str, Any]) -> None:
        """Store a reply; it is on disk when this returns."""
        lines, _ = self.files()
        self.by_key[key] = reply
        lines.append({"key": key, **about, "reply": msgspec.to_builtins(reply)})

    def files(self) -> tuple[JsonLines, JsonLines]:
        """Return this process's files of replies and costs: the first ones that no other process has locked."""
        if self._files is not None:
            return self._files
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_FILES):
            path = self.folder / f"replies-{number:03}.jsonl"
            try:
                self._locks.enter_context(locked_file(path))
            except PrismError:
                continue
            self._files = JsonLines(path, sync=True), JsonLines(self.folder / f"ledger-{number:03}.jsonl")
            return self._files
        raise PrismError(
            f"{self.folder}: {MOST_FILES} processes are writing replies here; use another folder (-C replies=FOLDER)"
        )

    def close(self) -> None:
        """Release the files for other processes."""
        for lines in self._files or ():
            lines.close()
        self._files = None
        self._locks.close()


@dataclass(slots=True)
class VerdictTally:
    """Counts of verdicts; each answer counts once, however often it is used."""

    tokens: int = 0
    """Tokens of all replies used, new and stored."""
    redrawn: int = 0
    """Answers without a verdict that were sampled again."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """How verdicts were read: `log-probabilities`, `votes`."""
    missing: Counter[str] = field(default_factory=Counter)
    """Answers without a verdict after all redraws, by kind."""
    notes: Counter[str] = field(default_factory=Counter)
    _counted: set[int] = field(default_factory=set)

    def add(self, answer: Hashable, reading: Reading | Missing, redrawn: int, notes: Sequence[str]) -> None:
        """Count one answer."""
        if hash(answer) in self._counted:
            return
        self._counted.add(hash(answer))
        self.redrawn += redrawn
        self.notes.update(notes)
        if isinstance(reading, str):
            self.missing[reading] += 1
        else:
            self.notes.update(reading.notes)
            self.verdicts["log-probabilities" if reading.by_log_probability else "votes"] += 1

    def as_json(self) -> dict[str, Any]:
        """Return the entries of metrics.json."""
        return {
            "redrawn": self.redrawn, "verdicts": dict(self.verdicts), "missing": dict(self.missing),
            "notes": dict(self.notes),
        }  # fmt: skip


@dataclass(slots=True)
class CriticLedger:
    """Requests, tokens and cost since a critic was opened."""

    price_prompt: float = 0.0
    """Per million tokens, like `price_completion`."""
    price_completion: float = 0.0
    requests: int = 0
    reused: int = 0
    """Stored replies of earlier requests that were reused."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Requests whose tokens are estimated, because the server does not count them."""
    seconds: float = 0.0
    """The sum of all waiting times; many requests run at the same time."""
    tally: VerdictTally = field(default_factory=VerdictTally)

    def add(self, reply: Reply) -> None:
        """Count a request that was answered."""
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.estimated += reply.estimated
        self.seconds += reply.seconds

    @property
    def tokens(self) -> int:
        """New tokens, read and written."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost(self) -> float:
        return (self.prompt_tokens * self.price_prompt + self.completion_tokens * self.price_completion) / 1e6

    def as_json(self) -> dict[str, Any]:
        """Return the entries of metrics.json and of the ledger's file."""
        return {
            "requests": self.requests, "reused": self.reused, "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens, "estimated": self.estimated, "seconds": round(self.seconds, 3),
            "cost": round(self.cost, 6), **self.tally.as_json(),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Describe the ledger in lines of text."""
        tally = self.tally
        cost = f", cost {self.cost:.4g}" if self.cost else ""
        estimated = f" (those of {self.estimated:,} requests are estimated)" if self.estimated else ""
        lines = [
            f"{self.requests:,} requests and {self.reused:,} stored replies; new tokens: {self.prompt_tokens:,} read, "
            f"{self.completion_tokens:,} written{estimated}; {self.seconds:,.0f} seconds of waiting{cost}"
        ]
        if tally.verdicts:
            lines.append(f"verdicts read by {_format_counts(tally.verdicts)}")
        if tally.redrawn:
            lines.append(f"{tally.redrawn:,} answers without a verdict were redrawn")
        if tally.missing:
            lines.append(f"answers without a verdict after all redraws: {_format_counts(tally.missing)}")
        if tally.notes:
            lines.append(_format_counts(tally.notes))
        return lines


def verdicts_in_words(summary: Mapping[str, Any]) -> str:
    """Describe how the verdicts behind some scores were read and which were missing, from a critic's summary."""
    names = {"log-probabilities": "the labels' log-probabilities", "votes": "what the critic wrote"}
    sources = " and ".join(f"{names[name]} ({count:,})" for name, count in summary["verdicts"].items()) or "nothing"
    votes = f", mean of {summary['votes']} answers" if summary["votes"] > 1 else ""
    missing = _format_counts(summary["missing"]) or "none"
    return (
        f"Verdicts were read from {sources}{votes} (format `{summary['format']}`). Answers without a verdict: "
        f"{missing} (`on_missing={summary['on_missing']}`)."
    )


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())
