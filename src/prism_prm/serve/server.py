"""The running server: listens at once, loads the models meanwhile, and on SIGTERM finishes what was accepted."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from prism_prm.backends.load_prm import open_prm
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.console import say
from prism_prm.scorer import Scorer
from prism_prm.serve.app import build_app
from prism_prm.serve.engine import ServeEngine
from prism_prm.serve.models import ServedModel, served_model
from prism_prm.serve.page_documents import ShownResults
from prism_prm.serve.settings import KeyRing, ServeSettings

LINGER = 1.0
"""Seconds in which a drained server still answers with 503, so that clients and proxies learn that it ends. Open
connections that have asked nothing yet then get as long."""
SWITCH = 0.001
"""Seconds that the model thread's Python code may keep the event loop from running; Python's own 5 ms add up."""
TRIES = 3
"""How often a critic or a remote PRM is asked before its request fails, all within the deadline."""
KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than proxies keep theirs."""
NOTHING = object()


def make_server(
    prms: Mapping[str, Scorer | str | Path],
    settings: ServeSettings,
    keys: KeyRing,
    *,
    prm_options: PrmOptions | None = None,
    results: ShownResults | None = None,
) -> DrainingServer:
    """A server that is not running yet."""

    def load() -> Sequence[ServedModel]:
        size = int(settings.cache_mb * 1e6)
        how = with_request_timeout(prm_options or PrmOptions(), settings.deadline)
        return [served_model(name, open_prm(prm, how, name), size) for name, prm in prms.items()]

    sys.setswitchinterval(SWITCH)
    engine = ServeEngine(load, settings)
    config = uvicorn.Config(
        build_app(engine, keys, results or ShownResults(())),
        http=with_client_timeout(settings.client_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.deadline),  # who has not read an answer by then never will
        limit_concurrency=_most_connections(),
    )
    return DrainingServer(config, engine)


def with_request_timeout(options: PrmOptions, deadline: float) -> PrmOptions:
    """Options such that no server behind ours holds the model thread longer than our clients wait."""
    seconds, retries = deadline / TRIES, TRIES - 1
    critic = options.critic
    return replace(
        options,
        prm_timeout=min(options.prm_timeout, seconds),
        prm_retries=min(options.prm_retries, retries),
        critic=replace(critic, timeout=min(critic.timeout, seconds), retries=min(critic.retries, retries)),
    )


def _most_connections() -> int:
    """As many connections as the system allows files, less some for other files."""
    least, most = 256, 8192
    try:
        import resource
    except ImportError:  # Windows
        return least
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(least, wanted - least)


class DrainingServer(uvicorn.Server):
    """A server that on its first signal finishes what was accepted, and on its second ends at once."""

    def __init__(self, config: uvicorn.Config, engine: ServeEngine) -> None:
        super().__init__(config)
        self.engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and to load."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        await self.engine.loaded()
        if self.engine.failure is not None:
            self.should_exit = True
        else:
            say(f"Ready: {', '.join(self.engine.models)}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Uvicorn's own would stop listening at once, and raise the signal again in the end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)
        else:
            self.should_exit = True

    def stop(self) -> None:
        """Finish what was accepted, then end; called again, end at once."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._drain())
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        say("Finishing accepted requests; a second signal ends at once")
        await self.engine.drain()
        await asyncio.sleep(LINGER)
        self.should_exit = True


def with_client_timeout(seconds: float) -> type[H11Protocol]:
    """Uvicorn's protocol, in which a client has this long for the head of a request, and to read some of an answer.

    A subclass, since uvicorn has no limit of this kind, and no ASGI application sees a connection before its first
    request or after an answer.
    """

    class TimedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None
        unread = 0
        """Bytes that waited for the client at the last check."""
        awaited: object = NOTHING
        """The request that came before the head that was awaited at the last check."""
        is_last = False
        """Whether the server ends after the next answer."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.check_client()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(exc)

        def check_client(self) -> None:
            """Cut a connection from which nothing was read, and close one whose head is awaited, since the last check.

            A head is awaited from a connection's begin to its first request, and while a head, or the rest of a body
            that was refused, is on its way.
            """
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self.unread:
                self.transport.abort()  # closing would wait for the client
                return
            is_idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
            is_awaited = self.cycle is None or (self.cycle.response_complete and not is_idle)
            if is_awaited and self.cycle is self.awaited:
                self.transport.close()
            self.unread, self.awaited = unread, self.cycle if is_awaited else NOTHING
            self.timer = self.loop.call_later(seconds, self.check_client)

        def shutdown(self) -> None:
            """Leave a connection whose first request may be on its way open for a while: closing would cut it."""
            if self.cycle:
                super().shutdown()
            else:
                self.is_last = True
                self.loop.call_later(LINGER, self.close_unasked)

        def close_unasked(self) -> None:
            if not self.cycle:
                self.transport.close()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.is_last:
                super().shutdown()

    return TimedProtocol
