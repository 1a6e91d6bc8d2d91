"""The page and the results that a server shows."""

from __future__ import annotations

import json
from pathlib import Path

from gated_scorer import GatedScorer
from prism_prm import EvalSettings, evaluate_prm
from serving_prms import running


def measure(folder: Path, scores: list[float]) -> None:
    (folder / "data.jsonl").write_text(json.dumps({"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}))
    (folder / "own.jsonl").write_text(json.dumps({"id": "tree-0", "scores": scores}))
    settings = EvalSettings(threshold=0.5, num_draws=100)
    evaluate_prm(
        None, "labelled", folder / "eval", data=folder / "data.jsonl", predictions=folder / "own.jsonl", name="mine",
        settings=settings,
    )  # fmt: skip


def test_a_document_is_sent_again_only_if_it_has_changed(tmp_path: Path) -> None:
    measure(tmp_path, [0.9, 0.8])
    with running({}, results=[str(tmp_path / "eval")]) as server:
        listed = server.client.get("/v1/documents").json()["data"]
        assert listed == [
            {"id": "0", "kind": "errors", "title": "mine on labelled", "note": "labelled: 1 items", "listed": True}
        ]
        first = server.client.get("/v1/documents/0")
        assert [error["kind"] for error in first.json()["errors"]] == ["fp"]
        known = {"If-None-Match": first.headers["ETag"]}
        assert server.client.get("/v1/documents/0", headers=known).status_code == 304
        measure(tmp_path, [0.2, 0.8])
        second = server.client.get("/v1/documents/0", headers=known)
        assert second.status_code == 200
        assert [error["kind"] for error in second.json()["errors"]] == ["fn", "fp"]
        assert second.headers["ETag"] != first.headers["ETag"]
        assert server.client.get("/v1/documents/1").status_code == 404


def test_the_page_is_served_under_a_strict_policy() -> None:
    with running({"m": GatedScorer()}) as server:
        page = server.client.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        script = server.client.get("/page/app.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert script.headers["x-content-type-options"] == "nosniff"
        assert server.client.get("/page/..%2findex.html").status_code == 404
        assert server.client.get("/page/index.html").status_code == 404
        assert server.client.get("/v1/documents").json() == {"object": "list", "data": []}


def test_a_solution_as_one_text_is_cut_into_steps() -> None:
    with running({"m": GatedScorer()}) as server:
        text = "one\n\n\n two \n\n```\nx = (1,\n\n2)\n```"
        [found] = server.steps({"problem": "p", "solution": text})["items"]
        assert found["steps"] == ["one", "two", "```\nx = (1,\n\n2)\n```"]
        [listed] = server.steps({"problem": "p", "steps": found["steps"]})["items"]
        assert listed["probabilities"] == found["probabilities"]
        assert listed.get("steps") is None
