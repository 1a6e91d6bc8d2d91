"""The queue: batches, limits, deadlines, clients that hang up, errors of one item, loading and draining."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gated_scorer import GatedScorer
from prism_prm.serve.engine import ServeEngine
from prism_prm.serve.models import ServedModel
from prism_prm.serve.settings import ServeSettings
from serving_prms import Running, running, until


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as found:
        yield found


ITEM = {"items": [{"problem": "p", "steps": ["s"]}]}


def ask(server: Running, problem: str, *steps: str) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/steps", json={"items": [{"problem": problem, "steps": list(steps)}]}, timeout=300
    )


@contextlib.contextmanager
def connected(server: Running, body: bytes) -> Iterator[None]:
    """A client that has sent this body to /v1/steps, and hangs up at the end."""
    head = f"POST /v1/steps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n".encode()
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
        yield


def waiting(server: Running, pool: ThreadPoolExecutor, *problems: str) -> list[Future[httpx.Response]]:
    """Requests that are in the queue, in this order."""
    asked = []
    for problem in problems:
        before = server.server.engine.num_queued
        asked.append(pool.submit(ask, server, problem, "step", f"of {problem}"))
        until(lambda before=before: server.server.engine.num_queued > before)
    return asked


def test_requests_in_flight_become_one_batch(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        first = waiting(server, pool, "first")
        until(lambda: scorer.calls)
        rest = waiting(server, pool, "a", "b", "a")
        scorer.open.set()
        assert [one.result().status_code for one in first + rest] == [200] * 4
        assert [[tree.problem for tree in trees] for trees in scorer.calls] == [["first"], ["a", "b"]]
        assert server.metric("prism_batch_items_count") == 2
        assert server.metric("prism_batch_items_sum") == 4


def test_without_batching_every_item_is_scored_alone() -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, batch_items=1) as server:
        answer = server.steps(*({"problem": "p", "steps": ["x" * n]} for n in (1, 2, 3)))
        assert [len(item["probabilities"]) for item in answer["items"]] == [1, 1, 1]
        assert [len(trees) for trees in scorer.calls] == [1, 1, 1]


def test_batches_have_a_limit_of_tokens() -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, batch_tokens=3) as server:
        server.steps(
            *({"problem": f"p{n}", "steps": ["four"]} for n in range(3)), {"problem": "long", "steps": ["x" * 99]}
        )
        assert [len(trees) for trees in scorer.calls] == [1, 1, 1, 1]


def test_models_take_turns() -> None:
    one, two = GatedScorer(), GatedScorer()
    with running({"one": one, "two": two}) as server:
        body = {"items": [{"problem": "p", "steps": ["s"]}]}
        assert server.post("/v1/steps", body).status_code == 400, "which of them?"
        assert server.post("/v1/steps", body | {"model": "two"}).status_code == 200
        assert server.post("/v1/steps", body | {"model": "three"}).status_code == 404
        assert (len(one.calls), len(two.calls)) == (0, 1)


def test_a_trainer_waits_instead_of_being_refused(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, max_requests=2, for_training=True, training_seconds=300.0) as server:
        scorer.open.clear()
        accepted = waiting(server, pool, "a", "b")
        parked = [pool.submit(ask, server, f"c{i}", "s") for i in range(20)]
        assert not any(one.done() for one in parked)
        scorer.open.set()
        assert [one.result().status_code for one in accepted + parked] == [200] * 22
        assert server.metric('prism_requests_total{route="/v1/steps",status="429"}') == 0


def test_a_trainer_waits_up_to_a_limit(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, max_requests=1, for_training=True, training_seconds=1.5) as server:
        scorer.open.clear()
        (late,) = waiting(server, pool, "a")
        assert ask(server, "b", "s").status_code in (429, 504), "no room, or room at the last moment"
        assert late.result().status_code == 504
        scorer.open.set()
        assert ask(server, "c", "s").status_code == 200


def test_too_many_requests(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, max_requests=2) as server:
        scorer.open.clear()
        accepted = waiting(server, pool, "a", "b")
        refused = ask(server, "c", "s")
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == 429
        assert "2 requests are waiting already" in refused.json()["error"]["message"]
        scorer.open.set()
        assert [one.result().status_code for one in accepted] == [200, 200]
        assert ask(server, "c", "s").status_code == 200, "it recovers at once"
        assert server.metric('prism_requests_total{route="/v1/steps",status="429"}') == 1


def test_a_request_counts_before_it_is_read(pool: ThreadPoolExecutor) -> None:
    """By its bytes: many long texts that wait to be read must not be accepted all."""
    go = threading.Event()
    with running({"m": GatedScorer()}, max_tokens=1000) as server:
        engine = server.server.engine
        engine._readers.submit(go.wait)
        accepted = [pool.submit(ask, server, "a" * 2400, "s"), pool.submit(server.post, "/v1/tokens", ITEM)]
        until(lambda: engine.admission.num_requests == 2)
        assert 600 < engine.admission.tokens < 650
        refused = ask(server, "b" * 2400, "s")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert "tokens are waiting already" in refused.json()["error"]["message"]
        large = ask(server, "b" * 40_000, "s")
        assert large.status_code == 429, "the gate sees that it does not fit now"
        go.set()
        assert [one.result().status_code for one in accepted] == [200, 200]
        until(lambda: not engine.admission.tokens)
        engine._readers.submit((stop := threading.Event()).wait)
        large = ask(server, "b" * 40_000, "s")
        stop.set()
        assert large.status_code == 413, "it is far too long, and nobody had to read it"
        assert "About 9,9" in large.json()["error"]["message"]


def test_a_model_of_unknown_speed_gets_few_requests(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        accepted = waiting(server, pool, *"abcdefgh")
        refused = ask(server, "i", "s")
        assert refused.status_code == 429
        assert "waiting for the model's first answer" in refused.json()["error"]["message"]
        scorer.open.set()
        assert [one.result().status_code for one in accepted] == [200] * 8
        scorer.open.clear()
        accepted = waiting(server, pool, *"abcdefghijkl")
        scorer.open.set()
        assert [one.result().status_code for one in accepted] == [200] * 12


def test_what_nobody_waits_for_counts_until_the_model_is_done_with_it() -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        engine = server.server.engine
        scorer.open.clear()
        with connected(server, b'{"items": [{"problem": "gone", "steps": ["' + b"s" * 396 + b'"]}]}'):
            until(lambda: scorer.calls)
        until(lambda: engine.admission.num_requests == 0)
        assert engine.admission.tokens == 101
        scorer.open.set()
        until(lambda: engine.admission.tokens == 0)


def test_too_many_tokens(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, max_tokens=44) as server:
        assert ask(server, "c" * 175, "s").status_code == 413, "it would never fit"
        scorer.open.clear()
        accepted = waiting(server, pool, "a" * 80)
        refused = ask(server, "b" * 10, "s")
        assert refused.status_code == 429
        assert "tokens are waiting" in refused.json()["error"]["message"]
        scorer.open.set()
        assert accepted[0].result().status_code == 200
        assert server.metric("prism_waiting_tokens") == 0


def test_what_would_not_be_answered_in_time_is_refused(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        accepted = waiting(server, pool, "a" * 80)
        server.server.engine.admission.rates["m"] = 0.1  # what waits takes more than the deadline
        refused = ask(server, "b", "s")
        assert refused.status_code == 429
        assert "before its deadline" in refused.json()["error"]["message"]
        assert int(refused.headers["Retry-After"]) > 10
        scorer.open.set()
        assert accepted[0].result().status_code == 200


def test_a_deadline_is_answered() -> None:
    scorer = GatedScorer()
    with running({"m": scorer}, deadline=0.3) as server:
        scorer.open.clear()
        late = ask(server, "a", "s")
        scorer.open.set()
        assert late.status_code == 504
        assert "within 0.3 seconds" in late.json()["error"]["message"]


def test_a_request_past_its_deadline_costs_nothing(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        first = waiting(server, pool, "a")
        until(lambda: scorer.calls)
        late = waiting(server, pool, "b")
        (job,) = server.server.engine._queue.values()
        job.deadline = 0.0
        scorer.open.set()
        assert first[0].result().status_code == 200
        assert ask(server, "c", "s").status_code == 200
        assert [tree.problem for trees in scorer.calls for tree in trees] == ["a", "c"]
        loop = server.server._loop
        assert loop is not None
        loop.call_soon_threadsafe(job.future.set_exception, TimeoutError())  # as it would at its deadline
        assert late[0].result().status_code == 504


def test_a_client_that_hangs_up_costs_nothing(pool: ThreadPoolExecutor) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        first = waiting(server, pool, "a")
        until(lambda: scorer.calls)  # or the model would take both in one batch
        with connected(server, b'{"items": [{"problem": "gone", "steps": ["s"]}]}'):
            until(lambda: server.server.engine.admission.num_requests == 2)
        until(lambda: server.server.engine.admission.num_requests == 1)
        scorer.open.set()
        assert first[0].result().status_code == 200
        assert [tree.problem for trees in scorer.calls for tree in trees] == ["a"]
        until(lambda: server.metric('prism_requests_total{route="/v1/steps",status="499"}') == 1)


def test_one_items_error_is_not_anothers(pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        first = waiting(server, pool, "first")
        until(lambda: scorer.calls)
        asked = waiting(server, pool, "good", "bad", "broken", "fine")
        scorer.open.set()
        assert [one.result().status_code for one in first + asked] == [200, 200, 400, 500, 200]
        assert asked[1].result().json()["error"]["message"] == "a bad problem"
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text


def test_a_models_failure_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    with running({"m": GatedScorer()}) as server:
        assert ask(server, "nan", "s").status_code == 500
    assert "/v1/steps failed with ModelError" in caplog.text
    assert "in score_trees" in caplog.text
    assert "secret" not in caplog.text


def test_nothing_is_taken_while_models_load() -> None:
    go = threading.Event()
    scorer = GatedScorer()

    class Slow(dict[str, Any]):
        def items(self) -> Any:
            assert go.wait(300)
            return super().items()

    with running(Slow(m=scorer), wait=False) as server:
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/ready").status_code == 503
        refused = ask(server, "p", "s")
        assert refused.status_code == 503
        assert "loaded" in refused.json()["error"]["message"]
        go.set()
        until(lambda: server.server.engine.is_ready)
        assert server.client.get("/ready").status_code == 200
        assert ask(server, "p", "s").status_code == 200


def test_draining_finishes_what_was_accepted(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.serve.server.LINGER", 0.0)
    scorer = GatedScorer()
    with running({"m": scorer}) as server:
        scorer.open.clear()
        accepted = waiting(server, pool, "a", "b")
        loop = server.server._loop
        assert loop is not None
        loop.call_soon_threadsafe(server.server.stop)
        until(lambda: server.server.engine.admission.is_draining)
        refused = ask(server, "c", "s")
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert httpx.get(f"{server.url}/ready", timeout=300).status_code == 503
        assert httpx.get(f"{server.url}/health", timeout=300).status_code == 200
        scorer.open.set()
        assert [one.result().status_code for one in accepted] == [200, 200]
        until(lambda: server.server.should_exit)


def test_a_thread_that_is_about_to_wait_hears_that_it_should_end() -> None:
    """Closing between its look at the flag and its wait must not be missed."""
    engine = ServeEngine(list, ServeSettings(deadline=300.0))
    is_about, is_closed = threading.Event(), threading.Event()

    class Late(threading.Condition):
        def __enter__(self) -> bool:
            if threading.current_thread().name == "model":
                is_about.set()
                assert is_closed.wait(300)
            return super().__enter__()

        def notify(self, n: int = 1) -> None:
            super().notify(n)
            is_closed.set()

    engine._changed = Late()
    engine._thread.start()
    assert is_about.wait(300)
    engine.close()
    assert not engine._thread.is_alive()


def test_closing_does_not_wait_for_models_that_load() -> None:
    go = threading.Event()

    def load() -> list[ServedModel]:
        assert go.wait(300)
        return []

    engine = ServeEngine(load, ServeSettings(deadline=20.0))
    engine._thread.start()
    engine.close()
    assert engine._thread.is_alive(), "it was left alone"
    go.set()


def test_slow_clients_are_let_go() -> None:
    """Neither a head nor a body may come forever."""
    with running({"m": GatedScorer()}, client_seconds=0.3) as server:
        port = int(server.url.rpartition(":")[2])
        head = b"POST /v1/steps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
        for sent, answer in ((b"", b""), (b"POST /v1/st", b""), (head, b"HTTP/1.1 408")):
            with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
                connection.sendall(sent)
                assert connection.recv(12) == answer

        def is_served() -> bool:
            """A busy machine may make a slow client of ours, too."""
            with contextlib.suppress(httpx.HTTPError):
                return ask(server, "p", "s").status_code == 200
            return False

        until(is_served)


def test_bodies_have_a_limit() -> None:
    with running({"m": GatedScorer()}, max_body=1000) as server:
        assert ask(server, "p" * 900, "s").status_code == 200
        assert ask(server, "p" * 1000, "s").status_code == 413
        chunks = (b"x" * 300 for _ in range(10))
        answer = httpx.post(f"{server.url}/v1/steps", content=chunks, timeout=300)
        assert answer.status_code == 413, "also if no length is given"


def test_a_client_that_does_not_read_is_disconnected() -> None:
    """A hundred answers of a megabyte are more than the system's buffers take: the rest would wait for ever."""
    with running({"m": GatedScorer()}, client_seconds=0.3) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        head = b"GET /docs/files/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        connection.sendall(head * 100)
        until(lambda: server.server.server_state.connections)
        until(lambda: not server.server.server_state.connections, 30)
        whole = server.client.get("/docs/files/swagger-ui-bundle.js")
        assert len(whole.content) == int(whole.headers["content-length"]), "whoever reads gets all of it"
