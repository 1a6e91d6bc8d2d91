"""Requests to a server that may be slow, busy, broken or gone: time-outs, retries with back-off, plain errors."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from prism_prm.policies.base import PolicyError

T = TypeVar("T")

API_KEY = "OPENAI_API_KEY"
SHOWN = 200
"""Characters of a strange answer that an error shows."""
LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to put up with a server."""

    timeout: float = 300.0
    """Seconds for one answer."""
    retries: int = 5
    """How often a request that failed is sent again."""
    backoff: float = 1.0
    """Seconds before the first retry; twice as many before each further one."""


class Server:
    """The address of an API.

    Requests run in an event loop in a thread of its own, so that this also works where another loop is running (in a
    notebook), and a request that hangs delays neither an error nor the end of the program.
    """

    def __init__(self, url: str, patience: Patience, concurrency: int) -> None:
        if not url.startswith(("http://", "https://")):
            raise PolicyError(f"{url!r} is not the address of a server; expected e.g. openai:http://localhost:8000/v1")
        self.patience = patience
        self.url = httpx.URL(url.rstrip("/"))
        self.shown = str(self.url.copy_with(username=None, password=None, query=None))
        """The address without anything secret in it."""
        # Read here and given to the client alone, so that no record, message or log of ours can hold it.
        key = os.environ.get(API_KEY)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(patience.timeout, connect=min(10.0, patience.timeout)),
            limits=httpx.Limits(max_connections=concurrency),
        )
        self._turns = asyncio.Semaphore(concurrency)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="policy", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(LONGEST_WAIT)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def together(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all, in order; the first error ends the others."""
        future = asyncio.run_coroutine_threadsafe(_gather(work), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    async def ask(
        self, method: str, path: str, read: Callable[[dict[str, Any]], T], body: dict[str, Any] | None = None
    ) -> T:
        """What `read` makes of the JSON object that answers; it raises ValueError where the answer is nonsense."""
        where = f"{method} {self.shown}{path}"
        wait = self.patience.backoff
        for left in range(self.patience.retries, -1, -1):
            async with self._turns:
                answer, problem, asked_wait = await self._once(method, path, body, where)
            if answer is not None:
                try:
                    return read(answer)
                except ValueError as error:
                    problem = str(error)
            if left:
                # A little disorder, so that many requests do not all come back at once.
                await asyncio.sleep(min(LONGEST_WAIT, max(asked_wait, wait * random.uniform(0.75, 1.25))))
                wait *= 2
        raise PolicyError(
            f"{where}: {problem} ({self.patience.retries + 1} tries). Problems that are done are kept: see to the "
            "server and run the same command again."
        )

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, where: str
    ) -> tuple[dict[str, Any] | None, str, float]:
        """(answer, or what was wrong with it, seconds the server asks us to wait); an error if trying again is idle."""
        try:
            response = await self._client.request(method, f"{self.url}{path}", json=body)
        except httpx.TimeoutException:
            return None, f"no answer within {self.patience.timeout:g} seconds", 0.0
        except httpx.HTTPError as error:
            return None, f"no connection ({type(error).__name__}: {error})", 0.0
        if response.status_code == 429 or response.status_code >= 500:
            return None, f"status {response.status_code}: {_shorten(response.text)}", _retry_after(response)
        if response.status_code in (401, 403):
            raise PolicyError(
                f"{where}: status {response.status_code}; is the key in ${API_KEY} right for this server?"
            )
        if response.status_code >= 400:
            raise PolicyError(f"{where}: status {response.status_code}: {_shorten(response.text)}")
        try:
            answer = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict):
            return None, f"the answer is no JSON object: {_shorten(response.text)!r}", 0.0
        return answer, "", 0.0


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0
