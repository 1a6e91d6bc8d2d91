"""The queue and the model thread: accepted requests wait in order and are scored in batches.

A request that was canceled, or whose deadline has passed, is removed from the queue before it is scored.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from prism_prm.serve.admission import Admission, Reservation
from prism_prm.serve.models import ItemScores, ServedItem, ServedModel
from prism_prm.serve.searches import Searches
from prism_prm.serve.settings import ServeSettings

T = TypeVar("T")


class Metrics:
    """The server's Prometheus metrics."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "prism_requests_total", "Requests by route and status; 499: the client disconnected.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "prism_request_seconds", "Seconds from a request's head to its answer.", ["route"], registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self.waiting_requests = Gauge(
            "prism_waiting_requests", "Requests that wait or are being scored.", registry=registry
        )
        self.waiting_tokens = Gauge("prism_waiting_tokens", "Tokens of these requests.", registry=registry)
        self.tokens = Counter("prism_tokens_total", "Tokens of scored items.", registry=registry)
        self.cached_tokens = Counter("prism_cached_tokens_total", "Those found in the cache.", registry=registry)
        self.batch_items = Histogram(
            "prism_batch_items", "Solutions and trees scored together.", registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )  # fmt: skip
        self.model_seconds = Counter("prism_model_seconds_total", "Seconds that models worked.", registry=registry)
        self.cache_bytes = Gauge("prism_cache_bytes", "Bytes of kept states.", ["model"], registry=registry)


@dataclass(eq=False)
class _Job:
    """The items of a request, and the scores so far."""

    model: str
    owner: Hashable
    items: Sequence[ServedItem]
    deadline: float
    future: asyncio.Future[list[ItemScores]]
    reservation: Reservation
    next: int = 0
    """The first item that is not being scored yet."""
    found: dict[int, ItemScores] = field(default_factory=dict)

    def is_over(self) -> bool:
        """Whether it is finished, failed, was canceled, or is past its deadline."""
        return self.future.done() or self.deadline <= time.monotonic()


Part = tuple[_Job, int]
"""A job and the index of one of its items."""


