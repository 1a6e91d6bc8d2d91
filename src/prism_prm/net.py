"""HTTP requests to model servers: timeouts, retries with backoff, and clear errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from prism_prm.config import Natural, NotNegative, Positive, check
from prism_prm.errors import ConfigError, PrismError

log = logging.getLogger(__name__)

T = TypeVar("T")

RESUME = " Check the server and rerun the same command to resume."
"""Ends the error of a server that failed too often; it is for commands."""
POLL_SECONDS = 0.1
SHOWN = 200
"""Characters of an unexpected answer that an error shows."""
LONGEST_WAIT = 60.0
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_CLOSE = 60.0
MOST_BYTES = 64 * 2**20
"""The size limit of one answer; a server that sends more is broken."""
BUSY = (408, 425, 429)
"""Statuses below 500 that are retried; all from 500 on are."""
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|maximum (model|input|sequence) length|(prompt|input) is too long"
    r"|too many (input )?tokens",
    re.IGNORECASE,
)
"""How vLLM, SGLang, llama.cpp and OpenAI report that a text does not fit."""


class ServerError(PrismError):
    """A server that cannot be reached, or fails a request."""

    def __init__(self, message: str, *, status: int = 502) -> None:
        super().__init__(message)
        self.status = status
        """The status a gateway would return: 502 if the server is down or broken, 503 if it is busy, 504 if slow."""


class TooMuchError(ServerError):
    """A request that is too large or too slow for the server."""


class TooLongError(TooMuchError):
    """A request with a text that is too long for the server or its model."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure that a retry may fix."""

    problem: str
    status: int = 502
    """As in ServerError."""
    wait: float = 0.0
    """Seconds to wait, from Retry-After."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for a server, and how often to retry."""

    timeout: Positive = 300.0
    """Seconds to wait for one complete answer from the server."""
    retries: Natural = 5
    """How often a failed request is retried. Waits that a busy server asks for count only after the timeout."""
    backoff: NotNegative = 1.0
    """Seconds before the first retry. Every further wait is twice as long."""

    def __post_init__(self) -> None:
        check(self)


