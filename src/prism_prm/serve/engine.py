"""The queue and the one model thread: requests wait in a bounded queue, and are scored in batches in their order.

A request is accepted or refused at once, and what is accepted is answered: refused is what exceeds the queue in
requests or tokens, or would not be answered before its deadline at the present rate. A request that was cancelled, or
whose deadline has passed, leaves the queue before it costs anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prism_prm.serve.metrics import Metrics
from prism_prm.serve.models import Item, ItemScores, ServedModel
from prism_prm.serve.settings import ServeSettings

T = TypeVar("T")
LONGEST_RETRY = 60
SAFETY = 0.5
"""The part of the deadline that a request may be expected to wait; the rest is for errors of the estimate."""
MEMORY = 0.8
"""How much of the rate is what it was before the last batch."""


class RefusedError(Exception):
    """A request that the server does not take now (429, 503) or never (413)."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(eq=False)
class _Job:
    """A request's items, and those of them that are scored."""

    model: str
    owner: Hashable
    items: Sequence[Item]
    deadline: float
    future: asyncio.Future[list[ItemScores]]
    next: int = 0
    """The first item that is not being scored yet."""
    found: dict[int, ItemScores] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        """Whether nobody waits for it: it has its answer, or an error, or was cancelled, or its deadline has passed."""
        return self.future.done() or self.deadline <= now


Part = tuple[_Job, int]
"""An item of a job."""


