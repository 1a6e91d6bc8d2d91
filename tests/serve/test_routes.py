"""Every route gives the scores that the same PRM gives in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from prism_prm import PRM, StepTree, solution_score
from prism_prm.errors import DataError
from prism_prm.rl.prompts import completion_in, problem_in
from prism_prm.rl.reward import split_end
from prism_prm.steps import cut_steps
from prism_prm.tree import Step
from serving_prms import Running, running

PROBLEM, STEPS = "1+1+2-1", ["1+1=2", "2+2=3", "3-1=2", "#### 2"]
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
FAMILIES = [
    ("qwen", "qwen2"), ("token-classification", "llama"), ("math-shepherd", "mistral"), ("rlhflow", "llama"),
    ("skywork", "qwen2"), ("reasoneval", "mistral"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(prms: dict[str, Any]) -> Iterator[Running]:
    with running(prms) as found:
        yield found


@pytest.fixture(scope="module")
def families(tiny_prm: Callable[..., Any]) -> Iterator[tuple[Running, dict[str, PRM]]]:
    """A server with a PRM of each family, in 64 bits, so that scores can be compared closely."""
    made = {family: tiny_prm(family, kind) for family, kind in FAMILIES}
    with running(made) as found:
        yield found, made


def chat(problem: str, steps: list[str], system: str | None = SYSTEM) -> list[dict[str, str]]:
    turns = [] if system is None else [{"role": "system", "content": system}]
    said = "".join(f"{step}<extra_0>" for step in steps)
    return [*turns, {"role": "user", "content": problem}, {"role": "assistant", "content": said}]


@pytest.mark.parametrize("family", [family for family, _ in FAMILIES])
def test_messages_of_every_family(family: str, families: tuple[Running, dict[str, PRM]]) -> None:
    """`<extra_0>` separates steps whatever the family, whose own encoding then applies."""
    server, made = families
    steps = ["Let x be 1.", "Then x + 2 = 3,", "so the answer is 3."]
    answer = server.post("/pooling", {"model": family, "messages": chat("What is x + 2?", steps)}).json()
    assert answer["object"] == "list"
    assert answer["model"] == family
    rows = np.array(answer["data"][0]["data"])
    expected = made[family].score("What is x + 2?", steps)
    assert rows[:, 1] == pytest.approx(expected, abs=1e-9)
    assert rows.sum(axis=1) == pytest.approx(np.ones(3))
    tokens = made[family].count_tokens(StepTree.chain("What is x + 2?", steps))
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == tokens


@pytest.mark.parametrize("family", [family for family, _ in FAMILIES])
def test_steps_of_every_family(family: str, families: tuple[Running, dict[str, PRM]]) -> None:
    server, made = families
    prm = made[family]
    tree = StepTree(0, "x?", tuple(map(Step, ["Let x be 1.", "x = 2", "so 3", "so 4"])), (-1, -1, 0, 0), ())
    items = [{"problem": "x?", "steps": ["Let x be 1.", "so 3"]}]
    items += [{"problem": "x?", "nodes": [step.text for step in tree.nodes], "parents": list(tree.parents)}]
    answer = server.steps(*items, model=family)
    (scores,) = prm.score_trees([tree])
    chain, branches = answer["items"]
    assert branches["probabilities"] == pytest.approx(scores.probability.tolist(), abs=1e-9)
    for row, values in zip(branches["log_odds"], scores.log_odds_NO.tolist(), strict=True):
        assert row == pytest.approx(dict(zip(prm.outputs, values, strict=True)), abs=1e-7)
    assert chain["probabilities"] == pytest.approx([branches["probabilities"][i] for i in (0, 2)], abs=1e-9)
    assert chain["score"] == pytest.approx(prm.solution_score("x?", ["Let x be 1.", "so 3"]), abs=1e-9)
    assert chain["leaves"] is None
    assert [leaf["node"] for leaf in branches["leaves"]] == [1, 2, 3]
    assert branches["leaves"][1]["score"] == pytest.approx(chain["score"], abs=1e-9)
    assert answer["model_hash"] == prm.model_hash()
    assert answer["aggregator"] == prm.card.aggregator


def test_token_ids_and_text_as_vllm_takes_them(families: tuple[Running, dict[str, PRM]]) -> None:
    server, made = families
    prm = made["qwen"]
    encoded = prm.encode_tree(StepTree.chain("What?", ["Let x be 1.", "so 3"]))
    ids = [*encoded.prompt, *(token for step in encoded.ids for token in step)]
    expected = prm.score("What?", ["Let x be 1.", "so 3"])
    body = {"model": "qwen", "task": "token_classify", "add_special_tokens": False}
    text = prm.tokenizer.decode(ids)
    for given in ([ids, ids[:-1]], [text]):
        answer = server.post("/pooling", body | {"input": given}).json()
        assert np.array(answer["data"][0]["data"])[:, 1] == pytest.approx(expected, abs=1e-9)
    (whole, cut) = server.post("/pooling", body | {"input": [ids, ids[:-1]]}).json()["data"]
    assert len(whole["data"]) == 2
    assert cut["data"] == whole["data"][:1], "the last step has no tag"
    (only,) = server.post("/pooling", body | {"input": ids}).json()["data"]
    assert only == whole
    assert server.post("/pooling", body | {"input": [[5, 6]]}).json()["data"][0]["data"] == []


def test_token_ids_and_text_for_an_example_prm(server: Running, prms: dict[str, Any]) -> None:
    """It reads no English, so its step tag is not to be found with English words."""
    prm = prms["owner/prism"]
    encoded = prm.encode_tree(StepTree.chain(PROBLEM, STEPS))
    ids = [*encoded.prompt, *(token for step in encoded.ids for token in step)]
    turns = [("user", PROBLEM), ("assistant", "<extra_0>".join(STEPS))]
    text = "\n".join(f"<|im_start|>{role}\n{said}" + "<|im_end|>" * (role == "user") for role, said in turns)
    for given in ([ids], [f"{text}<extra_0>"]):
        answer = server.post("/pooling", {"model": "owner/prism", "input": given}).json()
        assert np.array(answer["data"][0]["data"])[:, 1] == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-5)
        assert "warnings" not in answer


def test_a_system_message_of_the_client(families: tuple[Running, dict[str, PRM]]) -> None:
    """A family that lays one out takes the client's; others leave it out, as their layout does."""
    server, made = families
    qwen = made["qwen"]
    other = type(qwen.family)(qwen.tokenizer, settings={"system": "Be brief."})
    before = qwen.family
    qwen.family = other
    expected = qwen.score("x?", ["so 3"])
    qwen.family = before
    answers = {
        system: server.post("/pooling", {"model": "qwen", "messages": chat("x?", ["so 3"], system)}).json()
        for system in ("Be brief.", SYSTEM, None)
    }
    found = {system: answer["data"][0]["data"][0][1] for system, answer in answers.items()}
    assert found["Be brief."] == pytest.approx(expected[0], abs=1e-9)
    assert found[SYSTEM] == found[None] == pytest.approx(qwen.score("x?", ["so 3"])[0], abs=1e-9)
    assert found[None] != found["Be brief."]


