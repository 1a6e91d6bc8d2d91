"""Admission: whether a request is taken, refused for now (429, 503) or refused for good (401, 403, 408, 413).

`Gate` stands before every route: it checks the caller, reads the body within its limits, and counts requests.
`Admission` knows what waits and how fast each model works. It accepts or refuses at once, and what it accepts is
answered: it refuses what exceeds the queue in requests or tokens, or would miss its deadline at the present rate.
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
from collections.abc import AsyncIterator, Collection
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
"""Bodies of the largest size that may be read at the same time; of smaller ones, more."""
UNEXPECTED = "An unexpected error; the server's log says where."
HUNG_UP = 499
"""The status that is counted for a client that did not wait."""
FAREWELL = 2.0
"""Seconds in which a client may send the rest of a refused request before its connection is closed."""
LONGEST_RETRY = 60
SAFETY = 0.5
"""The fraction of the deadline that a request may be expected to wait; the rest is for errors of the estimate."""
UNKNOWN = 8
"""Requests that may wait while nobody knows how fast their model is."""
FAR = 8
"""How many times too large a request must look by its bytes to be refused before it is read."""
MEMORY = 0.8
"""Weight of the past in moving averages."""
DENSITY = 0.25
"""Tokens per byte of a request, before one was read."""
SMALL = 512
"""Below so many tokens, a batch's fixed costs outweigh them."""


