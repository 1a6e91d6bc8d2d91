"""Ask a model, and keep what it says: equal questions once, within the budget, with everything counted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from prism_prm.backends.critic_replies import Missing, Reading, Reply, Turn
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.errors import DataError, PrismError
from prism_prm.files import JsonLines
from prism_prm.job import locked_file
from prism_prm.net import TooLongError

T = TypeVar("T")

CHARGED_TOGETHER = 100
"""At most so many requests share a line in the ledger's file: what a killed process may not have charged."""
MOST_FILES = 1000


class BudgetError(PrismError):
    """The tokens that a command may spend are spent."""


class StopError(Exception):
    """The work is over; why is in `Work.problem`."""


@dataclass(frozen=True, slots=True)
class Question:
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


class Replies:
    """All replies in a folder; this process appends to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, Reply] = {}
        for path in sorted(folder.glob("replies-*.jsonl")):
            try:
                for line in JsonLines(path).read():
                    self.found[line["key"]] = msgspec.convert(line["reply"], Reply)
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise DataError(f"{path}: not a file of replies ({error}); correct or remove it") from None
        self._held = contextlib.ExitStack()
        self._files: tuple[JsonLines, JsonLines] | None = None

    def append(self, key: str, reply: Reply, about: dict[str, Any]) -> None:
        """File a reply; it is on disk when this returns."""
        lines, _ = self._open()
        self.found[key] = reply
        lines.append({"key": key, **about, "reply": msgspec.to_builtins(reply)})

    def charge(self, record: dict[str, Any]) -> None:
        """Add a line to the ledger."""
        self._open()[1].append(record)

    def _open(self) -> tuple[JsonLines, JsonLines]:
        """The first files of replies and costs that no other process holds."""
        if self._files is not None:
            return self._files
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_FILES):
            path = self.folder / f"replies-{number:03}.jsonl"
            try:
                self._held.enter_context(locked_file(path))
            except PrismError:
                continue
            self._files = JsonLines(path, sync=True), JsonLines(self.folder / f"ledger-{number:03}.jsonl")
            return self._files
        raise PrismError(f"{self.folder}: {MOST_FILES} processes are writing replies here; name another --replies")

    def close(self) -> None:
        """Let other processes have the file."""
        for lines in self._files or ():
            lines.close()
        self._files = None
        self._held.close()


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
        if isinstance(reading, str):
            self.missing[reading] += 1
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
        tally = self.tally
        cost = f", cost {self.cost:.4g}" if self.cost else ""
        guessed = f" (those of {self.estimated:,} requests are estimated)" if self.estimated else ""
        found = [
            f"{self.requests:,} requests and {self.reused:,} kept replies; new tokens: {self.prompt_tokens:,} read, "
            f"{self.completion_tokens:,} written{guessed}; {self.seconds:,.0f} seconds of waiting{cost}"
        ]
        if tally.verdicts:
            found.append(f"verdicts read by {_listed(tally.verdicts)}")
        if tally.redrawn:
            found.append(f"{tally.redrawn:,} answers without a verdict were drawn again")
        if tally.missing:
            found.append(f"answers without a verdict after all redraws: {_listed(tally.missing)}")
        if tally.notes:
            found.append(_listed(tally.notes))
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


class Backend(Protocol):
    """A model that can be asked."""

    name: str
    model: str
    kind: str
    primes: bool
    """Whether it continues a turn that was begun for it."""

    @property
    def num_retries(self) -> int:
        """Requests that had to be sent again."""

    def identity(self) -> str:
        """What decides its replies, as far as it can be seen."""

    def run(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all, in order."""

    async def ask(self, question: Question) -> Reply:
        """One reply."""

    def close(self) -> None:
        """Let go of connections."""


@dataclass(slots=True)
class Work:
    """One piece of work, such as a call of `score_trees`."""

    only_kept: bool = False
    """Ask and count nothing: what is not among the kept replies is left out."""
    keeps: bool = True
    """Use and file replies; without it every question is asked anew."""
    problem: PrismError | None = None
    """Why it is over. Requests in flight are still waited for and kept; no new one begins."""
    asking: dict[str, asyncio.Task[Reply]] = field(default_factory=dict)
    """Equal questions are asked once."""
    turns: asyncio.Semaphore | None = None

    def stop(self, problem: PrismError) -> StopError:
        """The error that ends the work for this reason, unless there was one before."""
        self.problem = self.problem or problem
        return StopError()


