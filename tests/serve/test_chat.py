"""/v1/chat/completions: searched answers for OpenAI's clients."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pyarrow.parquet as pq
import pytest

from gated_scorer import GatedScorer
from loopback import serve
from prism_prm import PolicySettings, Sampling, SearchSettings, init_prm, open_policy, search_problems
from prism_prm.backends.policy import Prompting, StepRequest, Written
from prism_prm.data.pools import read_pool
from prism_prm.net import RetryPolicy
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_task import search_task
from serving_prms import Running, running
from tiny import SOLVED, memorising_policy, qwen_tokenizer
from waiting import until

SAMPLING = Sampling(max_step_tokens=24, max_tokens=64, temperature=1.5)
SEARCH = SearchSettings(max_steps=6, sampling=SAMPLING, seed=3)
PROBLEM = "3+4-2"
PLAIN = Prompting(template="none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return memorising_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def prms(folder: Path) -> dict[str, Any]:
    """Two PRMs that can read what the policy writes."""
    return {"base": init_prm(folder), "owner/prism": init_prm(folder)}


@pytest.fixture(scope="module")
def server(folder: Path, prms: dict[str, Any]) -> Iterator[Running]:
    with running(prms, policy=PolicySettings(f"tiny=hf:{folder}"), search=SEARCH) as found:
        yield found


def chat(model: str = "tiny@best-of-4", problem: str = PROBLEM, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": problem}]} | more


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"turn {number}"} for number, role in enumerate(roles, 1)]


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


class GatedPolicy:
    """A policy that writes the same step and ends, once it is let through."""

    name, has_log_likelihood = "gated", False

    def __init__(self) -> None:
        self.open = threading.Event()
        self.num_writing = self.num_written = 0

    def identity(self) -> str:
        return self.name

    def prompt(self, problem: str) -> str:
        return problem

    def write(
        self,
        requests: Sequence[StepRequest],
        sampling: Sampling,  # noqa: ARG002
        *,
        check: Callable[[], None] | None = None,
    ) -> list[Written]:
        self.num_writing += 1
        try:
            while not self.open.wait(0.01):
                assert check is not None
                check()
        finally:
            self.num_writing -= 1
        self.num_written += 1
        return [Written("#### 5", "end", 3) for _ in requests]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("rule", "method", "select"),
    [("best-of", "best-of-n", "argmax"), ("vote", "best-of-n", None), ("beam", "beam", None), ("dvts", "dvts", None)],
)
def test_the_answer_is_that_of_prism_search(
    rule: str, method: Any, select: Any, server: Running, folder: Path, prms: dict[str, Any], tmp_path: Path
) -> None:
    task = tmp_path / "task.jsonl"
    answers = [steps[-1].removeprefix("#### ") for steps in SOLVED.values()]
    task.write_text(
        "".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in zip(SOLVED, answers, strict=True))
    )
    recipe = SearchRecipe(
        task=str(task), policy=PolicySettings(f"hf:{folder}"), n=(8,), select=select, prm=("base",),
        search=SearchSettings(method=method, max_steps=6, sampling=SAMPLING, seed=3),
    )  # fmt: skip
    search_task(recipe, tmp_path / "out", prms={"base": prms["base"]}, judges=1)
    rows = pq.read_table(tmp_path / "out/solutions/base-n8.parquet").to_pylist()
    chosen = {row["problem_id"]: row["solution"] for row in rows if row["chosen"]}
    pool = read_pool(str(tmp_path / "out/pools/base-n8.jsonl")).problems
    for number, problem in enumerate(SOLVED):
        answer = server.post("/v1/chat/completions", chat(f"tiny@{rule}-8", problem)).json()
        top = answer["prism"]["candidates"][0]
        assert len({one["score"] for one in answer["prism"]["candidates"]} - {None}) > 1 or rule in ("beam", "dvts")
        assert top["scores"], "the PRM decides"
        assert answer["choices"][0]["message"]["content"] == "\n\n".join(top["steps"])
        if number in chosen:
            assert tuple(top["steps"]) == pool[number].solutions[chosen[number]].steps
        (result,) = search_problems(
            open_policy(f"hf:{folder}"), prms["base"], [problem],
            SearchSettings(method=method, n=8, max_steps=6, sampling=SAMPLING, seed=3),
        )  # fmt: skip
        found = sorted(tuple(one["steps"]) for one in answer["prism"]["candidates"])
        assert found == sorted(one.steps for one in result.solutions)
        assert answer["usage"]["completion_tokens"] == result.policy_tokens
        assert answer["usage"]["prm_tokens"] == result.prm_tokens
    assert len(chosen) >= 3, "a vote may have no answers"


def test_openai_client(server: Running) -> None:
    with client(server) as ai:
        assert [one.id for one in ai.models.list() if one.owned_by == "prism-search"] == [
            f"tiny@{rule}-16" for rule in ("best-of", "vote", "beam", "dvts")
        ]
        asked: Any = {"model": "tiny@vote-4", "messages": [{"role": "user", "content": PROBLEM}], "seed": 1}
        plain = ai.chat.completions.create(**asked, n=2, max_tokens=40)
        assert [choice.index for choice in plain.choices] == [0, 1]
        assert plain.usage
        assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
        assert plain.model_extra
        assert len(plain.model_extra["prism"]["candidates"]) == 4
        whole = ai.chat.completions.create(**asked)
        chunks = list(ai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage == whole.usage
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        ends = chunks[-2].model_extra or {}
        assert ends["prism"] == (whole.model_extra or {})["prism"]


def test_settings_of_a_request(server: Running) -> None:
    def ask(model: str = "tiny@best-of-4", **more: Any) -> dict[str, Any]:
        answer = server.post("/v1/chat/completions", chat(model, **more))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    assert ask("tiny@best-of-4?aggregator=last&prm=owner/prism")["prism"]["aggregator"] == "last"
    cut = ask(max_tokens=2)
    assert all(one["tokens"] <= 2 for one in cut["prism"]["candidates"])
    assert cut["choices"][0]["finish_reason"] == "length"
    assert ask(user="me", tools=[{}], logprobs=None)["warnings"] == ["ignored fields: user, tools"]
    assert ask(max_tokens=10**6)["warnings"] == ["max_tokens is 64, this server's limit, instead of 1,000,000"]
    greedy = ask(temperature=0, stop="####")
    assert greedy["choices"][0]["message"]["content"] == "3 + 4 = 7\n\n7 - 2 = 5\n\n"
    assert greedy["choices"][0]["finish_reason"] == "stop"
    assert ask(seed=1)["prism"]["candidates"] == ask(seed=1)["prism"]["candidates"]
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROBLEM}]
    assert ask(messages=system)["usage"]["prompt_tokens"] > ask()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat("other@beam-16"), "'other@beam-16' does not exist; models are tiny@RULE-N"),
        (chat("tiny"), "such as tiny@best-of-16"),
        (chat("tiny@mcts-4"), "best-of, vote, beam, dvts and N up to 64"),
        (chat("tiny@beam-65"), "n = 65, but this server's limit is 64"),
        (chat("tiny@beam-4?aggregator=max"), "Unknown aggregator 'max'"),
        (chat("tiny@beam-4?prm=none"), "PRM 'none' does not exist; PRMs are base, owner/prism"),
        (chat("tiny@beam-4?width=2"), "option 'width'; known: aggregator, prm"),
        (chat(n=5), "n = 5, but best-of-4 finds at most 4 solutions"),
        (chat("tiny@beam-16", n=5), "beam-16 finds at most 4"),
        (chat(n=2, stream=True), "stream sends one answer, but n = 2"),
        (chat(n=0), "n: Input should be greater"),
        (chat(max_tokens=0), "max_tokens: Input should be greater"),
        (chat(problem="1+" * 2000), "tokens, but the policy's context is 1,024; shorten it"),
        (chat(problem=" "), "The user's turn is empty"),
        (chat(messages=[]), "got no turns"),
        (
            chat(messages=turns("user", "assistant")),
            "that end with the user's, perhaps after a system's; got user, ass",
        ),
        (chat(messages=turns("user", "system", "user")), "got user, system, user"),
        (chat(messages=turns("user", "assistant", "user")), "has no chat template, so it takes one user turn"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]),
            "content.list[TextPart].1: only text is read, not a part of type 'image_url'",
        ),
    ],
)
def test_errors(server: Running, body: dict[str, Any], words: str) -> None:
    answer = server.post("/v1/chat/completions", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert words in error["message"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)


def test_a_conversation(tmp_path: Path) -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0].content == 'no' %}{{ raise_exception('Roles must alternate') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    tokenizer.save_pretrained(tmp_path)
    text = {"text": "#### 5", "finish_reason": "stop", "stop_reason": None}
    prompting = Prompting(user="{problem} Be brief.")
    earlier = [*turns("user", "assistant"), {"role": "user", "content": [{"type": "text", "text": "3+"}] * 2}]
    whole = "User: turn 1\n\nAssistant: turn 2\n\nUser: 3+3+"
    scorer = GatedScorer()
    with serve(lambda _: (200, {"choices": [text]})) as (url, asked):
        policy = PolicySettings(f"mine=openai:{url}", prompting=prompting, tokenizer=str(tmp_path))
        with running({"scorer": scorer}, policy=policy) as server:

            def ask(*messages: dict[str, Any]) -> tuple[str, set[int]]:
                """The policy's prompt and the seeds that it gets."""
                asked.clear()
                answer = server.post("/v1/chat/completions", chat("mine@vote-4", messages=list(messages)))
                assert answer.status_code == 200, answer.text
                (prompt,) = {one["prompt"] for one in asked}
                return prompt, {one["seed"] for one in asked}

            prompt, seeds = ask(*earlier)
            assert prompt == "<user>turn 1<assistant>turn 2<user>3+3+ Be brief.<assistant>"
            assert scorer.calls[-1][0].problem == whole
            system = {"role": "developer", "content": "Hi."}
            assert ask(system, *earlier) == (f"<system>Hi.{prompt}", seeds)
            assert ask({"role": "user", "content": whole}) == (f"<user>{whole} Be brief.<assistant>", seeds)
            other, others = ask(*turns("user", "assistant", "user"))
            assert other == prompt.replace("3+3+", "turn 3")
            assert not seeds & others
            no = server.post(
                "/v1/chat/completions", chat("mine@vote-4", messages=[{"role": "user", "content": "no"}, *earlier])
            )
            assert no.status_code == 400
            assert no.json()["error"]["message"].endswith("does not take these turns: Roles must alternate")


