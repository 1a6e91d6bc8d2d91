"""A server under load, on this machine alone and for a bounded time: ten times its rate, hang-ups, slow clients.

`hey` is found on the path; locust by PRISM_LOCUST (`pip install locust` in an environment of its own).
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from prism_prm import init_prm, load_prm
from serving_prms import command, wait_ready

pytestmark = pytest.mark.slow

SECONDS = int(os.environ.get("PRISM_LOAD_SECONDS", "60"))
DEADLINE = 30
PROBLEM, STEPS = "What is x + 2?", [f"Let x be {i}. Then x + 2 = {i + 2}, so the answer is {i + 2}." for i in range(20)]
BODY = {"items": [{"problem": PROBLEM, "steps": STEPS}]}
MANY = {"items": [{"problem": PROBLEM, "steps": STEPS[:1]}] * 20}
BODIES = pytest.mark.parametrize("body", [BODY, MANY], ids=["one item", "many items"])
LIMITS = (
    "--port", "0", "--set", "batch_items=1", "--set", "cache_mb=0", "--set", "max_requests=64", "--set",
    f"deadline={DEADLINE}",
)  # fmt: skip
"""Equal requests would be computed once: here each is scored by itself, so that its rate is known."""


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    """A PRM that is slow enough for scoring, and not HTTP, to limit the rate."""
    folder = tmp_path_factory.mktemp("load") / "prm"
    sizes = {"hidden_size": 384, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 6}
    init_prm(tiny_lm("qwen2", **sizes, initializer_range=0.05)).save(folder)
    return folder


@pytest.fixture(scope="module")
def right(prm: Path) -> list[float]:
    return load_prm(prm).score(PROBLEM, STEPS)


@contextlib.contextmanager
def loaded(prm: Path) -> Iterator[tuple[str, int]]:
    """The address and process of a server that has answered once."""
    with command(*LIMITS, prm=f"m={prm}") as (process, url):
        wait_ready(url)
        assert httpx.post(f"{url}/v1/steps", json=BODY, timeout=60).status_code == 200
        yield url, process.pid


def memory(process: int) -> float:
    """Megabytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class Watch(threading.Thread):
    """Looks at the memory of a process every second; it is flat if it does not grow once all is warm."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.seen, self.ended = process, [memory(process)], threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(1.0):
            self.seen.append(memory(self.process))

    def end(self) -> tuple[float, float]:
        """The most megabytes in the second quarter of the time, and in the last."""
        self.ended.set()
        self.join()
        quarter = len(self.seen) // 4
        return max(self.seen[quarter : 2 * quarter]), max(self.seen[-quarter:])


def answers_rightly(url: str, right: list[float]) -> float:
    """Seconds that one request takes now, which comes again if it is told to."""
    started = time.monotonic()
    while True:
        answer = httpx.post(f"{url}/v1/steps", json=BODY, timeout=60)
        if answer.status_code != 429:
            break
        assert time.monotonic() - started < DEADLINE
        time.sleep(int(answer.headers["Retry-After"]))
    assert answer.status_code == 200
    assert answer.json()["items"][0]["probabilities"] == pytest.approx(right, abs=1e-5)
    return time.monotonic() - started


def own_rate(url: str, body: dict[str, Any]) -> float:
    """Requests per second that it can serve, one after the other."""
    started, count = time.monotonic(), 0
    with httpx.Client(base_url=url, timeout=60) as client:
        while time.monotonic() - started < 5:
            assert client.post("/v1/steps", json=body).status_code == 200
            count += 1
    return count / (time.monotonic() - started)


@BODIES
def test_ten_times_its_rate_with_hey(tmp_path: Path, prm: Path, right: list[float], body: dict[str, Any]) -> None:
    hey = shutil.which("hey")
    if hey is None:
        pytest.skip("needs hey")
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    with loaded(prm) as (url, process):
        rate = own_rate(url, body)
        clients = 300
        watch = Watch(process)
        line = [
            hey, "-z", f"{SECONDS}s", "-c", str(clients), "-q", f"{max(0.1, 10 * rate / clients):.3f}", "-t", "60",
            "-m", "POST", "-T", "application/json", "-D", str(file), "-o", "csv", f"{url}/v1/steps",
        ]  # fmt: skip
        shown = subprocess.run(line, capture_output=True, text=True, check=True, timeout=SECONDS + 120).stdout
        early, late = watch.end()
        after = answers_rightly(url, right)
    rows = list(csv.DictReader(shown.splitlines()))
    statuses = {row["status-code"] for row in rows}
    accepted = sorted(float(row["response-time"]) for row in rows if row["status-code"] == "200")
    p99 = accepted[int(0.99 * len(accepted))]
    print(
        f"hey: {rate:.2f}/s alone; {len(rows) / SECONDS:.1f}/s sent, {len(accepted)} accepted, "
        f"{len(rows) - len(accepted)} refused, p99 {p99:.1f} s, {early:.0f} and later {late:.0f} MB, then {after:.2f} s"
    )
    assert statuses == {"200", "429"}
    assert p99 < DEADLINE
    assert late < 1.1 * early


@BODIES
def test_ten_times_its_rate_with_locust(tmp_path: Path, prm: Path, right: list[float], body: dict[str, Any]) -> None:
    """Here every accepted answer is compared with the right one."""
    locust = os.environ.get("PRISM_LOCUST")
    if locust is None:
        pytest.skip("set PRISM_LOCUST to the command")
    with loaded(prm) as (url, process):
        rate, users = own_rate(url, body), 300
        watch = Watch(process)
        environment: dict[str, Any] = {
            **os.environ, "PRISM_LOAD_BODY": json.dumps(body),
            "PRISM_LOAD_RIGHT": json.dumps(right[: len(body["items"][0]["steps"])]),
            "PRISM_LOAD_RATE": str(10 * rate / users),
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)
        line = [
            locust, "-f", str(Path(__file__).with_name("locust_traffic.py")), "--headless", "-H", url, "-u", str(users),
            "-r", "50", "-t", f"{SECONDS}s", "--csv", str(tmp_path / "found"), "--only-summary",
        ]  # fmt: skip
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS + 120)
        early, late = watch.end()
        after = answers_rightly(url, right)
    with (tmp_path / "found_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    print(
        f"locust: {rate:.2f}/s alone; accepted {rows['accepted']['Request Count']}, refused "
        f"{rows['refused']['Request Count']}, p99 {rows['accepted']['99%']} ms, {early:.0f} and later {late:.0f} MB, "
        f"then {after:.2f} s"
    )
    failures = (tmp_path / "found_failures.csv").read_text()
    assert {row["Failure Count"] for row in rows.values()} == {"0"}, failures + done.stderr[-2000:]
    assert float(rows["accepted"]["99%"]) < 1000 * DEADLINE
    assert int(rows["refused"]["Request Count"]) > int(rows["accepted"]["Request Count"])
    assert late < 1.1 * early


Case = tuple[str, list[str], list[float]]
"""A problem, steps, and their right probabilities."""


async def hammer(url: str, cases: Sequence[Case], clients: int) -> list[tuple[int, float, bool]]:
    """(status, seconds, whether it was right) of requests that clients send one after the other, whatever they hear.

    Each asks for beginnings of some solutions, as searches do: some come again, some are new.
    """
    found: list[tuple[int, float, bool]] = []
    end = time.monotonic() + SECONDS

    async def one(client: httpx.AsyncClient, number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            asked = [(case, draw.randint(1, len(case[1]))) for case in draw.choices(cases, k=draw.randint(1, 4))]
            items = [{"problem": problem, "steps": steps[:count]} for (problem, steps, _), count in asked]
            started = time.monotonic()
            answer = await client.post("/v1/steps", json={"items": items})
            is_right = answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
            if answer.status_code == 200:
                scores = [item["probabilities"] for item in answer.json()["items"]]
                is_right = scores == [pytest.approx(right[:count], abs=1e-5) for (_, _, right), count in asked]
            found.append((answer.status_code, time.monotonic() - started, is_right))
            await asyncio.sleep(0.2 if answer.status_code == 429 else 0.0)

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(one(client, number) for number in range(clients)))
    return found


@pytest.mark.parametrize("is_cold", [True, False], ids=["cold", "warm"])
def test_varied_requests_with_default_batches_and_cache(prm: Path, is_cold: bool) -> None:
    """Cold: all clients come at once to a server that has answered nothing yet."""
    numbers = range(60)
    steps = [[f"So {k} of {i}: x + {k} = {i + k}." * (1 + k % 2) for k in range(5 + i % 9)] for i in numbers]
    texts = [(f"What is x + {i}, if x is {i % 7}?", some) for i, some in zip(numbers, steps, strict=True)]
    scores = load_prm(prm).score_many(texts)
    cases = [(problem, some, right) for (problem, some), right in zip(texts, scores, strict=True)]
    with command("--port", "0", "--set", f"deadline={DEADLINE}", prm=f"m={prm}") as (process, url):
        wait_ready(url)
        if not is_cold:
            for problem, some, _ in cases[:5]:
                body = {"items": [{"problem": problem, "steps": some}]}
                assert httpx.post(f"{url}/v1/steps", json=body, timeout=60).status_code == 200
        watch = Watch(process.pid)
        found = asyncio.run(hammer(url, cases, 300))
        early, late = watch.end()
    accepted = sorted(seconds for status, seconds, _ in found if status == 200)
    p99 = accepted[int(0.99 * len(accepted))]
    print(
        f"varied: {len(accepted)} accepted, {len(found) - len(accepted)} refused, p99 {p99:.1f} s, "
        f"{early:.0f} and later {late:.0f} MB"
    )
    assert {status for status, _, _ in found} == {200, 429}
    assert all(is_right for _, _, is_right in found)
    assert p99 < DEADLINE


def test_a_thousand_clients_that_hang_up(prm: Path, right: list[float]) -> None:
    with loaded(prm) as (url, process):
        before = memory(process)
        data = json.dumps(BODY).encode()
        head = f"POST /v1/steps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for number in range(1000):
            with socket.create_connection(address) as connection:
                connection.sendall((head.encode() + data)[: None if number % 2 else 200 + number])
        seconds = answers_rightly(url, right)
        grown = memory(process) - before
        counted = httpx.get(f"{url}/metrics").text
    print(f"hung up: next request {seconds:.2f} s, {grown:+.0f} MB")
    assert 'route="/v1/steps",status="5' not in counted
    assert 'status="499"' in counted
    assert grown < 0.2 * before


def test_slow_loris(prm: Path, right: list[float]) -> None:
    """Five hundred clients that send a byte now and then do not keep others from being served, and are let go."""
    with command("--port", "0", "--set", "client_seconds=5", prm=f"m={prm}") as (_, url):
        wait_ready(url)
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        slow = [socket.create_connection(address) for _ in range(500)]
        try:
            started = time.monotonic()
            for connection in slow:
                connection.sendall(b"POST /v1/steps HTTP/1.1\r\n")
            seconds = [answers_rightly(url, right)]
            while time.monotonic() - started < 15:
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"X-A: b\r\n")
                seconds.append(answers_rightly(url, right))
                time.sleep(0.5)
            left = 0
            for connection in slow:
                connection.settimeout(1)
                with contextlib.suppress(OSError):
                    left += connection.recv(1) != b""
        finally:
            for connection in slow:
                connection.close()
    print(f"slow-loris: others were answered in at most {max(seconds):.2f} s")
    assert left == 0
