"""Ask a model, and keep what it says: equal questions once, within the budget, with everything counted."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from prism_prm.critics.ledger import Ledger
from prism_prm.critics.replies import Ask, Replies, Reply
from prism_prm.critics.settings import CriticSettings
from prism_prm.errors import PrismError
from prism_prm.http import TooLongError

T = TypeVar("T")

CHARGED_TOGETHER = 100
"""Requests of one line in the ledger's file, at most: what a process that is killed may not have charged."""


class BudgetError(PrismError):
    """The tokens that a command may spend are spent."""


class StopError(Exception):
    """The work is over; why is in `Work.problem`."""


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

    async def ask(self, ask: Ask) -> Reply:
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

    async def ask(self, work: Work, ask: Ask) -> Reply:
        """The kept reply, or a new one; a StopError where the work is over."""
        key = ask.key(self._format, self.model)
        if work.keeps and key in self.replies.found:
            self.ledger.reused += not work.only_kept
            return self.replies.found[key]
        if work.only_kept:
            raise StopError
        if key not in work.asking:
            work.asking[key] = asyncio.ensure_future(self._request(work, key, ask))
        return await work.asking[key]

    async def _request(self, work: Work, key: str, ask: Ask) -> Reply:
        if work.turns is None:
            work.turns = asyncio.Semaphore(self.settings.concurrency)
        async with work.turns:
            if work.problem is not None:
                raise StopError
            self._check_budget(work)
            try:
                reply = await self.backend.ask(ask)
            except TooLongError as error:
                if self.settings.on_missing == "error":
                    raise work.stop(_with_remedy(error)) from None
                reply = Reply("", "too-long", 0, 0)
            except PrismError as error:
                raise work.stop(error) from None
        self.ledger.add(reply)
        if work.keeps:
            about = {"format": self.settings.format, "model": self.backend.model, "draw": ask.draw}
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

    def _check_budget(self, work: Work) -> None:
        budget = self.settings.budget_tokens
        if budget is None or self.ledger.tokens < budget:
            return
        raise work.stop(
            BudgetError(
                f"--budget-tokens {budget:,} are spent ({self.ledger.tokens:,} new tokens). All replies are kept in "
                f"{self.replies.folder}: rerun the same command to resume."
            )
        )

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


def _with_remedy(error: TooLongError) -> TooLongError:
    return TooLongError(
        f"{error}\nServe the model with more context, give fewer --critic-max-tokens, count the verdict on such texts "
        "as wrong (--on-missing wrong), or leave it out (--on-missing skip)."
    )


async def gathered(work: Sequence[Any]) -> list[Any]:
    """All results; an error is raised when all are over, so that requests in flight are kept."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)