def test_one_model(server: Running, prms: dict[str, Any]) -> None:
    listed = {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}
    with client(server) as ai:
        for name, card in listed.items():
            assert ai.models.retrieve(name).model_dump(exclude_unset=True) == card
        found = ai.models.retrieve("tiny@vote-8?prm=owner/prism").model_dump(exclude_unset=True)
        assert found == listed["tiny@vote-16"] | {"id": "tiny@vote-8?prm=owner/prism", "n": 8, "prm": "owner/prism"}
        for name, words in (
            ("other", "'other' does not exist; models are tiny@RULE-N"),
            ("tiny@vote-65", "limit is 64"),
        ):
            with pytest.raises(openai.NotFoundError, match=words) as error:
                ai.models.retrieve(name)
            assert error.value.type == "NotFoundError"
    with running(prms, policy=GatedPolicy(), max_n=4) as small:
        assert [card["n"] for card in small.client.get("/v1/models").json()["data"][2:]] == [4] * 4


def test_a_server_without_a_policy(prms: dict[str, Any]) -> None:
    with running(prms) as server:
        assert server.client.get("/v1/models/owner/prism").json()["id"] == "owner/prism"
        none = server.client.get("/v1/models/tiny@vote-4")
        assert none.status_code == 404
        assert none.json()["error"]["message"] == "The model 'tiny@vote-4' does not exist. Models: base, owner/prism."
        answer = server.post("/v1/chat/completions", chat())
        assert answer.status_code == 400
        assert "start it with --policy" in answer.json()["error"]["message"]