def test_a_system_message_that_the_prm_has_no_place_for(
    prms: dict[str, Any], tiny_prm: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """reward_hub sends one to every PRM; a PRM that reads none would be given a prompt that it was not trained on."""
    with running({"prism": prms["owner/prism"], "rlhflow": tiny_prm("rlhflow", "llama")}) as server:
        for model in ("prism", "rlhflow"):
            bare, *asked = (
                server.post("/pooling", {"model": model, "messages": chat(PROBLEM, STEPS, system)}).json()
                for system in (None, SYSTEM, SYSTEM, "")
            )
            for answer in asked:
                assert answer["data"] == bare["data"]
                assert answer["usage"]["total_tokens"] == bare["usage"]["total_tokens"]
            warning = f"{model} reads no system message, so the request's was ignored"
            assert [answer.get("warnings") for answer in (bare, *asked)] == [None, [warning], [warning], None]
            assert [record.message for record in caplog.records].count(warning) == 1, "logged once"


def test_steps_and_what_is_said_of_them(server: Running, prms: dict[str, Any]) -> None:
    answer = server.steps({"problem": PROBLEM, "steps": STEPS}, model="owner/prism")
    prm = prms["owner/prism"]
    (item,) = answer["items"]
    assert item["probabilities"] == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-5)
    assert item["first_error"] == 1
    assert item["score"] == pytest.approx(solution_score(item["probabilities"], prm.card.aggregator))
    assert item["too_long"] == []
    assert item["tokens"] == prm.count_tokens(StepTree.chain(PROBLEM, STEPS)) == answer["usage"]["total_tokens"]
    assert answer["threshold"] == prm.card.threshold


