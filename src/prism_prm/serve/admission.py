"""Admission control: accept a request, or reject it temporarily (429, 503) or permanently (401, 403, 408, 413).

`Gate` is the middleware around all routes: it checks the caller, reads the body within its limits, and counts requests.
`Admission` tracks the queue and the speed of each model. It accepts or rejects at once: it rejects requests that exceed
the queue in requests or tokens, or would miss their deadline at the current speed, and it answers all it accepts. With
`for_training`, a request waits for room, in order of arrival, and is rejected only at its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism_prm.serve.settings import KeyRing, ServeSettings

if TYPE_CHECKING:
    from prism_prm.serve.engine import ServeEngine

log = logging.getLogger(__name__)

BODIES = 32
"""How many bodies of the maximum size may be read at the same time; more if they are smaller."""
UNEXPECTED = "An unexpected error; see the server's log."
CLIENT_CLOSED = 499
"""The status that is counted if the client closed the connection."""
DISCARD_SECONDS = 2.0
"""How long the rest of a rejected request is read before its connection is closed."""
MAX_RETRY_AFTER = 60
SAFETY = 0.5
"""The fraction of the deadline that a request may be expected to wait; the rest is for errors of the estimate."""
MAX_UNMEASURED = 8
"""How many requests may wait for a model whose speed is unknown."""
GUESS_SLACK = 8
"""A request is rejected by its size in bytes only if the guess exceeds the limit by this factor."""
SMOOTHING = 0.8
"""The weight of the past in moving averages."""
TOKENS_PER_BYTE = 0.25
"""The initial guess, before any request was read."""
POLL_SECONDS = 0.02
"""How often a waiting request looks for room."""
SMALL_BATCH = 512
"""Tokens below which the fixed costs of a batch dominate."""


class RefusedError(Exception):
    """A request that the server rejects temporarily (429, 503) or permanently (413)."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(eq=False)
class Reservation:
    """The share of the queue that a request takes: guessed from its bytes until its tokens are counted."""

    model: str | None
    """None if it needs no model."""
    tokens: int = 0
    work: int = 0
    """The tokens that the model has to read; the others are in its cache."""
    num_running: int = 0
    """The number of its items in the batch that is being scored."""
    is_left: bool = False
    """Whether the client no longer waits for it."""


