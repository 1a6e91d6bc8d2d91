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
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from prism_prm.console import say
from prism_prm.critics.load import critic_settings
from prism_prm.page.document import Results
from prism_prm.protocol import Scorer
from prism_prm.scorer.load import open_prm
from prism_prm.scorer.settings import LoadSettings
from prism_prm.serve.app import build_app
from prism_prm.serve.engine import Engine
from prism_prm.serve.keys import KeyRing
from prism_prm.serve.models import ServedModel
from prism_prm.serve.page import Shelf
from prism_prm.serve.settings import ServeSettings

LINGER = 1.0
"""Seconds in which a server that is done still answers with 503: clients and proxies learn that it goes. Then as long
for connections that are open and have asked nothing yet."""
SWITCH = 0.001
"""Seconds that the model thread's Python code may keep the event loop from running; Python's own 5 ms add up."""
TRIES = 3
"""How often a critic or a remote PRM is asked before its request fails; all within the deadline."""
KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than proxies keep theirs."""


def make_server(
    prms: Mapping[str, Scorer | str | Path],
    settings: ServeSettings,
    keys: KeyRing,
    *,
    loading: Mapping[str, Any] | None = None,
    results: Results | None = None,
) -> DrainingServer:
    """A server that is not running yet."""

    def load() -> Sequence[ServedModel]:
        size = int(settings.cache_mb * 1e6)
        how = _hurry_servers(loading, settings.deadline)
        return [ServedModel(name, open_prm(prm, how, name), size) for name, prm in prms.items()]

    sys.setswitchinterval(SWITCH)
    engine = Engine(load, settings)
    config = uvicorn.Config(
        build_app(engine, keys, Shelf(results or Results(()))),
        http=_hurried(settings.client_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.deadline),  # whoever has not read an answer by then never will
        limit_concurrency=_most_connections(),
    )
    return DrainingServer(config, engine)


def _hurry_servers(loading: Mapping[str, Any] | None, deadline: float) -> dict[str, Any]:
    """Options of `load_prm` so that no server behind ours holds the model thread much longer than our clients wait."""
    given = dict(loading or {})
    seconds, retries = deadline / TRIES, TRIES - 1
    known = LoadSettings()
    critic = critic_settings(given.get("critic"))
    return given | {
        "prm_timeout": min(given.get("prm_timeout", known.prm_timeout), seconds),
        "prm_retries": min(given.get("prm_retries", known.prm_retries), retries),
        "critic": replace(critic, timeout=min(critic.timeout, seconds), retries=min(critic.retries, retries)),
    }


def _most_connections() -> int:
    """How many connections there may be: as many as the system allows files, within reason, and some less."""
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

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
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


def _hurried(seconds: float) -> type[H11Protocol]:
    """Uvicorn's protocol, which has no limits of its own: a client has this long for the head of a request, and to read
    some of an answer.
    """

    class Hurried(H11Protocol):
        head_timer: asyncio.TimerHandle | None = None
        is_last = False
        """Whether the server ends after the next answer."""
        read_timer: asyncio.TimerHandle | None = None
        unread = 0
        """Bytes that waited for the client when it was last looked at."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_head()
            self._watch_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            if self.read_timer is not None:
                self.read_timer.cancel()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            """To close a connection whose first request is on its way would cut it."""
            if not self.cycle:
                self.is_last = True
                self._stop_watching()
                self.head_timer = self.loop.call_later(LINGER, self._give_up)
            else:
                super().shutdown()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.is_last:
                super().shutdown()

        def _watch_head(self) -> None:
            """A timer runs from a connection's begin to its first request, and while a head, or what is left of a
            body that was refused, is on its way."""
            is_answered = self.cycle is not None and self.cycle.response_complete
            is_idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
            if self.cycle is not None and (not is_answered or is_idle):
                self._stop_watching()
            elif self.head_timer is None:
                self.head_timer = self.loop.call_later(seconds, self._give_up)

        def _watch_reading(self) -> None:
            """Cut a connection on which exactly as much still waits as before: closing it would wait for the client."""
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self.unread:
                self.transport.abort()
                return
            self.unread = unread
            self.read_timer = self.loop.call_later(seconds, self._watch_reading)

        def _stop_watching(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
            self.head_timer = None

        def _give_up(self) -> None:
            self.head_timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Hurried
