"""Searched answers under load, on this machine alone and for a bounded time: ten times the rate, hang-ups, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from test_overload import Watch

from loopback import serve
from serving_prms import command, wait_ready
from waiting import until

pytestmark = pytest.mark.slow

SECONDS = int(os.environ.get("PRISM_LOAD_SECONDS", "60"))
CHAT = {"model": "mine@beam-4", "messages": [{"role": "user", "content": "3+4-2"}], "max_tokens": 60}
STEPS = ("3+4=7\n\n", "7-2=5\n\n", "#### 5")


def answer(body: dict[str, Any]) -> Any:
    """The next step of the solution, which takes a policy a while."""
    time.sleep(0.05)
    number = sum(step in body["prompt"] for step in STEPS)
    text = {"text": STEPS[min(number, 2)], "finish_reason": "stop", "stop_reason": None if number > 1 else "\n\n"}
    return 200, {"choices": [text], "usage": {"completion_tokens": 6}}


@contextlib.contextmanager
def searching(policy: str) -> Iterator[tuple[str, int]]:
    """The address and process of a server whose policy is behind that address, and that has answered once."""
    options = ("--policy", f"mine=openai:{policy}", "-P", "template=none", "-P", "backoff=0.1", "--port", "0")
    with command(*options) as (process, url):
        wait_ready(url)
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200
        yield url, process.pid


def metric(url: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", httpx.get(f"{url}/metrics", timeout=60).text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def send(url: str, rate: float, seconds: float) -> list[tuple[int, float]]:
    """(status, seconds) of requests that are sent at this rate, whatever becomes of the earlier ones."""
    found: list[tuple[int, float]] = []

    async def one(client: httpx.AsyncClient, number: int) -> None:
        started = time.monotonic()
        got = await client.post("/v1/chat/completions", json=CHAT | {"seed": number})
        if got.status_code == 200:
            assert got.json()["choices"][0]["message"]["content"].endswith("#### 5")
        found.append((got.status_code, time.monotonic() - started))

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=400, limits=limits) as client, asyncio.TaskGroup() as group:
        start = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
            group.create_task(one(client, number))
    return found


def test_ten_times_its_rate_and_a_restart_of_the_policy() -> None:
    with contextlib.ExitStack() as policy:
        address, _ = policy.enter_context(serve(answer))
        with searching(address) as (url, process):
            started = time.monotonic()
            alone = asyncio.run(send(url, 20, 2))  # fewer than may wait
            rate = len(alone) / (time.monotonic() - started)
            assert {status for status, _ in alone} == {200}
            watch = Watch(process)
            found = asyncio.run(send(url, 10 * rate, SECONDS))
            early, late = watch.end()
            statuses = Counter(status for status, _ in found)
            accepted = sorted(seconds for status, seconds in found if status == 200)
            print(
                f"searches: {rate:.1f}/s alone; {len(found)} sent in {SECONDS} s, {dict(statuses)}, p99 of accepted "
                f"{accepted[int(0.99 * len(accepted))]:.1f} s, {early:.0f} and later {late:.0f} MB"
            )
            assert set(statuses) <= {200, 429, 503}
            assert statuses[429] > 0
            assert late < 1.1 * early
            policy.close()
            gone = asyncio.run(send(url, rate, 5))
            print(f"policy gone: {dict(Counter(status for status, _ in gone))}")
            assert {status for status, _ in gone} <= {429, 502}
            with serve(answer, port=int(address.split(":")[2].removesuffix("/v1"))):
                back = asyncio.run(send(url, rate / 2, 5))
            print(f"policy back: {dict(Counter(status for status, _ in back))}")
            assert 200 in {status for status, _ in back} <= {200, 429}


def test_clients_that_hang_up_cost_nothing_more() -> None:
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n".encode()
    with serve(answer) as (address, asked), searching(address) as (url, _):
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
                stack.enter_context(connection).sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
            until(lambda: metric(url, "prism_running_searches") == 4 and metric(url, "prism_waiting_searches") > 4)
        started = time.monotonic()
        until(lambda: metric(url, "prism_running_searches") == metric(url, "prism_waiting_searches") == 0)
        seconds, num_asked = time.monotonic() - started, len(asked)
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200
        print(f"hung up: all searches ended after {seconds:.2f} s; the next one asked {len(asked) - num_asked} times")
        assert len(asked) - num_asked == 12, "three rounds of four steps"
