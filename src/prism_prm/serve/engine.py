"""The queue and the one model thread: requests wait in a bounded queue, and are scored in batches in their order.

A request is accepted or refused at once, and what is accepted is answered: refused is what exceeds the queue in
requests or tokens, or would not be answered before its deadline at the present rate. A request that was cancelled, or
whose deadline has passed, leaves the queue before it costs anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prism_prm.serve.backlog import Backlog, Place
from prism_prm.serve.metrics import Metrics
from prism_prm.serve.models import Item, ItemScores, ServedModel
from prism_prm.serve.settings import ServeSettings

T = TypeVar("T")
LONGEST_RETRY = 60
SAFETY = 0.5
"""The part of the deadline that a request may be expected to wait; the rest is for errors of the estimate."""
UNKNOWN = 8
"""Requests that may wait where nobody knows yet how fast their model is."""
FAR = 8
"""How many times too large a request must look by its bytes to be refused before it is read."""


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
    place: Place
    next: int = 0
    """The first item that is not being scored yet."""
    found: dict[int, ItemScores] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        """Whether nobody waits for it: it has its answer, or an error, or was cancelled, or its deadline has passed."""
        return self.future.done() or self.deadline <= now


Part = tuple[_Job, int]
"""An item of a job."""
Result = tuple[_Job, int, ItemScores | Exception]
"""What became of it."""


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
        self._queue: dict[int, _Job] = {}
        """Jobs of which something waits, by their number."""
        self.num_queued = 0
        """How many jobs there have been."""
        self.num_requests = 0
        """How many requests are waiting or being worked on."""
        self.backlog = Backlog()
        self._busy_since: float | None = None
        """When the last batch ended, unless nothing waited then."""
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
        self._check_wait(self.backlog.guess(None, num_bytes))

    async def encode(self, make: Callable[[], T], since: float, num_bytes: int) -> T:
        """The result of work on the texts of a request of this size; TimeoutError at its deadline."""
        async with self._accepted(None, since, num_bytes):
            return await self._read(make)

    async def score(
        self, model: str, owner: Hashable, make: Callable[[], Sequence[Item]], since: float, num_bytes: int
    ) -> tuple[Sequence[Item], list[ItemScores]]:
        """The items that `make` reads from a request of this size that came at `since` (monotonic), and their scores.

        TimeoutError at its deadline. Cancelled, it costs nothing more.
        """

        def read() -> tuple[Sequence[Item], int]:
            items = make()
            return items, sum(self.models[model].work(owner, item) for item in items)

        async with self._accepted(model, since, num_bytes) as place:
            items, work = await self._read(read)
            self.backlog.note_density(items, work, num_bytes)
            self._count(place, sum(item.cost for item in items), work)
            if not items:
                return items, []
            future: asyncio.Future[list[ItemScores]] = asyncio.get_running_loop().create_future()
            return items, await self._scored(_Job(model, owner, items, since + self.settings.deadline, future, place))

    @contextlib.asynccontextmanager
    async def _accepted(self, model: str | None, since: float, num_bytes: int) -> AsyncIterator[Place]:
        """A place among the requests, held until the answer or the deadline."""
        self.check_room()
        place = self.backlog.guess(model, num_bytes)
        self._check_size(place.tokens, FAR * self.settings.max_tokens, "About ")
        self._check_wait(place)
        self.backlog.add(place)
        self.num_requests += 1
        self._show()
        try:
            left = since + self.settings.deadline - time.monotonic()
            async with asyncio.timeout(max(0.0, left)):
                yield place
        finally:
            self.num_requests -= 1
            place.is_left = True
            self._leave(place)

    async def _read(self, make: Callable[[], T]) -> T:
        """In a thread of its own: a long text must not keep others waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, make)

    async def _scored(self, job: _Job) -> list[ItemScores]:
        with self._changed:
            number = self.num_queued
            self.num_queued += 1
            self._queue[number] = job
            self._changed.notify()
        try:
            return await job.future
        finally:
            with self._changed:
                self._queue.pop(number, None)

    def _count(self, place: Place, tokens: int, work: int) -> None:
        """Put what was counted in place of the guess, or refuse it."""
        self._check_size(tokens, self.settings.max_tokens)
        self.backlog.remove(place)
        place.tokens = place.work = 0
        self._check_wait(Place(place.model, tokens, work))
        place.tokens, place.work = tokens, work
        self.backlog.add(place)
        self._show()

    def _leave(self, place: Place) -> None:
        """Give up a place, unless the model still works on it."""
        if not place.num_running:
            self.backlog.remove(place)
        self._show()

    def _check_size(self, tokens: int, limit: int, roughly: str = "") -> None:
        if tokens > limit:
            raise RefusedError(
                413,
                f"{roughly}{tokens:,} tokens in one request; the limit is {self.settings.max_tokens:,}. Send it in "
                "parts, or with fewer steps beyond the context.",
            )

    def _check_wait(self, place: Place) -> None:
        """Refuse what would have to wait too long; where nothing waits, anything may come."""
        backlog = self.backlog
        if not backlog.tokens:
            return
        if backlog.tokens + place.tokens > self.settings.max_tokens:
            raise RefusedError(429, f"{backlog.tokens:,} tokens are waiting already.", self._retry_after())
        if place.model is not None and place.model not in backlog.rates and self.num_requests > UNKNOWN:
            raise RefusedError(429, "Too many requests are waiting for the model's first answer.", 1)
        if backlog.seconds(place) > SAFETY * self.settings.deadline:
            raise RefusedError(429, "This request would not be answered before its deadline.", self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until half of what is waiting should be done."""
        return min(LONGEST_RETRY, max(1, math.ceil(0.5 * self.backlog.seconds())))

    def _show(self) -> None:
        self.metrics.waiting_requests.set(self.num_requests)
        self.metrics.waiting_tokens.set(self.backlog.tokens)

    # The model thread

    def _work(self) -> None:
        try:
            models = {model.name: model for model in self._load()}
            for name, model in models.items():
                self.backlog.note_rate(name, *model.try_out(), is_full=True)
            self.models = models
        except BaseException as error:
            self.failure = error
        finally:
            self._loaded.set()
        while self.failure is None:
            with self._changed:
                while not self._stopped and not (taken := self._take())[0]:
                    self._busy_since = None
                    self._changed.wait()
                if self._stopped:
                    return
            self._score(*taken)

    def _take(self) -> tuple[list[Part], bool]:
        """The next items: of one model, in their order, up to the limits of a batch; and whether these were met."""
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
                size = job.items[job.next].cost
                if batch and (tokens + size > self.settings.batch_tokens or len(batch) >= most):
                    return batch, True
                batch.append((job, job.next))
                job.place.num_running += 1
                tokens += size
                job.next += 1
            del self._queue[number]
        return batch, False

    def _score(self, batch: Sequence[Part], is_full: bool) -> None:
        model = self.models[batch[0][0].model]
        started = self._busy_since or time.monotonic()  # what happens between batches takes time, too

        def is_over() -> bool:
            now = time.monotonic()
            return all(job.is_over(now) for job, _ in batch)

        try:
            found = model.score([(job.owner, job.items[i]) for job, i in batch], is_over)
        except Exception as error:
            self._busy_since = time.monotonic()
            if len(batch) == 1 or is_over():
                self._hand_over([(*part, error) for part in batch])
                return
            for part in batch:  # one item's mistake must not be another's
                if part[0].is_over(time.monotonic()):
                    self._hand_over([(*part, TimeoutError())])
                else:
                    self._score([part], is_full=False)
            return
        self._busy_since = time.monotonic()
        self._measure(batch, found, self._busy_since - started, is_full)
        self._hand_over([(job, i, scores) for (job, i), scores in zip(batch, found, strict=True)])

    def _measure(self, batch: Sequence[Part], found: Sequence[ItemScores], seconds: float, is_full: bool) -> None:
        model = self.models[batch[0][0].model]
        tokens, cached = sum(job.items[i].cost for job, i in batch), sum(scores.cached_tokens for scores in found)
        # Of a batch that is mostly cached, what else it costs outweighs the rest.
        self.backlog.note_rate(model.name, tokens - cached, seconds, is_full=is_full and 2 * cached < tokens)
        self.metrics.batches(len(batch), tokens, cached, seconds)
        if model.cache is not None:
            self.metrics.cache_bytes.labels(model.name).set(model.cache.num_bytes)

    def _hand_over(self, results: Sequence[Result]) -> None:
        assert self._loop is not None, "the engine was started"
        self._loop.call_soon_threadsafe(self._deliver, results)

    def _deliver(self, results: Sequence[Result]) -> None:
        """Hand out what was found; in the event loop."""
        for job, i, found in results:
            with self._changed:
                job.place.num_running -= 1
            if job.place.is_left:
                self._leave(job.place)
            if job.future.done():
                continue
            if isinstance(found, Exception):
                job.future.set_exception(found)
                continue
            job.found[i] = found
            if len(job.found) == len(job.items):
                job.future.set_result([job.found[k] for k in range(len(job.items))])
