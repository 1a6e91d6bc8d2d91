"""The server: it listens at once, loads the models in the background, and drains accepted requests on SIGTERM."""

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
from prism_prm.backends.policy import PolicySettings, StoppablePolicy
from prism_prm.console import say
from prism_prm.scorer import Scorer
from prism_prm.search.methods import SearchSettings
from prism_prm.serve.app import build_app
from prism_prm.serve.engine import ServeEngine
from prism_prm.serve.models import ServedModel, served_model
from prism_prm.serve.page_documents import ShownResults
from prism_prm.serve.searches import Searches
from prism_prm.serve.settings import KeyRing, ServeSettings

LINGER = 1.0
"""Seconds in which a drained server still answers with 503, so that clients and proxies notice. Open connections
without a request then get the same time."""
SWITCH = 0.001
"""Python's thread switch interval in seconds. With the default of 5 ms, the model thread delays the event loop."""
TRIES = 3
"""How often a request to a critic or a remote PRM is tried within the deadline."""
KEEP_ALIVE = 75
"""Seconds that an idle connection is kept open: longer than proxies keep theirs."""
NOTHING = object()


def make_server(
    prms: Mapping[str, Scorer | str | Path],
    settings: ServeSettings,
    keys: KeyRing,
    *,
    prm_options: PrmOptions | None = None,
    results: ShownResults | None = None,
    policy: PolicySettings | StoppablePolicy | None = None,
    search: SearchSettings | None = None,
) -> DrainingServer:
    """Create a server; it does not run yet."""

    def load() -> Sequence[ServedModel]:
        size = int(settings.cache_mb * 1e6)
        options = with_request_timeout(prm_options or PrmOptions(), settings.answer_seconds)
        return [served_model(name, open_prm(prm, options, name), size) for name, prm in prms.items()]

    sys.setswitchinterval(SWITCH)
    engine = ServeEngine(load, settings)
    if policy is not None:
        engine.searches = Searches(policy, settings, search or SearchSettings(), engine.metrics.registry, engine.turn)
    config = uvicorn.Config(
        build_app(engine, keys, results or ShownResults(())),
        http=with_client_timeout(settings.client_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(engine.longest_seconds),  # a client that has not read by then never will
        limit_concurrency=_max_connections(),
    )
    return DrainingServer(config, engine)


def with_request_timeout(options: PrmOptions, deadline: float) -> PrmOptions:
    """Limit timeouts and retries, so that no upstream server blocks the model thread longer than clients wait."""
    seconds, retries = deadline / TRIES, TRIES - 1
    critic = options.critic
    return replace(
        options,
        prm_timeout=min(options.prm_timeout, seconds),
        prm_retries=min(options.prm_retries, retries),
        critic=replace(critic, timeout=min(critic.timeout, seconds), retries=min(critic.retries, retries)),
    )


def _max_connections() -> int:
    """As many connections as the system allows open files, minus some for other files."""
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
    """A server that finishes accepted requests on the first signal, and exits at once on the second."""

    def __init__(self, config: uvicorn.Config, engine: ServeEngine) -> None:
        super().__init__(config)
        self.engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen and to load the models."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        await self.engine.loaded()
        if self.engine.failure is not None:
            self.should_exit = True
        else:
            searches = self.engine.searches
            cards = [] if searches is None else searches.cards()
            say(f"Ready: {', '.join([*self.engine.models, *(card['id'] for card in cards)])}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Replaces uvicorn's handler, which would stop listening at once and raise the signal again at the end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)
        else:
            self.should_exit = True

    def stop(self) -> None:
        """Finish accepted requests, then exit; the second call exits at once."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._drain())
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        say("Finishing accepted requests; a second signal exits at once")
        await self.engine.drain()
        await asyncio.sleep(LINGER)
        self.should_exit = True


def with_client_timeout(seconds: float) -> type[H11Protocol]:
    """Uvicorn's protocol with a timeout for sending the head of a request, and for reading part of a response.

    It is a subclass because uvicorn has no such timeouts, and ASGI middleware sees no connection before its first
    request or after a response.
    """

    class TimedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None
        unread = 0
        """Bytes that the client had not read at the last check."""
        awaited: object = NOTHING
        """The request before the head that was awaited at the last check."""
        is_last = False
        """Whether to close the connection after the next response."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.check_client()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(exc)

        def check_client(self) -> None:
            """Abort if the client has read nothing since the last check; close if a head is still awaited.

            A head is awaited from the start of a connection to its first request, and while a head, or the rest of a
            rejected body, is being sent.
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
            """Keep a connection open for a while if its first request may be on its way."""
            if self.cycle:
                super().shutdown()
            else:
                self.is_last = True
                self.loop.call_later(LINGER, self.close_unused)

        def close_unused(self) -> None:
            if not self.cycle:
                self.transport.close()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.is_last:
                super().shutdown()

    return TimedProtocol