class Engine:
    """Scores items of requests; all methods but those of the model thread are called in the event loop."""

    def __init__(
        self, load: Callable[[], Sequence[ServedModel]], settings: ServeSettings, metrics: Metrics | None = None
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.models: dict[str, ServedModel] = {}
        self.failure: BaseException | None = None
        """Why the models could not be loaded."""
        self.is_draining = False
        self._load = load
        self._loaded = threading.Event()
        self._numbers = itertools.count()
        self._queue: dict[int, _Job] = {}
        """Jobs of which something waits."""
        self.num_requests = 0
        """How many requests are waiting or being worked on."""
        self._tokens = 0
        """Of these requests, once they are read."""
        self._rate = 0.0
        """Tokens per second, of the last batches."""
        self._busy_since: float | None = None
        """When the last batch ended, unless nothing waited then."""
        self._density = 0.0
        """Tokens per byte of a body, of the last requests."""
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        """Load the models and begin to work, in the model thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def loaded(self) -> None:
        """Wait until the models are loaded, or cannot be; not in a thread, which would keep the program from ending."""
        while not self._loaded.is_set():
            await asyncio.sleep(0.05)

    @property
    def is_ready(self) -> bool:
        return self._loaded.is_set() and self.failure is None and not self.is_draining

    async def drain(self) -> None:
        """Take nothing more, and wait for what was taken; every request has a deadline, so this ends."""
        self.is_draining = True
        while self.num_requests:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """End the threads, after the batch that is being worked on; models that are being loaded are left to it."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._loaded.is_set():
            self._thread.join(self.settings.deadline)

    def check_room(self, num_bytes: int = 0) -> None:
        """Refuse what would be refused anyway, before a body of this size is read: reading it costs time, too."""
        if not self._loaded.is_set() or self.failure is not None:
            raise RefusedError(503, "The models are being loaded.", 5)
        if self.is_draining:
            raise RefusedError(503, "The server is shutting down.", 5)
        if self.num_requests >= self.settings.max_requests:
            raise RefusedError(429, f"{self.num_requests} requests are waiting already.", self._retry_after())
        self._check_wait(num_bytes * self._density)

    async def encode(self, make: Callable[[], T], since: float) -> T:
        """The result of work on a request's texts; TimeoutError at its deadline."""
        async with self._accepted(since):
            return await self._read(make)

    async def score(
        self, model: str, owner: Hashable, make: Callable[[], Sequence[Item]], since: float, num_bytes: int
    ) -> tuple[Sequence[Item], list[ItemScores]]:
        """The items that `make` reads from a request of this size that came at `since` (monotonic), and their scores.

        TimeoutError at its deadline. Cancelled, it costs nothing more.
        """
        async with self._accepted(since):
            items = await self._read(make)
            density = sum(item.tokens for item in items) / max(1, num_bytes)
            self._density = MEMORY * self._density + (1 - MEMORY) * density if self._density else density
            return items, await self._scored(model, owner, items, since) if items else []

    @contextlib.asynccontextmanager
    async def _accepted(self, since: float) -> AsyncIterator[None]:
        """A place among the requests, held until the answer or the deadline."""
        self.check_room()
        self.num_requests += 1
        self._show()
        try:
            left = since + self.settings.deadline - time.monotonic()
            async with asyncio.timeout(max(0.0, left)):
                yield
        finally:
            self.num_requests -= 1
            self._show()

    async def _read(self, make: Callable[[], T]) -> T:
        """In a thread of its own: a long text must not keep others waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, make)

    async def _scored(self, model: str, owner: Hashable, items: Sequence[Item], since: float) -> list[ItemScores]:
        tokens = sum(item.tokens for item in items)
        self._check_tokens(tokens)
        future: asyncio.Future[list[ItemScores]] = asyncio.get_running_loop().create_future()
        job = _Job(model, owner, items, since + self.settings.deadline, future)
        number = next(self._numbers)
        with self._changed:
            self._queue[number] = job
            self._changed.notify()
        self._tokens += tokens
        try:
            return await future
        finally:
            with self._changed:
                self._queue.pop(number, None)
            self._tokens -= tokens

    def _check_tokens(self, tokens: int) -> None:
        limit = self.settings.max_tokens
        if tokens > limit:
            raise RefusedError(413, f"{tokens:,} tokens in one request; the limit is {limit:,}. Send it in parts.")
        self._check_wait(tokens)

    def _check_wait(self, tokens: float) -> None:
        """Refuse so many tokens if they would have to wait too long; where nothing waits, anything may come."""
        if not self._tokens:
            return
        if self._tokens + tokens > self.settings.max_tokens:
            raise RefusedError(429, f"{self._tokens:,} tokens are waiting already.", self._retry_after())
        if self._rate and (self._tokens + tokens) / self._rate > SAFETY * self.settings.deadline:
            raise RefusedError(429, "This request would not be answered before its deadline.", self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until half of what is waiting should be done."""
        return min(LONGEST_RETRY, max(1, math.ceil(0.5 * self._tokens / self._rate))) if self._rate else 1

    def _show(self) -> None:
        self.metrics.waiting_requests.set(self.num_requests)
        self.metrics.waiting_tokens.set(self._tokens)

    # The model thread

    def _work(self) -> None:
        try:
            self.models = {model.name: model for model in self._load()}
        except BaseException as error:
            self.failure = error
        finally:
            self._loaded.set()
        while self.failure is None:
            with self._changed:
                while not self._stopped and not (batch := self._take()):
                    self._busy_since = None
                    self._changed.wait()
                if self._stopped:
                    return
            self._score(batch)

    def _take(self) -> list[Part]:
        """The next items: of one model, in their order, up to the limits of a batch."""
        batch: list[Part] = []
        tokens = 0
        now = time.monotonic()
        for number, job in list(self._queue.items()):
            if job.is_over(now):
                del self._queue[number]
                continue
            if batch and job.model != batch[0][0].model:
                continue
            most = min(self.settings.batch_items, self.models[job.model].batch_items or self.settings.batch_items)
            while job.next < len(job.items):
                size = job.items[job.next].tokens
                if batch and (tokens + size > self.settings.batch_tokens or len(batch) >= most):
                    return batch
                batch.append((job, job.next))
                tokens += size
                job.next += 1
            del self._queue[number]
        return batch

    def _score(self, batch: Sequence[Part]) -> None:
        model = self.models[batch[0][0].model]
        started = self._busy_since or time.monotonic()  # what happens between batches takes time, too
        results: list[tuple[_Job, int, ItemScores | Exception]] = []
        try:
            found = model.score([(job.owner, job.items[i]) for job, i in batch])
            results = [(job, i, scores) for (job, i), scores in zip(batch, found, strict=True)]
        except Exception as error:
            if len(batch) == 1:
                results = [(*batch[0], error)]
        if not results:  # one item's mistake must not be another's
            for part in batch:
                if not part[0].is_over(time.monotonic()):
                    self._score([part])
            return
        self._busy_since = time.monotonic()
        self._measure(batch, results, self._busy_since - started)
        assert self._loop is not None, "the engine was started"
        self._loop.call_soon_threadsafe(_deliver, results)

    def _measure(
        self, batch: Sequence[Part], results: Sequence[tuple[_Job, int, ItemScores | Exception]], seconds: float
    ) -> None:
        tokens = sum(job.items[i].tokens for job, i in batch)
        rate = tokens / max(seconds, 1e-6)
        # It falls at once and rises slowly: a request that is refused comes again, one that is late is lost.
        self._rate = min(rate, MEMORY * self._rate + (1 - MEMORY) * rate) if self._rate else rate
        cached = sum(found.cached_tokens for _, _, found in results if isinstance(found, ItemScores))
        self.metrics.batches(len(batch), tokens, cached, seconds)
        model = self.models[batch[0][0].model]
        if model.cache is not None:
            self.metrics.cache_bytes.labels(model.name).set(model.cache.num_bytes)


def _deliver(results: Sequence[tuple[_Job, int, ItemScores | Exception]]) -> None:
    """Hand out what was found; in the event loop."""
    for job, i, found in results:
        if job.future.done():
            continue
        if isinstance(found, Exception):
            job.future.set_exception(found)
            continue
        job.found[i] = found
        if len(job.found) == len(job.items):
            job.future.set_result([job.found[k] for k in range(len(job.items))])