def test_get_reward_as_openrlhf_asks(server: Running, prms: dict[str, Any]) -> None:
    prompt = f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
    body = {
        "query": [prompt + "\n\n".join(STEPS) + "<|im_end|>", prompt],
        "prompts": [prompt] * 2,
        "labels": ["2", "2"],
    }
    answer = server.post("/get_reward?model=owner/prism", body).json()
    assert answer["rewards"] == pytest.approx([prms["owner/prism"].solution_score(PROBLEM, STEPS), 0.0], abs=1e-6)
    assert answer["scores"] == answer["rewards"]
    assert answer["extra_logs"] == {"steps": [4.0, 0.0], "has_error": [1.0, 0.0]}


def test_a_query_begins_with_its_prompt(server: Running, prms: dict[str, Any]) -> None:
    """Behind special tokens it is found; where it is not there, nothing of it is scored as a step."""
    path, text = "/get_reward?model=owner/prism", "\n\n".join(STEPS)
    right = prms["owner/prism"].solution_score(PROBLEM, STEPS)
    answer = server.post(path, {"query": [f"<s>[CLS] {PROBLEM}\n{text}"], "prompts": [f"{PROBLEM}\n"]})
    assert answer.json()["rewards"] == pytest.approx([right], abs=1e-6)
    for query in (f"#{PROBLEM}\n{text}", text):
        answer = server.post(path, {"query": [f"{PROBLEM}\n", query], "prompts": [f"{PROBLEM}\n"] * 2})
        assert answer.status_code == 400
        assert "query 1 does not begin with its prompt" in answer.json()["error"]["message"]


def test_the_paths_of_trees_have_a_limit(server: Running) -> None:
    """Each path is scored as a solution: a stem of 1,000 nodes with as many leaves has a million steps on them."""
    stem, many = list(range(-1, 999)), 600
    tree = {"problem": "1", "nodes": ["1"] * (1000 + many), "parents": stem + [999] * many}
    refused = server.post("/v1/steps", {"model": "base", "items": [tree]})
    assert refused.status_code == 413
    assert "have 600,600 steps in all; the limit is 500,000" in refused.json()["error"]["message"]
    bush = {"problem": "1", "nodes": ["1+1=2"] + ["#### 2"] * 300, "parents": [-1] + [0] * 300}
    (item,) = server.steps(bush, model="base")["items"]
    assert len(item["leaves"]) == 300


def test_no_text_takes_quadratic_time() -> None:
    """They are read while the whole process waits."""
    started = time.process_time()
    many = 100_000
    assert split_end("a" + "\n" * many + "x </s>\n<|im_end|>") == ("a" + "\n" * many + "x", True)
    assert split_end("a" + "</s>\n" * many) == ("a", True)
    assert problem_in("[INST]" * many) == "[INST]" * many
    assert problem_in("[INST] a [/INST] b" * many + "[INST] open") == "a"
    assert problem_in("<|im_start|>user\n" * many + "c<|im_end|>[INST]") == "c"
    assert cut_steps("a" + "\n" * many + "b") == ["a", "b"]
    with pytest.raises(DataError, match="query 7 does not begin"):
        completion_in("<" * many + "p", "<p", 7)
    assert time.process_time() - started < 60, "seconds of CPU, not of a clock; it would take hours"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"problem": "p", "nodes": ["a", 1], "parents": [-1, 0]},
            "items.0.Tree.nodes.1: Input should be a valid string",
        ),
        ({"problem": "p", "step": []}, "items.0.Solution: unknown field 'step'; known: problem, steps"),
        ({"problem": "p", "solution": 1}, "items.0.Text.solution: Input should be a valid string"),
    ],
)
def test_a_mistake_is_that_of_the_form_that_was_meant(server: Running, item: Any, message: str) -> None:
    assert server.post("/v1/steps", {"items": [item]}).json()["error"]["message"] == message


