"""What stands before every route: keys, room in the queue, the size and the speed of a body, and counting."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import Any

from prism_prm.serve import page
from prism_prm.serve.engine import Engine, RefusedError
from prism_prm.serve.keys import KeyRing

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/health", *page.OPEN})
"""Paths that need no key."""
BODIES = 32
"""Bodies of the largest size that may be read at the same time; of smaller ones, more."""
UNEXPECTED = "An unexpected error; the server's log says where."
HUNG_UP = 499
"""What is counted for a client that did not wait."""
FAREWELL = 2.0
"""Seconds in which a client may send the rest of a refused request before its connection is closed."""


class Gate:
    """An ASGI application around another."""

    def __init__(self, app: App, engine: Engine, keys: KeyRing, paths: Collection[str]) -> None:
        self.app, self.engine, self.keys = app, engine, keys
        self.paths = frozenset(paths)
        """Those that are counted by name."""
        self._reading = 0
        """Bytes of bodies that are being read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = scope["started"] = time.monotonic()
        status = HUNG_UP
        incoming = _Incoming(receive)

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.engine.is_draining:  # or the client's next request would meet a connection that is closing
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._pass(scope, incoming, noted)
        except ConnectionError:
            pass  # the client has hung up, so there is no one to answer
        except RefusedError as refused:
            rest = incoming if self.engine.is_draining or refused.status == 413 else None
            await answer_error(noted, refused.status, str(refused), retry_after=refused.retry_after, rest=rest)
        except Exception as error:
            log_failure(scope["path"], error)
            if status == HUNG_UP:
                await answer_error(noted, 500, UNEXPECTED)
        finally:
            route = scope["path"] if scope["path"] in self.paths else "other"
            self.engine.metrics.requests.labels(route, status).inc()
            seconds = time.monotonic() - started
            self.engine.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.3f s", scope["method"], route, status, seconds)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self._check_caller(scope, headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        self.engine.check_room(int(length) if length.isdigit() else 0)
        body = await self._body(headers, receive)
        if self.engine.settings.log_text:
            log.warning("%s %s", scope["path"], body.decode("utf-8", "replace"))
        scope["size"] = len(body)
        await self.app(scope, _replay(body, receive), send)

    def _check_caller(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Who it is, as `scope["owner"]`: requests of different owners share nothing."""
        if scope["path"] in OPEN:
            return
        scope["owner"] = owner = self.keys.owner(headers.get(b"authorization", b"").decode("latin-1"))
        if self.keys and owner is None:
            raise RefusedError(401, "A key is needed: Authorization: Bearer KEY.")
        if not self.keys and self.engine.settings.is_local and not _is_address(headers.get(b"host", b"")):
            # A page of the web may reach this machine under a name of its own, but not under an address.
            raise RefusedError(403, "Use this server's address or localhost, not a name; or give it keys.")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        settings = self.engine.settings
        too_long = RefusedError(413, f"The body is longer than {settings.max_body:,} bytes.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > settings.max_body:
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


class _Incoming:
    """What a client sends, and whether more of the request's body is to come."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self.has_more = receive, True

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self.has_more = message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read the rest for a while: to close a connection with unread data cuts it, and our answer with it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                while self.has_more:
                    await self()


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever else comes from the client: that it hangs up."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _is_address(host: bytes) -> bool:
    name = host.decode("latin-1")
    name = name.partition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0]
    if name.lower() in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def log_failure(path: str, error: BaseException) -> None:
    """Where something failed; without the error's message, which may hold a request's text."""
    log.error("%s failed with %s:\n%s", path, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as OpenAI's and vLLM's clients read it."""
    phrase = HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")
    return {"error": {"message": message, "type": f"{phrase}Error", "param": None, "code": status}}


async def answer_error(
    send: Send, status: int, message: str, *, retry_after: int | None = None, rest: _Incoming | None = None
) -> None:
    """Send an error; with `rest`, end the answer only after the request, since the connection ends with it."""
    data = json.dumps(error_body(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data, "more_body": rest is not None})
    if rest is not None:
        await rest.discard()
        await send({"type": "http.response.body", "body": b""})