def test_the_page_shows_the_last_requests_of_the_same_key(prms: dict[str, Any]) -> None:
    policy = GatedPolicy()
    policy.open.set()
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    with running(prms, ("one", "two"), policy=policy, kept_searches=2) as server:
        assert server.post("/v1/chat/completions", chat("policy@vote-4")).status_code == 401
        for problem in "123":
            server.post("/v1/chat/completions", chat("policy@vote-4", problem), headers=one)
        assert server.client.get("/v1/documents", headers=two).json()["data"] == []
        assert server.client.get("/v1/documents/requests-3", headers=two).status_code == 404
        (listed,) = server.client.get("/v1/documents", headers=one).json()["data"]
        assert (listed["id"], listed["kind"], listed["title"]) == ("requests", "search", "Last requests to policy")
        overview = server.client.get("/v1/documents/requests", headers=one).json()
        assert [(found["id"], found["text"]) for found in overview["problems"]] == [
            ("requests-3", "3"),
            ("requests-2", "2"),
        ]
        tree = server.client.get("/v1/documents/requests-3", headers=one).json()
        assert (tree["problem"], tree["texts"], tree["chosen"] in range(4)) == ("3", ["#### 5"], True)
        assert tree["how"]["method"] == "vote"
        assert [grade["answer"] for grade in tree["grades"]] == ["5"] * 4
        assert all(0 < step[2] < 1 for step in tree["steps"])


