"""Bodies that clients send: whatever they hold, the answer is a result or says what is wrong, and others are served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cases import anything, as_json, fuzz, mutated, survives, torn
from hypothesis import strategies as st
from pydantic import ValidationError

from gated_scorer import GatedScorer
from prism_prm.serve import schemas
from serving_prms import Running, running

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "1+1=2<extra_0>#### 2<extra_0>"},
]
BODIES: dict[str, list[Any]] = {
    "/v1/steps": [
        {"model": "qwen", "items": [{"problem": "1+1", "steps": ["1+1=2", "#### 2"]}]},
        {"model": "base", "items": [{"problem": "1+1", "nodes": ["1+1=2", "#### 2", "3"], "parents": [-1, 0, 0]}]},
        {"model": "base", "items": [{"problem": "1+1", "solution": "1+1=2\n\n#### 2"}]},
        {"model": "base", "items": [{"problem": "1+1", "steps": ["1+1=2"] * 40}], "on_too_long": "window"},
        {"items": [], "model": "qwen"},
    ],
    "/v1/tokens": [
        {"model": "qwen", "items": [{"problem": "1+1", "steps": ["1+1=2"]}, {"problem": "1", "solution": "2"}]},
    ],
    "/pooling": [
        {"model": "qwen", "messages": TURNS},
        {"model": "base", "messages": TURNS[1:]},
        {"model": "qwen", "input": [[1, 2, 3], [3, 3]], "add_special_tokens": False},
        {"model": "qwen", "input": ["<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n2<extra_0>", "x"]},
        {"model": "qwen", "input": [1, 2, 3], "task": "token_classify"},
        {"model": "qwen", "input": "one text"},
    ],
    "/get_reward?model=base": [{"query": ["1+1\n2", "1+1\n\n3"], "prompts": ["1+1\n"] * 2, "labels": [None, 2]}],
}


@pytest.fixture(scope="module")
def server(tiny_prm: Any) -> Iterator[Running]:
    from prism_prm import example_prm

    with running({"base": example_prm("base"), "qwen": tiny_prm("qwen", "qwen2")}, max_body=50_000) as found:
        yield found
        (item,) = found.steps({"problem": "1+1+2-1", "steps": ["1+1=2"]}, model="base")["items"]
        assert item["probabilities"] == pytest.approx(example_prm("base").score("1+1+2-1", ["1+1=2"]), abs=1e-5)
        assert 'status="5' not in found.client.get("/metrics").text


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from(sorted(BODIES)))
    written = mutated(BODIES[path]).map(as_json)
    return path, draw(written | written | torn(written) | anything)


@fuzz(0.15, request=requests())
def test_bodies(server: Running, request: tuple[str, bytes]) -> None:
    path, body = request
    answer = survives(
        "requests", lambda: server.client.post(path, content=body, headers={"Content-Type": "application/json"})
    )
    assert answer.status_code in (200, 400, 404, 413), answer.text
    found = json.loads(answer.content)
    if answer.status_code != 200:
        assert found["error"]["code"] == answer.status_code
        assert found["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/steps", {"items": [1] * 300_000}),
        ("/v1/steps", {"items": [{"problem": "p", "nodes": [1] * 100_000, "parents": ["a"] * 100_000}]}),
        ("/v1/steps", {"items": [{"problem": "p", "steps": []} | dict.fromkeys(map(str, range(100_000)), 1)]}),
        ("/v1/tokens", {"items": []} | dict.fromkeys(map(str, range(100_000)), 1)),
        ("/pooling", {"input": ["x", *[1] * 300_000]}),
        ("/pooling", {"input": [["x"] * 300_000]}),
        ("/pooling", {"messages": [{"role": "user", "content": [1] * 300_000}]}),
        ("/get_reward", {"query": [1] * 300_000, "prompts": []}),
    ],
)
def test_a_body_with_many_mistakes_is_refused_for_the_first(path: str, body: Any) -> None:
    """At the default size of bodies: a report of every mistake would take gigabytes, and the loop would stand still."""
    kind = {"/pooling": schemas.PoolingRequest, "/get_reward": schemas.RewardRequest}.get(path, schemas.StepsRequest)
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() < 10
    with running({"m": GatedScorer()}) as found:
        assert found.post(path, body).status_code == 400