def test_models_health_version_and_metrics(server: Running, prms: dict[str, Any]) -> None:
    from prism_prm import __version__

    (base, prism) = server.client.get("/v1/models").json()["data"]
    assert [base["id"], prism["id"]] == ["base", "owner/prism"]
    assert prism["model_hash"] == prms["owner/prism"].model_hash()
    assert prism["identity"] == prms["owner/prism"].identity()
    assert prism["max_model_len"] == prms["owner/prism"].context
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").json() == {"status": "ready"}
    assert server.client.get("/version").json() == {"version": __version__}
    page = server.client.get("/metrics").text
    assert 'prism_requests_total{route="/version",status="200"} 1.0' in page


def test_the_page_of_the_api_needs_no_network(server: Running) -> None:
    page = server.client.get("/docs").text
    assert "http" not in page.replace("http-equiv", "")
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
        assert f"docs/files/{name}" in page
        assert server.client.get(f"/docs/files/{name}").status_code == 200
    schema = server.client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/{name}", "/pooling", "/v1/steps",
        "/v1/tokens", "/get_reward",
        "/v1/documents", "/v1/documents/{name}", "/v1/chat/completions",
    }  # fmt: skip
    statuses = {int(status) for status in schema["paths"]["/v1/steps"]["post"]["responses"]}
    assert statuses == {200, 400, 401, 404, 413, 429, 502, 503, 504}


def test_a_scorer_that_is_no_prm() -> None:
    """Critics and remote PRMs are served through the protocol alone; requests of one problem are one tree."""
    from prism_prm.lab.world.oracle import OracleScorer

    class Counting(OracleScorer):
        trees: ClassVar[list[StepTree]] = []

        def score_trees(self, trees: Any, wanted: Any = None, **more: Any) -> Any:
            self.trees += trees
            return super().score_trees(trees, wanted, **more)

        def count_tokens(self, tree: StepTree) -> int:
            return len(tree.nodes)

    oracle = Counting(7)
    with running({"oracle": oracle}) as server:
        both = [{"problem": PROBLEM, "steps": STEPS}, {"problem": PROBLEM, "steps": ["1+1=2", "2+2=4"]}]
        first, second = server.steps(*both)["items"]
        assert [round(p) for p in first["probabilities"]] == [1, 0, 1, 1]
        assert [round(p) for p in second["probabilities"]] == [1, 1]
        assert [len(tree.nodes) for tree in oracle.trees] == [5], "the first step is shared"
        refused = server.post("/pooling", {"input": [[1, 2]]})
        assert refused.status_code == 400
        assert "takes messages and steps" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/steps", '{"items": [{"problem": "1+1", "steps": ["1+1=2", "\\ud800"]}]}'),
        ("/v1/steps", '{"items": [{"problem": "\\ud800", "solution": "1+1=2"}]}'),
        ("/v1/steps", '{"items": [{"problem": "1", "nodes": ["\\udfff"], "parents": [-1]}]}'),
        ("/v1/tokens", '{"items": [{"problem": "1+1", "steps": ["\\ud800"]}]}'),
        ("/v1/steps", '{"model": "\\ud800", "items": []}'),
        ("/v1/steps", '{"\\ud800": 1, "items": []}'),
        ("/pooling", '{"input": ["1+1=2<extra_0>\\ud800"]}'),
        ("/pooling", '{"input": "\\ud800"}'),
        ("/pooling", '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": ""}]}'),
        (
            "/pooling",
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}, '
            '{"role": "assistant", "content": "1<extra_0>"}]}',
        ),
        ("/get_reward", '{"query": ["1+1\\ud800"], "prompts": ["1+1"]}'),
        ("/get_reward", '{"query": ["1+1"], "prompts": ["\\ud800"]}'),
    ],
)
def test_half_a_character_is_refused(path: str, body: str, tiny_prm: Callable[..., Any]) -> None:
    """JSON can hold one half of a surrogate pair, which is no text."""
    with running({"m": tiny_prm("qwen", "qwen2")}) as server:
        answer = server.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        if '{"\\ud800"' not in body:
            assert "as a unicode string" in answer.json()["error"]["message"]