class RefusedError(Exception):
    """A request that the server does not take now (429, 503) or never (413)."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(eq=False)
class Reservation:
    """What one request takes of the queue: a guess by its bytes until its tokens are counted."""

    model: str | None
    """None if no model is asked."""
    tokens: int = 0
    work: int = 0
    """Those of the tokens that the model has to read; others are in its cache."""
    num_running: int = 0
    """How many of its items are in the batch that is being scored."""
    is_left: bool = False
    """Whether nobody waits for it any more."""


class Admission:
    """What waits for the models, and how long it will take at the rate of each."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.is_loaded = self.is_draining = False
        self.num_requests = self.tokens = 0
        """How many are waiting or being worked on."""
        self.rates: dict[str, float] = {}
        """Tokens per second of each model that has worked."""
        self._work: Counter[str | None] = Counter()
        self._density = self._work_density = DENSITY

    def check_room(self, num_bytes: int = 0) -> None:
        """Refuse what would be refused anyway before a body of this size is read, since reading takes time, too."""
        if not self.is_loaded:
            raise RefusedError(503, "The models are being loaded.", 5)
        if self.is_draining:
            raise RefusedError(503, "The server is shutting down.", 5)
        if self.num_requests >= self.settings.max_requests:
            raise RefusedError(429, f"{self.num_requests} requests are waiting already.", self._retry_after())
        self._check_wait(None, *self.guess(None, num_bytes))

    @contextlib.asynccontextmanager
    async def admit(self, model: str | None, since: float, num_bytes: int) -> AsyncIterator[Reservation]:
        """A reservation for a request that came at `since` (monotonic); TimeoutError at its deadline."""
        self.check_room()
        tokens, work = self.guess(model, num_bytes)
        self._check_size(tokens, FAR * self.settings.max_tokens, "About ")
        self._check_wait(model, tokens, work)
        reservation = Reservation(model)
        self.resize(reservation, tokens, work)
        self.num_requests += 1
        try:
            async with asyncio.timeout(max(0.0, since + self.settings.deadline - time.monotonic())):
                yield reservation
        finally:
            self.num_requests -= 1
            reservation.is_left = True
            self.release(reservation)

    def count(self, reservation: Reservation, tokens: int, work: int) -> None:
        """Replace the guess by what was counted, or refuse it."""
        self._check_size(tokens, self.settings.max_tokens)
        self.resize(reservation, 0, 0)
        self._check_wait(reservation.model, tokens, work)
        self.resize(reservation, tokens, work)

    def resize(self, reservation: Reservation, tokens: int, work: int) -> None:
        """Change what a request takes."""
        self.tokens += tokens - reservation.tokens
        self._work[reservation.model] += work - reservation.work
        reservation.tokens, reservation.work = tokens, work

    def release(self, reservation: Reservation) -> None:
        """Free what a request took, unless the model still works on it."""
        if not reservation.num_running:
            self.resize(reservation, 0, 0)

    def guess(self, model: str | None, num_bytes: int) -> tuple[int, int]:
        """Tokens, and those to read, of a request of so many bytes, if it is like the last ones."""
        return int(num_bytes * self._density), int(num_bytes * self._work_density) if model else 0

    def note_density(self, tokens: int, work: int, num_bytes: int) -> None:
        """What a request of so many bytes has turned out to be."""
        self._density = _mean(self._density, tokens / max(1, num_bytes))
        self._work_density = _mean(self._work_density, work / max(1, num_bytes))

    def note_rate(self, model: str, tokens: int, seconds: float, *, is_full: bool) -> None:
        """How long a batch took, and whether more would have exceeded a batch's limits."""
        if tokens <= 0:
            return
        now, before = tokens / max(seconds, 1e-6), self.rates.get(model)
        if before is None:
            self.rates[model] = now
        elif tokens < SMALL and not is_full:  # more would have taken hardly longer
            self.rates[model] = max(before, _mean(before, now))
        else:  # it falls at once and rises slowly: a refused request comes again, a late one is lost
            self.rates[model] = min(now, _mean(before, now))

    def seconds(self, model: str | None = None, work: int = 0) -> float:
        """How long what waits will take, and more work for a model; a model of unknown rate counts nothing."""
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
        """Refuse what would have to wait too long; if nothing waits, anything may come."""
        if not self.tokens:
            return
        if self.tokens + tokens > self.settings.max_tokens:
            raise RefusedError(429, f"{self.tokens:,} tokens are waiting already.", self._retry_after())
        if model is not None and model not in self.rates and self.num_requests > UNKNOWN:
            raise RefusedError(429, "Too many requests are waiting for the model's first answer.", 1)
        if self.seconds(model, work) > SAFETY * self.settings.deadline:
            raise RefusedError(429, "This request would not be answered before its deadline.", self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until half of what is waiting should be done."""
        return min(LONGEST_RETRY, max(1, math.ceil(0.5 * self.seconds())))


def _mean(before: float, now: float) -> float:
    return MEMORY * before + (1 - MEMORY) * now


class Gate:
    """The ASGI application around all routes. Of `paths`, metrics have the name; `open_paths` need no key."""

    def __init__(
        self, app: ASGIApp, engine: ServeEngine, keys: KeyRing, paths: Collection[str], open_paths: Collection[str]
    ) -> None:
        self.app, self.engine, self.keys, self.paths, self.open_paths = app, engine, keys, paths, open_paths
        self.admission = engine.admission
        self._reading = 0
        """Bytes of bodies that are being read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = scope["started"] = time.monotonic()
        status = HUNG_UP
        incoming = _Incoming(receive)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.admission.is_draining:  # or the client's next request would meet a closing connection
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            headers = dict(scope["headers"])
            if scope["path"] not in self.open_paths:
                self._check_caller(scope, headers)
            if scope["method"] == "POST":
                incoming.replayed = await self._read_body(headers, incoming)
                scope["size"] = len(incoming.replayed)
                if self.admission.settings.log_text:
                    log.warning("%s %s", scope["path"], incoming.replayed.decode("utf-8", "replace"))
            await self.app(scope, incoming, noted)
        except ConnectionError:
            pass  # the client has hung up, so there is no one to answer
        except RefusedError as refused:
            await self._refuse(refused, incoming, noted)
        except Exception as error:
            log_failure(scope["path"], error)
            if status == HUNG_UP:
                await error_response(500, UNEXPECTED)(scope, incoming, noted)
        finally:
            route = scope["path"] if scope["path"] in self.paths else "other"
            seconds = time.monotonic() - started
            self.engine.metrics.requests.labels(route, status).inc()
            self.engine.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.3f s", scope["method"], route, status, seconds)

    def _check_caller(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Note the caller as `scope["owner"]`: requests of different owners share nothing."""
        scope["owner"] = owner = self.keys.owner(headers.get(b"authorization", b"").decode("latin-1"))
        if self.keys and owner is None:
            raise RefusedError(401, "A key is needed: Authorization: Bearer KEY.")
        if not self.keys and self.admission.settings.is_local:
            # A page of the web may reach this machine under a name of its own, but not under an address.
            try:
                name = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or "localhost"
                if name != "localhost":
                    ipaddress.ip_address(name)
            except ValueError:
                raise RefusedError(
                    403, "Use this server's address or localhost, not a name; or give it keys."
                ) from None

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        settings = self.admission.settings
        too_long = RefusedError(413, f"The body is longer than {settings.max_body:,} bytes.")
        announced = headers.get(b"content-length", b"0")
        length = int(announced) if announced.isdigit() else 0
        self.admission.check_room(length)
        if length > settings.max_body:
            raise too_long
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
        """Answer with an error. If its connection ends with it, first read the rest of the request for a while: closing
        a connection with unread data would cut off the answer."""
        response = error_response(refused.status, str(refused), refused.retry_after)
        if refused.status in (408, 413):
            response.headers["Connection"] = "close"
        reads_on = self.admission.is_draining or refused.status == 413
        await send({"type": "http.response.start", "status": refused.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": reads_on})
        if reads_on:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    while incoming.has_more:
                        await incoming()
            await send({"type": "http.response.body", "body": b""})


class _Incoming:
    """What a client sends, with a body that was read put back."""

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
    """Log where something failed, without the error's message, which may hold a request's text."""
    log.error("%s failed with %s:\n%s", path, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def error_response(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    """An error as OpenAI's and vLLM's clients read it."""
    phrase = HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(
        {"error": {"message": message, "type": f"{phrase}Error", "param": None, "code": status}}, status, headers
    )
