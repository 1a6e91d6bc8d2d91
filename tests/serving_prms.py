"""Real servers of ours on loopback ports: in a thread, or in a process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
from prometheus_client import generate_latest

from prism_prm import example_folder
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.search.methods import SearchSettings
from prism_prm.serve.page_documents import ShownResults
from prism_prm.serve.server import DrainingServer, make_server
from prism_prm.serve.settings import KeyRing, ServeSettings
from prism_process import Process
from waiting import until


class Running:
    """A server that runs, and a client of it."""

    def __init__(self, server: DrainingServer, url: str, client: httpx.Client) -> None:
        self.server, self.url, self.client = server, url, client

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more)

    def steps(self, *items: Any, model: str | None = None, **more: Any) -> dict[str, Any]:
        answer = self.post("/v1/steps", {"items": list(items)} | ({"model": model} if model else {}), **more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def metric(self, line: str) -> float:
        """The value in a line of /metrics that begins so; 0 without one."""
        lines = generate_latest(self.server.engine.metrics.registry).decode().splitlines()
        return next((float(found.rpartition(" ")[2]) for found in lines if found.startswith(f"{line} ")), 0.0)


@contextlib.contextmanager
def running(
    prms: Mapping[str, Any],
    keys: tuple[str, ...] = (),
    *,
    wait: bool = True,
    results: Sequence[str] = (),
    prm_options: PrmOptions | None = None,
    policy: Any = None,
    search: SearchSettings | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """A server that has loaded its models, unless told not to wait for that; no deadline passes by itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    given = ServeSettings(**{"deadline": 300.0, "client_seconds": 300.0} | settings)
    server = make_server(
        prms, given, KeyRing(list(keys)), prm_options=prm_options, results=ShownResults.named(results), policy=policy,
        search=search,
    )  # fmt: skip
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    with httpx.Client(base_url=url, timeout=300) as client:
        until(lambda: server.started and (not wait or server.engine.is_ready))
        yield Running(server, url, client)
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()


@contextlib.contextmanager
def command(*options: str, prm: str = "") -> Iterator[tuple[Process, str]]:
    """The process of `prism serve` with an example PRM, or the one named, and its address."""
    with Process("serve", "--prm", prm or f"m={example_folder('prism')}", *options) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+:\d+", process.stderr.readline())
            assert found is not None
            yield process, found[0]
        finally:
            process.kill()


def wait_ready(url: str) -> None:
    def is_ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/ready", timeout=300).status_code == 200
        return False

    until(is_ready)
