"""What `prism serve` says: its OpenAPI document, and the answers to good and bad requests on every route."""

from __future__ import annotations

import re
from typing import Any

from golden import FLOAT32, check
from prism_prm import example_prm
from serving_prms import Running, running

PROBLEM, STEPS = "1+1+2-1", ["1+1=2", "2+2=3", "3-1=2", "#### 2"]
SOLUTION = {"problem": PROBLEM, "steps": STEPS}
TREE = {"problem": PROBLEM, "nodes": ["1+1=2", "2+2=4", "2+2=3", "4-1=3", "#### 3"], "parents": [-1, 0, 0, 1, 3]}
LONG = {"problem": PROBLEM, "steps": ["1+1=2"] * 60}
CHAT = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": "1+1=2<extra_0>2+2=3<extra_0>"}]
PARTS = [{"type": "text", "text": "1+1=2<extra_0>"}, {"type": "text", "text": "2+2=4<extra_0>"}]
PROMPT = f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
QUERY = PROMPT + "\n\n".join(STEPS) + "<|im_end|>"
KEY = {"Authorization": "Bearer first"}

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "health": ("GET", "/health", None),
    "ready": ("GET", "/ready", None),
    "models": ("GET", "/v1/models", None),
    "one model": ("GET", "/v1/models/owner/prism", None),
    "no such model to look at": ("GET", "/v1/models/nosuch", None),
    "no results": ("GET", "/v1/documents", None),
    "no such result": ("GET", "/v1/documents/0", None),
    "no such file of the page": ("GET", "/page/nosuch.js", None),
    "no such route": ("GET", "/v1/score", None),
    "wrong method": ("GET", "/v1/steps", None),
    "chat": ("POST", "/pooling", {"model": "base", "messages": CHAT}),
    "chat in parts after a system's turn": ("POST", "/pooling", {"model": "owner/prism", "messages": [
        {"role": "system", "content": "Be brief."}, CHAT[0], {"role": "assistant", "content": PARTS}]}),
    "text": ("POST", "/pooling", {"model": "base", "input": "1+1<extra_0>", "add_special_tokens": False}),
    "token ids": ("POST", "/pooling", {"model": "base", "input": [5, 6, 7]}),
    "token ids that are none": ("POST", "/pooling", {"model": "base", "input": [[5, 10**6]]}),
    "neither messages nor input": ("POST", "/pooling", {"model": "base"}),
    "a turn without steps": ("POST", "/pooling", {"model": "base", "messages": [
        CHAT[0], {"role": "assistant", "content": "1+1=2"}]}),
    "turns in another order": ("POST", "/pooling", {"model": "base", "messages": CHAT[::-1]}),
    "no such role": ("POST", "/pooling", {"model": "base", "messages": [{"role": "tool", "content": ""}]}),
    "steps": ("POST", "/v1/steps", {"model": "owner/prism", "items": [SOLUTION, {"problem": PROBLEM, "steps": []}]}),
    "tree": ("POST", "/v1/steps", {"model": "base", "items": [TREE]}),
    "steps in one text": ("POST", "/v1/steps", {"model": "base", "items": [
        {"problem": PROBLEM, "solution": "\n\n".join(STEPS)}]}),
    "nothing to score": ("POST", "/v1/steps", {"model": "base", "items": []}),
    "too long": ("POST", "/v1/steps", {"model": "base", "items": [LONG]}),
    "too long, skipped": ("POST", "/v1/steps", {"model": "base", "items": [LONG], "on_too_long": "skip"}),
    "too long, no such choice": ("POST", "/v1/steps", {"model": "base", "items": [LONG], "on_too_long": "cut"}),
    "several models": ("POST", "/v1/steps", {"items": [SOLUTION]}),
    "no such model": ("POST", "/v1/steps", {"model": "nosuch", "items": [SOLUTION]}),
    "unknown field": ("POST", "/v1/steps", {"model": "base", "items": [SOLUTION | {"step": 1}]}),
    "wrong type": ("POST", "/v1/steps", {"model": "base", "items": [TREE | {"nodes": ["a", 1]}]}),
    "a parent that comes later": ("POST", "/v1/steps", {"model": "base", "items": [TREE | {"parents": [1] * 5}]}),
    "too few parents": ("POST", "/v1/steps", {"model": "base", "items": [TREE | {"parents": [-1]}]}),
    "not JSON": ("POST", "/v1/steps", b'{"items": [}'),
    "not UTF-8": ("POST", "/v1/steps", b'{"items": "\xff"}'),
    "no object": ("POST", "/v1/steps", []),
    "no body": ("POST", "/v1/steps", None),
    "tokens": ("POST", "/v1/tokens", {"model": "base", "items": [SOLUTION, TREE, LONG]}),
    "rewards": ("POST", "/get_reward?model=owner/prism", {
        "query": [QUERY, PROMPT], "prompts": [PROMPT] * 2, "labels": ["2", "2"]}),
    "a query without its prompt": ("POST", "/get_reward?model=base", {"query": ["2"], "prompts": [PROMPT]}),
    "too few prompts": ("POST", "/get_reward?model=base", {"query": [QUERY], "prompts": []}),
}  # fmt: skip
GUARDED: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "health needs no key": ("GET", "/health", None, {}),
    "no key": ("GET", "/v1/models", None, {}),
    "another key": ("POST", "/v1/steps", {"items": [SOLUTION]}, {"Authorization": "Bearer second"}),
    "right key, and only one model": ("POST", "/v1/steps", {"items": [SOLUTION]}, KEY),
    "the same again": ("POST", "/v1/steps", {"items": [SOLUTION]}, KEY),
    "too large": ("POST", "/v1/steps", {"items": [SOLUTION] * 99}, KEY),
}  # fmt: skip
VARIES = ("id", "created", "identity", "model_hash")
"""Left out of answers, where they are not those of a model's card."""


def answer(server: Running, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    sent = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
    found = server.client.request(method, path, headers=headers, **sent)
    said = found.json()
    for one in (said, *said.get("data", ())):
        for name in VARIES if one.get("object") != "pooling" else ():
            if name in one and not (name == "id" and one["object"] == "model"):
                one[name] = type(one[name]).__name__
    named = {name: found.headers[name] for name in ("content-type", "www-authenticate") if name in found.headers}
    return {"status": found.status_code, "headers": named, "body": said}


def test_answers() -> None:
    prms = {"base": example_prm("base"), "owner/prism": example_prm("prism")}
    with running(prms, cache_mb=0) as server:
        found = {name: answer(server, *request) for name, request in REQUESTS.items()}
        metrics = server.client.get("/metrics").text
    with running({"base": prms["base"]}, ("first",), max_body=2000) as server:
        found |= {name: answer(server, *request) for name, request in GUARDED.items()}
    check("serve_answers", found, tolerance=FLOAT32)
    names = {re.sub(r'="[^"]*"', "", line.rpartition(" ")[0]) for line in metrics.splitlines() if line[0] != "#"}
    check("serve_metrics", sorted(name for name in names if "_created" not in name), tolerance=0)


def test_openapi() -> None:
    """Without what FastAPI and pydantic add on their own, which differs between their versions."""
    with running({"base": example_prm("base")}) as server:
        document = server.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for schema in schemas.values():
        for field in (schema, *schema.get("properties", {}).values()):
            field.pop("title", None)
    check("serve_openapi", {"paths": document["paths"], "schemas": schemas}, tolerance=0)