def test_metrics(prms: dict[str, Any]) -> None:
    policy = GatedPolicy()
    policy.open.set()
    with running(prms, policy=policy) as server:
        server.post("/v1/chat/completions", chat("policy@vote-4"))
        assert server.metric('prism_search_policy_tokens_sum{rule="vote"}') == 12
        assert server.metric('prism_search_rounds_sum{rule="vote"}') == 1
        assert server.metric("prism_waiting_searches") == server.metric("prism_running_searches") == 0
        until(lambda: server.metric('prism_requests_total{route="/v1/chat/completions",status="200"}') == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_costs_nothing_more(prms: dict[str, Any], stream: bool) -> None:
    policy = GatedPolicy()
    with running(prms, policy=policy, searches=1) as server:
        body = json.dumps(chat("policy@beam-4", stream=stream)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n".encode()
        searches = server.server.engine.searches
        assert searches is not None
        with contextlib.ExitStack() as stack:
            for number in range(3):  # one runs, the others wait
                address = "127.0.0.1", int(server.url.rpartition(":")[2])
                connection = stack.enter_context(socket.create_connection(address))
                connection.sendall(head + b"Content-Type: application/json\r\n\r\n" + body)
                until(lambda number=number: searches.admission.num_requests == number + 1)
            until(lambda: policy.num_writing == 1)
        until(lambda: policy.num_writing == 0 and searches.admission.num_requests == 0, 1)
        policy.open.set()
        assert server.post("/v1/chat/completions", chat("policy@beam-4")).status_code == 200
        assert policy.num_written == 1, "those that hung up wrote nothing"


def test_a_stopping_server_finishes_its_searches(prms: dict[str, Any]) -> None:
    policy = GatedPolicy()
    with running(prms, policy=policy) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/chat/completions", chat("policy@beam-4"))
        until(lambda: policy.num_writing == 1)
        server.server.handle_exit(15, None)
        until(lambda: not server.server.engine.is_ready)
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=chat("policy@beam-4"), timeout=300)
        assert refused.status_code == 503
        policy.open.set()
        assert asked.result().status_code == 200


def test_a_problem_longer_than_the_prms_context(prms: dict[str, Any]) -> None:
    policy = GatedPolicy()
    policy.open.set()
    with running(prms, policy=policy) as server:
        for rule, count in (("best-of-4", 4), ("beam-4", 1)):
            found = server.post("/v1/chat/completions", chat(f"policy@{rule}", "1+" * 5000 + "1"))
            assert found.status_code == 200, found.text
            assert found.json()["choices"][0]["message"]["content"] == "#### 5"
            assert [one["scores"] for one in found.json()["prism"]["candidates"]] == [None] * count
            assert found.json()["warnings"] == [
                f"the PRM could not score {count} of {count} solutions, which rank last"
            ]


def test_a_local_policy_stops_within_a_token(folder: Path) -> None:
    policy, calls = open_policy(f"hf:{folder}"), []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError

    with pytest.raises(KeyError):
        policy.write([StepRequest("3+4-2\n\n", 1, 50)], Sampling(stop="@"), check=check)
    assert len(calls) == 3


def test_overload_is_429_and_late_answers_are_504(prms: dict[str, Any]) -> None:
    policy = GatedPolicy()
    with running(prms, policy=policy, searches=1, max_searches=2) as server, ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/chat/completions", json=chat("policy@beam-4"), timeout=300)

        searches = server.server.engine.searches
        assert searches is not None
        asked = [pool.submit(ask, 0), pool.submit(ask, 1)]
        until(lambda: searches.admission.num_requests == 2)
        refused = ask(2)
        assert (refused.status_code, int(refused.headers["Retry-After"]) >= 1) == (429, True)
        assert server.steps({"problem": "1+1", "steps": ["1+1=2"]}, model="base")["items"], "scoring goes on"
        policy.open.set()
        assert [one.result().status_code for one in asked] == [200, 200]
        policy.open.clear()
    with running(prms, policy=policy, search_seconds=0.3) as server:
        late = server.post("/v1/chat/completions", chat("policy@beam-4"))
        assert (late.status_code, late.json()["error"]["message"]) == (504, "Not answered within 0.3 seconds.")
        until(lambda: policy.num_writing == 0)


def test_a_policy_behind_a_server_that_fails_and_comes_back(prms: dict[str, Any]) -> None:
    status = 200

    def answer(body: dict[str, Any]) -> Any:
        if "1+" * 50 in body["prompt"]:
            return 400, {"error": "the request exceeds the available context size"}
        text = {"text": "#### 5", "finish_reason": "stop", "stop_reason": None}
        return (status, {"choices": [text], "usage": {"completion_tokens": 3}}) if status == 200 else (status, {})

    with serve(answer) as (url, _):
        policy = PolicySettings(f"mine=openai:{url}", prompting=PLAIN, retry=RetryPolicy(retries=1, backoff=0.01))
        with running(prms, policy=policy) as server:
            found = server.post("/v1/chat/completions", chat("mine@vote-4"))
            assert found.status_code == 200, found.text
            assert found.json()["choices"][0]["message"]["content"] == "#### 5"
            status = 500
            broken = server.post("/v1/chat/completions", chat("mine@vote-4"))
            assert broken.status_code == 502
            assert "The policy failed: POST http://127.0.0.1" in broken.json()["error"]["message"]
            assert "rerun" not in broken.json()["error"]["message"]
            status = 503
            assert server.post("/v1/chat/completions", chat("mine@vote-4")).status_code == 503
            status = 200
            assert server.post("/v1/chat/completions", chat("mine@vote-4")).status_code == 200
            long = server.post("/v1/chat/completions", chat("mine@vote-4", "1+" * 60 + "1"))
            assert long.status_code == 400
            assert "longer than the policy's context" in long.json()["error"]["message"]


def test_a_policy_server_that_is_killed_and_restarted(prms: dict[str, Any]) -> None:
    text = {"text": "#### 5", "finish_reason": "stop", "stop_reason": None}

    def answer(_: dict[str, Any]) -> Any:
        return 200, {"choices": [text]}

    with contextlib.ExitStack() as first:
        url, _ = first.enter_context(serve(answer))
        policy = PolicySettings(f"mine=openai:{url}", prompting=PLAIN, retry=RetryPolicy(retries=1, backoff=0.01))
        with running(prms, policy=policy) as server:
            assert server.post("/v1/chat/completions", chat("mine@vote-4")).status_code == 200
            first.close()
            gone = server.post("/v1/chat/completions", chat("mine@vote-4"))
            assert (gone.status_code, "no connection" in gone.json()["error"]["message"]) == (502, True)
            with serve(answer, port=int(url.split(":")[2].removesuffix("/v1"))):
                assert server.post("/v1/chat/completions", chat("mine@vote-4")).status_code == 200
