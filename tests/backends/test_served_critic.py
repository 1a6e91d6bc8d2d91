"""A critic behind `prism serve`: every route, what it costs, and what the troubles of its own server become."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import OTHER, chat, is_probe, said

from loopback import Answer, serve
from prism_prm import CriticSettings
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.serve.server import with_request_timeout
from serving_prms import Running, command, running, until, wait_ready

PROBLEM, STEPS = "What is 2 + 3 * 4?", ["3 * 4 = 12", "2 + 12 = 15, which is bad", "The answer is 15."]
ITEM = {"problem": PROBLEM, "steps": STEPS}
RIGHT = [1.0, 0.0, 1.0]


def judged(body: dict[str, Any]) -> Answer:
    """Steps with the word bad are wrong."""
    if is_probe(body):
        return chat("Yes")
    return chat("No" if "bad" in said(body).split("Is this step")[0] else "Yes")


@contextmanager
def served(folder: Path, answer: Callable[[dict[str, Any]], Answer], **more: Any) -> Iterator[Running]:
    """A server of a critic whose own server gives `answer(body)`, but to the probe."""
    critic = CriticSettings(replies=str(folder / "replies"), votes=1, **more.pop("critic", {}))
    with (
        serve(lambda body: judged(body) if is_probe(body) else answer(body), models=OTHER) as (url, _),
        running({"c": f"critic:openai:{url}"}, prm_options=PrmOptions(critic=critic), **more) as server,
    ):
        yield server


def test_every_route_of_a_real_server(tmp_path: Path) -> None:
    replies = tmp_path / "replies"
    options = ("--port", "0", "-C", f"replies={replies}", "-C", "price_prompt=2", "-C", "price_completion=4")
    with (
        serve(judged, models=OTHER) as (upstream, asked),
        command(*options, "-C", "votes=1", prm=f"c=critic:openai:{upstream}") as (_, url),
    ):
        wait_ready(url)
        (card,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert card["identity"].startswith("critic:")

        steps = httpx.post(f"{url}/v1/steps", json={"items": [ITEM]}, timeout=300).json()
        (item,) = steps["items"]
        assert item["probabilities"] == pytest.approx(RIGHT, abs=1e-9)
        assert (item["first_error"], item["too_long"]) == (1, [])
        assert item["tokens"] == steps["usage"]["total_tokens"] == 3 * 15, "read and written, as its server counts"

        turns = [
            {"role": "user", "content": PROBLEM},
            {"role": "assistant", "content": "".join(f"{step}<extra_0>" for step in STEPS)},
        ]
        pooled = httpx.post(f"{url}/pooling", json={"messages": turns}, timeout=300).json()
        assert [row[1] for row in pooled["data"][0]["data"]] == pytest.approx(RIGHT, abs=1e-9)

        query = {"query": [f"{PROBLEM}\n" + "\n\n".join(STEPS)], "prompts": [f"{PROBLEM}\n"]}
        reward = httpx.post(f"{url}/get_reward", json=query, timeout=300).json()
        assert reward["rewards"] == [pytest.approx(item["score"], abs=1e-9)]
        assert reward["extra_logs"] == {"steps": [3.0], "has_error": [1.0]}

        ids = httpx.post(f"{url}/pooling", json={"input": [1, 2]}, timeout=300)
        assert (ids.status_code, "takes messages and steps" in ids.text) == (400, True)
    assert len(asked) == 1 + 3, "the probe, and each step once"
    (ledger,) = replies.glob("ledger-*.jsonl")
    charged = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sum(line["requests"] for line in charged) == 4
    assert sum(line["cost"] for line in charged) == pytest.approx(4 * (10 * 2 + 5 * 4) / 1e6)


_well = threading.Event()
TROUBLES: dict[str, tuple[Callable[[], Answer], int, str]] = {
    "it is broken": (lambda: (500, {"error": "oh"}), 502, "status 500"),
    "it refuses our key": (lambda: (401, {}), 502, "OPENAI_API_KEY"),
    "it has no such model": (lambda: (404, {}), 502, "status 404"),
    "its answer is no JSON": (lambda: (200, b"<html>"), 502, "not a JSON object"),
    "its answer has no verdict": (lambda: chat("I cannot say."), 502, "no verdict"),
    "it is busy": (lambda: (429, {"error": "slow down"}), 503, "status 429"),
    "it is loading": (lambda: (503, {}), 503, "status 503"),
    "it hangs": (lambda: (_well.wait(300), chat("late"))[1], 504, "within 3 seconds"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_the_troubles_of_its_server_become(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.net.LONGEST_WAIT", 0.02)
    make, status, message = TROUBLES[trouble]
    is_well, found = _well, list[httpx.Response]()
    is_well.clear()

    def answer(body: dict[str, Any]) -> Answer:
        return judged(body) if is_well.is_set() else make()

    def ask_again() -> bool:
        found.append(server.post("/v1/steps", {"items": [ITEM | {"problem": "Another?"}]}))
        return found[-1].status_code == 200

    with served(tmp_path, answer, deadline=3.0 if status == 504 else 300.0) as server:
        refused = server.post("/v1/steps", {"items": [ITEM]})
        assert (refused.status_code, message in refused.json()["error"]["message"]) == (status, True), refused.text
        is_well.set()
        until(ask_again)
        assert found[-1].json()["items"][0]["probabilities"] == pytest.approx(RIGHT, abs=1e-9)


def test_its_server_has_no_more_time_than_our_clients() -> None:
    """Or one that hangs would hold the model thread."""
    assert with_request_timeout(PrmOptions(), 30.0) == PrmOptions(
        prm_timeout=10.0, prm_retries=2, critic=CriticSettings(timeout=10.0, retries=2)
    )
    given = PrmOptions(prm_timeout=1.0, prm_retries=0, critic=CriticSettings(timeout=2.0, retries=1), dtype="auto")
    assert with_request_timeout(given, 30.0) == given


def test_a_spent_budget_is_no_error_of_ours(tmp_path: Path) -> None:
    with served(tmp_path, judged, critic={"budget_tokens": 15}) as server:
        refused = server.post("/v1/steps", {"items": [ITEM]})
        assert refused.status_code == 503
        assert "the token budget is spent" in refused.json()["error"]["message"]


def test_unjudged_steps_are_not_too_long(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("Hm.") if "bad" in said(body).split("Is this step")[0] else chat("Yes")

    with served(tmp_path, answer, critic={"on_missing": "skip"}) as server:
        (item,) = server.steps(ITEM)["items"]
        assert item["probabilities"] == [pytest.approx(1.0), None, pytest.approx(1.0)]
        assert (item["score"], item["too_long"]) == (None, [])


def test_what_a_critic_has_to_do_counts_in_the_queue(tmp_path: Path) -> None:
    """Nothing is known of new questions, so that their texts count."""
    go = threading.Event()

    def answer(body: dict[str, Any]) -> Answer:
        assert go.wait(300)
        return judged(body)

    with served(tmp_path, answer, max_tokens=100) as server:
        assert server.post("/v1/steps", {"items": [ITEM | {"problem": "p" * 2000}]}).status_code == 413
        first = threading.Thread(target=server.steps, args=(ITEM | {"problem": "p" * 200},))
        first.start()
        until(lambda: server.server.engine.admission.tokens > 50)
        refused = server.post("/v1/steps", {"items": [ITEM | {"problem": "q" * 200}]})
        go.set()
        first.join()
        assert (refused.status_code, "tokens are waiting" in refused.text) == (429, True)


def test_work_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    """A request that is past its deadline asks for no more verdicts, and the next one is served."""
    asked, over = [], threading.Event()

    def slow(body: dict[str, Any]) -> Answer:
        asked.append(body)
        over.wait(300)
        return judged(body)

    items = [ITEM | {"problem": f"Problem {i}"} for i in range(50)]
    with served(tmp_path, slow, deadline=2.0, critic={"concurrency": 2}) as server:
        assert server.post("/v1/steps", {"items": items}).status_code == 504
        over.set()
        until(lambda: server.post("/v1/steps", {"items": [{"problem": "p", "steps": ["s"]}]}).status_code == 200)
    assert len(asked) < 75, "of 150"


def test_what_others_ask_changes_no_verdict(tmp_path: Path) -> None:
    """Where a critic reads whole solutions, one that begins another is judged as it is."""

    def answer(body: dict[str, Any]) -> Answer:
        return chat("\\boxed{-1}" if "<paragraph_2>" in said(body) else "\\boxed{0}")

    items = [ITEM, ITEM | {"steps": STEPS[:2]}]
    with served(tmp_path, answer, critic={"format": "processbench"}) as server:
        found = [item["probabilities"] for item in server.steps(*items)["items"]]
    assert found == [pytest.approx([1.0] * 3), [pytest.approx(0.0), None]], "it judges none after the first error"
