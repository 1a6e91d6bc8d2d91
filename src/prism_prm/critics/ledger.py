"""What a critic's answers have cost, and what was wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prism_prm.critics.parse import Missing, Reading
from prism_prm.critics.replies import Reply


@dataclass(slots=True)
class Tally:
    """What was read from answers; each answer counts once, however often it is used."""

    tokens: int = 0
    """Tokens of all replies behind it, new and kept."""
    redrawn: int = 0
    """Answers without a verdict that were drawn again."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """How verdicts were read: `log-probabilities`, `votes`."""
    missing: Counter[str] = field(default_factory=Counter)
    """Answers without a verdict after all redraws, by kind."""
    notes: Counter[str] = field(default_factory=Counter)
    _counted: set[int] = field(default_factory=set)

    def add(self, answer: Hashable, reading: Reading | Missing, redrawn: int, notes: Sequence[str]) -> None:
        """What one answer says."""
        if hash(answer) in self._counted:
            return
        self._counted.add(hash(answer))
        self.redrawn += redrawn
        self.notes.update(notes)
        if isinstance(reading, Missing):
            self.missing[reading.kind] += 1
        else:
            self.notes.update(reading.notes)
            self.verdicts["log-probabilities" if reading.by_log_probability else "votes"] += 1

    def as_json(self) -> dict[str, Any]:
        """For metrics.json."""
        return {
            "redrawn": self.redrawn, "verdicts": dict(self.verdicts), "missing": dict(self.missing),
            "notes": dict(self.notes),
        }  # fmt: skip


@dataclass(slots=True)
class Ledger:
    """Counts since a critic was opened."""

    price_prompt: float = 0.0
    """Of a million tokens."""
    price_completion: float = 0.0
    requests: int = 0
    reused: int = 0
    """Replies that were kept from earlier requests."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Requests whose tokens are guessed, because the server does not count them."""
    seconds: float = 0.0
    """Waiting times of all requests added up; many run at the same time."""
    tally: Tally = field(default_factory=Tally)

    @property
    def redrawn(self) -> int:
        return self.tally.redrawn

    @property
    def verdicts(self) -> Counter[str]:
        return self.tally.verdicts

    @property
    def missing(self) -> Counter[str]:
        return self.tally.missing

    @property
    def notes(self) -> Counter[str]:
        return self.tally.notes

    def add(self, reply: Reply) -> None:
        """A request that was answered."""
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
        """By the prices given."""
        return (self.prompt_tokens * self.price_prompt + self.completion_tokens * self.price_completion) / 1e6

    def as_json(self) -> dict[str, Any]:
        """For metrics.json and the ledger's file."""
        return {
            "requests": self.requests, "reused": self.reused, "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens, "estimated": self.estimated, "seconds": round(self.seconds, 3),
            "cost": round(self.cost, 6), **self.tally.as_json(),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """In words."""
        cost = f", cost {self.cost:.4g}" if self.cost else ""
        guessed = f" (those of {self.estimated:,} requests are estimated)" if self.estimated else ""
        found = [
            f"{self.requests:,} requests and {self.reused:,} kept replies; new tokens: {self.prompt_tokens:,} read, "
            f"{self.completion_tokens:,} written{guessed}; {self.seconds:,.0f} seconds of waiting{cost}"
        ]
        if self.verdicts:
            found.append(f"verdicts read by {_listed(self.verdicts)}")
        if self.redrawn:
            found.append(f"{self.redrawn:,} answers without a verdict were drawn again")
        if self.missing:
            found.append(f"answers without a verdict after all redraws: {_listed(self.missing)}")
        if self.notes:
            found.append(_listed(self.notes))
        return found


def verdicts_in_words(summary: Mapping[str, Any]) -> str:
    """How the verdicts behind some scores were read, and which were missing, from a critic's summary."""
    names = {"log-probabilities": "the labels' log-probabilities", "votes": "what the critic wrote"}
    how = " and ".join(f"{names[name]} ({count:,})" for name, count in summary["verdicts"].items()) or "nothing"
    votes = f", mean of {summary['votes']} answers" if summary["votes"] > 1 else ""
    missing = _listed(summary["missing"]) or "none"
    return (
        f"Verdicts were read from {how}{votes} (format `{summary['format']}`). Answers without a verdict: {missing} "
        f"(`--on-missing {summary['on_missing']}`)."
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())