class Asker:
    """A model with its kept replies and its ledger."""

    def __init__(self, backend: Backend, format_identity: str, settings: CriticSettings) -> None:
        self.backend, self.settings = backend, settings
        self.model = backend.identity()
        self.replies = Replies(Path(settings.replies))
        self.ledger = Ledger(settings.price_prompt, settings.price_completion)
        self._format = format_identity
        self._charged = self.ledger.as_json()
        self._charging = threading.Lock()

    def run(self, work: Work, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Do the work; then all of its cost is in the ledger's file, and its problem is raised."""
        results: list[T] = []
        try:
            results = self.backend.run(coroutines)
        except StopError:
            assert work.problem is not None, "who stops says why"
        finally:
            if not work.only_kept:  # another thread's work may be under way, which charges for itself
                self._charge()
        if work.problem is not None:
            raise work.problem
        return results

    async def ask(self, work: Work, question: Question) -> Reply:
        """The kept reply, or a new one; a StopError where the work is over."""
        key = question.key(self._format, self.model)
        if work.keeps and key in self.replies.found:
            self.ledger.reused += not work.only_kept
            return self.replies.found[key]
        if work.only_kept:
            raise StopError
        if key not in work.asking:
            work.asking[key] = asyncio.ensure_future(self._request(work, key, question))
        return await work.asking[key]

    async def _request(self, work: Work, key: str, question: Question) -> Reply:
        if work.turns is None:
            work.turns = asyncio.Semaphore(self.settings.concurrency)
        async with work.turns:
            if work.problem is not None:
                raise StopError
            budget = self.settings.budget_tokens
            if budget is not None and self.ledger.tokens >= budget:
                raise work.stop(
                    BudgetError(
                        f"--budget-tokens {budget:,} are spent ({self.ledger.tokens:,} new tokens). All replies are "
                        f"kept in {self.replies.folder}: rerun the same command to resume."
                    )
                )
            try:
                reply = await self.backend.ask(question)
            except TooLongError as error:
                if self.settings.on_missing == "error":
                    remedies = (
                        "Serve the model with more context, give fewer --critic-max-tokens, count the verdict on such "
                        "texts as wrong (--on-missing wrong), or leave it out (--on-missing skip)."
                    )
                    raise work.stop(TooLongError(f"{error}\n{remedies}")) from None
                reply = Reply("", "too-long", 0, 0)
            except PrismError as error:
                raise work.stop(error) from None
        self.ledger.add(reply)
        if work.keeps:
            about = {"format": self.settings.format, "model": self.backend.model, "draw": question.draw}
            self.replies.append(key, reply, about)
        if self.ledger.requests - self._charged["requests"] >= CHARGED_TOGETHER:
            self._charge()
        return reply

    async def run_code(self, run: Callable[[str], str], code: str) -> str:
        """The output of a critic's code, which is kept like a reply: what is random in it must not be drawn anew."""
        key = hashlib.blake2b(f"code\0{code}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        if key not in self.replies.found:
            output = Reply(await asyncio.to_thread(run, code), "stop", 0, 0)
            self.replies.append(key, output, {"format": self.settings.format, "model": "sandbox", "draw": "code"})
        return self.replies.found[key].text

    def _charge(self) -> None:
        """Add to the ledger's file what all requests since the start have cost, if there were new ones."""
        with self._charging:  # requests are charged in their own thread, and the end of some work in the caller's
            now, before = self.ledger.as_json(), self._charged
            if now["requests"] != before["requests"]:
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                since = {name: now[name] - before[name] for name, value in now.items() if not isinstance(value, dict)}
                about = {"when": when, "model": self.backend.model, "format": self.settings.format}
                self.replies.charge(about | since)
            self._charged = now


async def gathered(work: Sequence[Any]) -> list[Any]:
    """All results; an error is raised when all are over, so that requests in flight are kept."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)