class Server:
    """An API at an address; its key is read from the environment variable `key_variable`.

    Requests run in an event loop in a separate thread. So it also works where a loop is already running (in a
    notebook), and a request that hangs blocks neither errors nor the end of the program.
    """

    def __init__(self, url: str, retry: RetryPolicy, concurrency: int, *, key_variable: str) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency = {concurrency} must be 1 or more")
        self.retry = retry
        self.url = server_address(url)
        self.shown = _without_secrets(self.url)
        self.key_variable = key_variable
        self.num_retries = 0
        """How many requests were retried."""
        self._last_problem = ""
        # Kept here and in the client only, so that no record or log can contain it.
        self._key = os.environ.get(key_variable, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ServerError(f"the key in ${key_variable} contains a line break or another invalid character")
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(None, connect=min(SECONDS_TO_CONNECT, retry.timeout)),
            limits=httpx.Limits(max_connections=concurrency),
            verify=self.url.scheme == "https",  # loading all certificates is slow, and plain HTTP needs none
        )
        self._turns = asyncio.Semaphore(concurrency)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="requests", daemon=True).start()

    def close(self) -> None:
        """Close all connections; logs how many requests were retried."""
        if self.num_retries:
            log.warning(
                "%s: requests retried: %d, the last after: %s", self.shown, self.num_retries, self._last_problem
            )
        with contextlib.suppress(TimeoutError):  # all answers have arrived; the end of the process closes the rest
            asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(SECONDS_TO_CLOSE)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def together(self, work: Sequence[Coroutine[Any, Any, T]], check: Callable[[], None] | None = None) -> list[T]:
        """Run coroutines concurrently; returns their results in order. The first error cancels the others.

        `check` is called while they run; what it raises cancels them, too.
        """

        async def gather() -> list[T]:
            tasks = [asyncio.ensure_future(one) for one in work]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

        future = asyncio.run_coroutine_threadsafe(gather(), self._loop)
        try:
            while check is not None and not concurrent.futures.wait([future], POLL_SECONDS).done:
                check()
            return future.result()
        finally:
            future.cancel()

    async def ask(
        self,
        method: str,
        path: str,
        read: Callable[[dict[str, Any]], T],
        body: dict[str, Any] | None = None,
        *,
        can_split: bool = False,
    ) -> T:
        """Send a request and return `read(answer)`; `read` raises ValueError if the JSON object makes no sense.

        With `can_split`, a request that times out raises TooMuchError at once instead of being retried.
        """
        where = f"{method} {self.shown}{path}"
        wait = self.retry.backoff
        left = self.retry.retries
        tries = 0
        honored_until: float | None = None
        while True:
            async with self._turns:
                answer = await self._once(method, path, body, where, can_split)
            tries += 1
            if not isinstance(answer, _Failure):
                try:
                    return read(answer)
                except ValueError as error:
                    answer = _Failure(self._without_key(str(error)))
            # A busy server that sends Retry-After is healthy, so for a while its waits use up no retries.
            now = asyncio.get_running_loop().time()
            honored_until = now + self.retry.timeout if honored_until is None else honored_until
            honors_retry_after = answer.status == 503 and answer.wait > 0 and now < honored_until
            if not left and not honors_retry_after:
                raise ServerError(f"{where}: {answer.problem} ({tries} tries).{RESUME}", status=answer.status)
            self.num_retries += 1
            self._last_problem = answer.problem
            # Jitter, so that many requests do not all come back at once.
            await asyncio.sleep(min(LONGEST_WAIT, max(answer.wait, wait * random.uniform(0.75, 1.25))))
            if not honors_retry_after:
                left, wait = left - 1, 2 * wait

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, where: str, can_split: bool
    ) -> dict[str, Any] | _Failure:
        """The answer, or why it failed; raises if a retry is pointless."""
        seconds = self.retry.timeout
        try:
            # One deadline for the whole answer: a server that sends a byte now and then must not block us forever.
            async with (
                asyncio.timeout(seconds),
                self._client.stream(method, f"{self.url}{path}", json=body) as response,
            ):
                data = bytearray()
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MOST_BYTES:
                        return _Failure(f"the answer is longer than {MOST_BYTES:,} bytes")
        except httpx.ConnectTimeout:
            return _Failure(f"no connection within {min(SECONDS_TO_CONNECT, seconds):g} seconds", 504)
        except TimeoutError:
            return _Failure(f"no answer within {seconds:g} seconds", 504)
        except httpx.HTTPError as error:
            return _Failure(f"no connection ({type(error).__name__}: {self._without_key(str(error))})")
        # Some gateways echo the key.
        status, body_text = response.status_code, self._without_key(data.decode("utf-8", "replace"))
        text = body_text if len(body_text) <= SHOWN else body_text[:SHOWN] + "…"
        if status == 504 and can_split:
            raise TooMuchError(f"{where}: status {status}: {text}", status=504)
        if status in BUSY or status >= 500:
            is_busy = status in BUSY or status == 503
            try:
                wait = max(0.0, float(response.headers.get("Retry-After", "0")))
            except ValueError:
                wait = 0.0
            return _Failure(f"status {status}: {text}", 503 if is_busy else 502, wait)
        if status in (401, 403):
            raise ServerError(f"{where}: status {status}; is the key in ${self.key_variable} correct for this server?")
        if response.has_redirect_location:
            # Not followed: the key is only for the server that the user named.
            target = self._without_key(_without_secrets(response.url.join(response.headers["Location"])))
            raise ServerError(f"{where}: status {status}, a redirect to {target}; give that address instead")
        if status == 413 or (status == 400 and _TOO_LONG.search(body_text)):
            raise TooLongError(f"{where}: status {status}: {text}")
        if status >= 400:
            raise ServerError(f"{where}: status {status}: {text}")
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deep
            answer = None
        if not isinstance(answer, dict):
            return _Failure(f"the answer is not a JSON object: {text!r}")
        return answer

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def server_address(url: str) -> httpx.URL:
    """Parse the URL of a server; ServerError if it is not one."""
    try:
        address = httpx.URL(url.rstrip("/"))
    except (httpx.InvalidURL, ValueError, TypeError):  # httpx raises all three for ports that are not numbers
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host or not 0 < (address.port or 80) < 2**16:
        raise ServerError(f"{url!r} is not the address of a server; expected e.g. http://localhost:8000/v1")
    return address


def _without_secrets(url: httpx.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None))