class ServeEngine:
    """Scores the items of requests. All methods run in the event loop, except those of the model thread."""

    def __init__(self, load: Callable[[], Sequence[ServedModel]], settings: ServeSettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)
        self.metrics = Metrics()
        self.metrics.waiting_requests.set_function(lambda: self.admission.num_requests)
        self.metrics.waiting_tokens.set_function(lambda: self.admission.tokens)
        self.models: dict[str, ServedModel] = {}
        self.turn = threading.Lock()
        """Held while a PRM works: the model thread and searches share it."""
        self.searches: Searches | None = None
        self.failure: BaseException | None = None
        """Why the models could not be loaded."""
        self.num_queued = 0
        """The number of jobs so far."""
        self._load = load
        self._loaded = threading.Event()
        """Set once the models are loaded, or loading has failed."""
        self._queue: dict[int, _Job] = {}
        """Jobs with waiting items, by number."""
        self._busy_since: float | None = None
        """When the last batch ended; None if the queue was empty then."""
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="encode")
        """Tokenizes in a separate thread: a long text must not block the event loop."""
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        """Start the model thread, which loads the models and then scores."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def loaded(self) -> None:
        """Wait until the models are loaded, or loading has failed. It polls: a waiting thread would block the exit."""
        while not self._loaded.is_set():
            await asyncio.sleep(0.05)

    @property
    def is_ready(self) -> bool:
        return self.admission.is_loaded and not self.admission.is_draining

    @property
    def longest_seconds(self) -> float:
        """Seconds after which every request is answered."""
        most = self.settings.answer_seconds
        return most if self.searches is None else max(most, self.settings.search_seconds)

    async def drain(self) -> None:
        """Accept no more requests, and wait for the accepted ones; every request has a deadline, so this ends."""
        own = [self.admission, *([self.searches.admission] if self.searches else [])]
        for admission in own:
            admission.is_draining = True
        while any(admission.num_requests for admission in own):
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Stop the threads after the current batch; does not wait for models that are still loading."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self.searches is not None:
            self.searches.close()
        if self._loaded.is_set():
            self._thread.join(self.settings.answer_seconds)

    async def encode(self, make: Callable[[], T], since: float, num_bytes: int) -> T:
        """Run `make`, which tokenizes a request of this size, in the tokenizer thread; TimeoutError at its deadline."""
        async with self.admission.admit(None, since, num_bytes):
            return await asyncio.get_running_loop().run_in_executor(self._readers, make)

    async def score(
        self, model: str, owner: Hashable, make: Callable[[], Sequence[ServedItem]], since: float, num_bytes: int
    ) -> tuple[Sequence[ServedItem], list[ItemScores]]:
        """Tokenize a request by `make` and score its items; returns the items and their scores.

        The request arrived at `since` (monotonic) and has this size. TimeoutError at its deadline; canceling it frees
        its place in the queue.
        """

        def read() -> tuple[Sequence[ServedItem], int]:
            items = make()
            return items, sum(self.models[model].work(owner, item) for item in items)

        async with self.admission.admit(model, since, num_bytes) as reservation:
            items, work = await asyncio.get_running_loop().run_in_executor(self._readers, read)
            self.admission.note_density(sum(item.tokens for item in items), work, num_bytes)
            self.admission.count(reservation, sum(item.cost for item in items), work)
            if not items:
                return items, []
            future: asyncio.Future[list[ItemScores]] = asyncio.get_running_loop().create_future()
            with self._changed:
                number = self.num_queued
                self.num_queued += 1
                deadline = since + self.settings.answer_seconds
                self._queue[number] = _Job(model, owner, items, deadline, future, reservation)
                self._changed.notify()
            try:
                return items, await future
            finally:
                with self._changed:
                    self._queue.pop(number, None)

    # The model thread

    def _work(self) -> None:
        try:
            models = {model.name: model for model in self._load()}
            for name, model in models.items():
                self.admission.note_rate(name, *model.try_out(), is_full=True)
            if self.searches is not None:
                self.searches.open(list(models.values()))
            self.models = models
            self.admission.is_loaded = True
        except BaseException as error:  # the server exits with it
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
        """The next batch: items of one model, in order; and whether the batch is at its limits."""
        batch: list[Part] = []
        tokens = 0
        for number, job in list(self._queue.items()):
            if job.is_over():
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
                job.reservation.num_running += 1
                tokens += size
                job.next += 1
            del self._queue[number]
        return batch, False

    def _score(self, batch: Sequence[Part], is_full: bool) -> None:
        model = self.models[batch[0][0].model]
        started = self._busy_since or time.monotonic()  # includes the time between batches

        def is_over() -> bool:
            return all(job.is_over() for job, _ in batch)

        try:
            with self.turn:
                found = model.score([(job.owner, job.items[i]) for job, i in batch], is_over)
        except Exception as error:
            self._busy_since = time.monotonic()
            if len(batch) == 1 or is_over():
                self._deliver(batch, [error] * len(batch))
                return
            for part in batch:  # an item that fails must not fail the others
                if part[0].is_over():
                    self._deliver([part], [TimeoutError()])
                else:
                    self._score([part], is_full=False)
            return
        self._busy_since = time.monotonic()
        seconds = self._busy_since - started
        tokens, cached = sum(job.items[i].cost for job, i in batch), sum(scores.cached_tokens for scores in found)
        # In a batch that is mostly cached, fixed costs dominate.
        self.admission.note_rate(model.name, tokens - cached, seconds, is_full=is_full and 2 * cached < tokens)
        self.metrics.batch_items.observe(len(batch))
        self.metrics.tokens.inc(tokens)
        self.metrics.cached_tokens.inc(cached)
        self.metrics.model_seconds.inc(seconds)
        if model.cache is not None:
            self.metrics.cache_bytes.labels(model.name).set(model.cache.num_bytes)
        self._deliver(batch, found)

    def _deliver(self, batch: Sequence[Part], results: Sequence[ItemScores | Exception]) -> None:
        """Pass the results to their jobs, in the event loop."""

        def deliver() -> None:
            for (job, i), found in zip(batch, results, strict=True):
                with self._changed:
                    job.reservation.num_running -= 1
                if job.reservation.is_left:
                    self.admission.release(job.reservation)
                if job.future.done():
                    continue
                if isinstance(found, Exception):
                    job.future.set_exception(found)
                    continue
                job.found[i] = found
                if len(job.found) == len(job.items):
                    job.future.set_result([job.found[k] for k in range(len(job.items))])

        assert self._loop is not None, "the engine was started"
        self._loop.call_soon_threadsafe(deliver)