class Admission:
    """Tracks waiting requests, and estimates how long they will take."""

    def __init__(self, settings: ServeSettings, *, tokens_per_byte: float = TOKENS_PER_BYTE) -> None:
        self.settings = settings
        self.is_loaded = self.is_draining = False
        self.num_requests = self.tokens = 0
        """Waiting or being processed."""
        self.rates: dict[str, float] = {}
        """Measured tokens per second of each model."""
        self._work: Counter[str | None] = Counter()
        self._density = self._work_density = tokens_per_byte
        self._next = asyncio.Lock()
        """Held by the request that waits for room; asyncio's locks are fair."""

    async def wait_for_room(self, check: Callable[[], None], since: float) -> None:
        """Call `check`, which raises RefusedError; with `for_training`, until there is room, or to the deadline."""
        if not self.settings.for_training:
            check()
            return
        async with self._next:
            while True:
                try:
                    check()
                    return
                except RefusedError as refused:
                    is_late = time.monotonic() >= since + self.settings.answer_seconds
                    if is_late or self.is_draining or refused.status not in (429, 503):
                        raise
                await asyncio.sleep(POLL_SECONDS)

    def check_room(self, num_bytes: int = 0) -> None:
        """Raise RefusedError early, before a body of this size is read, if it would be rejected anyway."""
        if not self.is_loaded:
            raise RefusedError(503, "The models are being loaded.", 5)
        if self.is_draining:
            raise RefusedError(503, "The server is shutting down.", 5)
        if self.num_requests >= self.settings.max_requests:
            raise RefusedError(429, f"{self.num_requests} requests are waiting already.", self._retry_after())
        self._check_wait(None, *self.guess(None, num_bytes))

    @contextlib.asynccontextmanager
    async def admit(self, model: str | None, since: float, num_bytes: int) -> AsyncIterator[Reservation]:
        """Reserve room for a request that arrived at `since` (monotonic); TimeoutError at its deadline."""
        tokens, work = self.guess(model, num_bytes)
        self._check_size(tokens, GUESS_SLACK * self.settings.max_tokens, "About ")

        def check() -> None:
            self.check_room()
            self._check_wait(model, tokens, work)

        await self.wait_for_room(check, since)
        reservation = Reservation(model)
        self.resize(reservation, tokens, work)
        self.num_requests += 1
        try:
            async with asyncio.timeout(max(0.0, since + self.settings.answer_seconds - time.monotonic())):
                yield reservation
        finally:
            self.num_requests -= 1
            reservation.is_left = True
            self.release(reservation)

    def count(self, reservation: Reservation, tokens: int, work: int) -> None:
        """Replace the guess by the counted tokens; RefusedError if they exceed the limits."""
        self._check_size(tokens, self.settings.max_tokens)
        self.resize(reservation, 0, 0)
        if not self.settings.for_training:  # there, it waited by its guess, and keeps its turn
            self._check_wait(reservation.model, tokens, work)
        self.resize(reservation, tokens, work)

    def resize(self, reservation: Reservation, tokens: int, work: int) -> None:
        """Change the size of a reservation."""
        self.tokens += tokens - reservation.tokens
        self._work[reservation.model] += work - reservation.work
        reservation.tokens, reservation.work = tokens, work

    def release(self, reservation: Reservation) -> None:
        """Free a reservation, unless the model still works on it."""
        if not reservation.num_running:
            self.resize(reservation, 0, 0)

    def guess(self, model: str | None, num_bytes: int) -> tuple[int, int]:
        """(tokens, tokens to read) of a request of this size, guessed from recent requests."""
        return int(num_bytes * self._density), int(num_bytes * self._work_density) if model else 0

    def note_density(self, tokens: int, work: int, num_bytes: int) -> None:
        """Update the guess by the counted tokens of a request."""
        self._density = _mean(self._density, tokens / max(1, num_bytes))
        self._work_density = _mean(self._work_density, work / max(1, num_bytes))

    def note_rate(self, model: str, tokens: int, seconds: float, *, is_full: bool) -> None:
        """Update the speed of a model by a batch; `is_full`: the batch was at its limits."""
        if tokens <= 0:
            return
        now, before = tokens / max(seconds, 1e-6), self.rates.get(model)
        if before is None:
            self.rates[model] = now
        elif tokens < SMALL_BATCH and not is_full:  # a larger batch would hardly have taken longer
            self.rates[model] = max(before, _mean(before, now))
        else:  # falls at once and rises slowly: a rejected request is retried, a late one is lost
            self.rates[model] = min(now, _mean(before, now))

    def seconds(self, model: str | None = None, work: int = 0) -> float:
        """The expected time for all waiting work plus `work` for `model`; models of unknown speed count as 0."""
        waiting = sum(self._work[name] / rate for name, rate in list(self.rates.items()))
        rate = self.rates.get(model or "")
        return waiting + (work / rate if rate else 0.0)

    def _check_size(self, tokens: int, limit: int, roughly: str = "") -> None:
        if tokens > limit:
            raise RefusedError(
                413,
                f"{roughly}{tokens:,} tokens in one request; the limit is {self.settings.max_tokens:,}. Send it in "
                "parts, or with fewer steps beyond the context.",
            )

    def _check_wait(self, model: str | None, tokens: int, work: int) -> None:
        """Reject a request that would wait too long; if nothing waits, accept any."""
        if not self.tokens:
            return
        if self.tokens + tokens > self.settings.max_tokens:
            raise RefusedError(429, f"{self.tokens:,} tokens are waiting already.", self._retry_after())
        if model is not None and model not in self.rates and self.num_requests > MAX_UNMEASURED:
            raise RefusedError(429, "Too many requests are waiting for the model's first answer.", 1)
        if self.seconds(model, work) > SAFETY * self.settings.answer_seconds:
            raise RefusedError(429, "This request would not be answered before its deadline.", self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until half of the waiting work should be done."""
        return min(MAX_RETRY_AFTER, max(1, math.ceil(0.5 * self.seconds())))


def _mean(before: float, now: float) -> float:
    return SMOOTHING * before + (1 - SMOOTHING) * now


class Gate:
    """The ASGI middleware around all routes. Metrics are labeled by `paths`; `open_paths` need no key."""

    def __init__(
        self, app: ASGIApp, engine: ServeEngine, keys: KeyRing, paths: Collection[str], open_paths: Collection[str]
    ) -> None:
        self.app, self.engine, self.keys, self.paths, self.open_paths = app, engine, keys, paths, open_paths
        self.admission = engine.admission
        self._reading = 0
        """Bytes of all bodies that are being read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = scope["started"] = time.monotonic()
        status = CLIENT_CLOSED
        incoming = _Incoming(receive)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.admission.is_draining:  # or the client's next request would hit a closing connection
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            headers = dict(scope["headers"])
            if scope["path"] not in self.open_paths:
                self._check_caller(scope, headers)
            if scope["method"] == "POST":
                incoming.replayed = await self._read_body(headers, incoming, started)
                scope["size"] = len(incoming.replayed)
                if self.admission.settings.log_text:
                    log.warning("%s %s", scope["path"], incoming.replayed.decode("utf-8", "replace"))
            await self.app(scope, incoming, send_and_note)
        except ConnectionError:
            pass  # the client is gone
        except RefusedError as refused:
            await self._refuse(refused, incoming, send_and_note)
        except Exception as error:
            log_failure(scope["path"], error)
            if status == CLIENT_CLOSED:
                await error_response(500, UNEXPECTED)(scope, incoming, send_and_note)
        finally:
            route = scope["path"] if scope["path"] in self.paths else "other"
            seconds = time.monotonic() - started
            self.engine.metrics.requests.labels(route, status).inc()
            self.engine.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.3f s", scope["method"], route, status, seconds)

    def _check_caller(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Check the key and set `scope["owner"]`; requests of different owners share no cache."""
        scope["owner"] = owner = self.keys.owner(headers.get(b"authorization", b"").decode("latin-1"))
        if self.keys and owner is None:
            raise RefusedError(401, "A key is needed: Authorization: Bearer KEY.")
        if not self.keys and self.admission.settings.is_local:
            # Against DNS rebinding: a web page may reach this machine under a host name, but not under an address.
            try:
                name = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or "localhost"
                if name != "localhost":
                    ipaddress.ip_address(name)
            except ValueError:
                raise RefusedError(
                    403, "Use this server's address or localhost, not a name; or give it keys."
                ) from None

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive, started: float) -> bytes:
        settings = self.admission.settings
        too_long = RefusedError(413, f"The body is longer than {settings.max_body:,} bytes.")
        announced = headers.get(b"content-length", b"0")
        length = int(announced) if announced.isdigit() else 0
        if length > settings.max_body:
            self.admission.check_room()
            raise too_long
        await self.admission.wait_for_room(lambda: self.admission.check_room(length), started)
        data = bytearray()
        try:
            async with asyncio.timeout(settings.client_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ConnectionResetError
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    data += chunk
                    self._reading += len(chunk)
                    if len(data) > settings.max_body:
                        raise too_long
                    if self._reading > BODIES * settings.max_body:
                        raise RefusedError(429, "Too many long requests are being read.", 1)
        except TimeoutError:
            raise RefusedError(408, f"The body took longer than {settings.client_seconds:g} seconds.") from None
        finally:
            self._reading -= len(data)
        return bytes(data)

    async def _refuse(self, refused: RefusedError, incoming: _Incoming, send: Send) -> None:
        """Send an error. If the connection is closed after it, read the rest of the request for a while first: closing
        a connection with unread data would lose the answer."""
        response = error_response(refused.status, str(refused), refused.retry_after)
        if refused.status in (408, 413):
            response.headers["Connection"] = "close"
        reads_on = self.admission.is_draining or refused.status == 413
        await send({"type": "http.response.start", "status": refused.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": reads_on})
        if reads_on:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCARD_SECONDS):
                    while incoming.has_more:
                        await incoming()
            await send({"type": "http.response.body", "body": b""})


class _Incoming:
    """Wraps `receive`, and replays a body that was read already."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.has_more = receive, True
        self.replayed: bytes | None = None

    async def __call__(self) -> Message:
        if self.replayed is not None:
            body, self.replayed = self.replayed, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        self.has_more = message.get("more_body", False)
        return message


def log_failure(path: str, error: BaseException) -> None:
    """Log where a request failed, without the error's message, which may contain text of the request."""
    log.error("%s failed with %s:\n%s", path, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def error_response(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    """An error in the format of OpenAI and vLLM."""
    phrase = HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(
        {"error": {"message": message, "type": f"{phrase}Error", "param": None, "code": status}}, status, headers
    )
