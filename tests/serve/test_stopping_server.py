"""A real `prism serve` in a process of its own, stopped while it works."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from prism_prm import example_prm, load_prm
from serving_prms import command, wait_ready

PROBLEM, STEPS = "1+1+2-1", ["1+1=2", "2+2=4", "4-1=3", "#### 3"]
ITEM = {"problem": PROBLEM, "steps": STEPS}


def test_a_term_signal_loses_no_accepted_request() -> None:
    """Clients hammer it when SIGTERM comes: each gets the right scores, or hears that it is refused."""
    with command("--port", "0", "--batch-items", "2", "--cache-mb", "0") as (process, url):
        wait_ready(url)
        found: list[Any] = []
        started = threading.Barrier(9)

        def client(number: int) -> None:
            started.wait()
            with httpx.Client(base_url=url, timeout=60) as session:
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
            while len(found) < 20:
                time.sleep(0.01)
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
    assert others <= {503, httpx.ConnectError}, "refused, or too late to connect; no connection was cut"
    assert answered >= len(found), "every request that it counts was answered"


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
            while len(found) < 20:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with command("--port", port) as (_, again):
                assert again == url
                for one in work:
                    one.result()
    assert len(found) == 240
    assert all(scores == pytest.approx(right, abs=1e-5) for scores in found)
    assert sum(remote.server.num_retries for remote in remotes) > 0
