"""A real `prism serve` in a process of its own, stopped while it works."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gated_scorer import GatedScorer
from prism_prm import example_prm, load_prm
from serving_prms import Running, command, running, until, wait_ready

PROBLEM, STEPS = "1+1+2-1", ["1+1=2", "2+2=4", "4-1=3", "#### 3"]
ITEM = {"problem": PROBLEM, "steps": STEPS}


def test_a_term_signal_loses_no_accepted_request() -> None:
    """Clients hammer it when SIGTERM comes: each gets the right scores, or hears that it is refused."""
    with command("--port", "0", "--set", "batch_items=2", "--set", "cache_mb=0") as (process, url):
        wait_ready(url)
        found: list[Any] = []
        started = threading.Barrier(9)

        def client(number: int) -> None:
            started.wait()
            with httpx.Client(base_url=url, timeout=300) as session:
                while True:
                    try:
                        answer = session.post("/v1/steps", json={"items": [ITEM] * (1 + number % 3)})
                    except httpx.HTTPError as error:
                        found.append(type(error))
                        return
                    found.append(answer.status_code if answer.status_code != 200 else answer.json())
                    if answer.status_code == 503:
                        return

        with ThreadPoolExecutor(8) as pool:
            for number in range(8):
                pool.submit(client, number)
            started.wait()
            until(lambda: len(found) >= 20)
            process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert process.stdout is not None
        answered = int(process.stdout.read().split()[0].replace(",", ""))
    right = example_prm("prism").score(PROBLEM, STEPS)
    answers = [one for one in found if isinstance(one, dict)]
    for answer in answers:
        for item in answer["items"]:
            assert item["probabilities"] == pytest.approx(right, abs=1e-5)
    others = {one for one in found if not isinstance(one, dict)}
    assert others <= {429, 503, httpx.ConnectError}, "refused, or too late to connect; no connection was cut"
    assert answered >= len(found), "every request that it counts was answered"


HEAD = b"POST /v1/steps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = json.dumps({"items": [ITEM]}).encode()


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=300)


def received(connection: socket.socket, end: bytes = b"") -> bytes:
    """All that comes until such an end, or until the server closes the connection, which it must not cut."""
    data = b""
    while not (end and data.endswith(end)) and (part := connection.recv(65536)):
        data += part
    return data


def test_a_request_that_is_refused_before_it_is_read_is_answered_in_full() -> None:
    """To close a connection with an unread body would cut off the answer."""
    with running({"m": GatedScorer()}, max_body=900_000) as server, connect(server) as first, connect(server) as second:
        first.sendall(HEAD % 1_000_000 + b"x" * 1_000_000)
        assert received(first).endswith(b'"code":413}}')
        server.server.engine.admission.is_draining = True
        second.sendall(HEAD % 800_000 + b"x" * 800_000)
        assert received(second).endswith(b'"code":503}}')


def test_a_refused_request_leaves_its_connection_usable() -> None:
    """Its body comes after the answer; once it is there, the connection may be idle longer than a client may take."""
    with running({"m": GatedScorer()}, ("key",), client_seconds=2.0) as server, connect(server) as connection:
        for _ in range(2):
            connection.sendall(HEAD % len(BODY))
            assert received(connection, b"}}").startswith(b"HTTP/1.1 401")
            connection.sendall(BODY)
            time.sleep(4.5)


def test_a_connection_that_has_not_asked_yet_is_not_cut() -> None:
    with running({"m": GatedScorer()}) as server, connect(server) as connection:
        until(lambda: server.server.server_state.connections)
        server.server.should_exit = True
        until(lambda: not server.server.servers[0].is_serving())
        connection.sendall(HEAD % len(BODY) + BODY)
        assert received(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_killed_server_that_comes_back_loses_nothing_of_clients_that_retry() -> None:
    """kill -9, then the same command again, while clients of ours score with their retries."""
    right = example_prm("prism").score(PROBLEM, STEPS)
    with command("--port", "0") as (process, url):
        wait_ready(url)
        port = url.rpartition(":")[2]
        remotes = [load_prm(f"prism:{url}", prm_retries=20) for _ in range(4)]
        found: list[list[float]] = []

        def client(number: int) -> None:
            found.extend(remotes[number].score(PROBLEM, STEPS) for _ in range(60))

        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(client, number) for number in range(4)]
            until(lambda: len(found) >= 20)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with command("--port", port) as (_, again):
                assert again == url
                for one in work:
                    one.result()
    assert len(found) == 240
    assert all(scores == pytest.approx(right, abs=1e-5) for scores in found)
    assert sum(remote.server.num_retries for remote in remotes) > 0
