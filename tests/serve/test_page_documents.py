"""The page and the results that a server shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gated_scorer import GatedScorer
from prism_prm import EvalSettings, evaluate_prm
from prism_prm.cli import app
from prism_prm.errors import ConfigError
from prism_prm.serve.page_documents import ShownResults, find_documents
from serving_prms import running


def measure(folder: Path, scores: list[float]) -> None:
    (folder / "data.jsonl").write_text(json.dumps({"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}))
    (folder / "own.jsonl").write_text(json.dumps({"id": "tree-0", "scores": scores}))
    settings = EvalSettings(threshold=0.5, num_draws=100)
    evaluate_prm(
        None, "labeled", folder / "eval", data=folder / "data.jsonl", predictions=folder / "own.jsonl", name="mine",
        settings=settings,
    )  # fmt: skip


def test_a_document_is_sent_again_only_if_it_has_changed(tmp_path: Path) -> None:
    measure(tmp_path, [0.9, 0.8])
    with running({}, results=[str(tmp_path / "eval")]) as server:
        listed = server.client.get("/v1/documents").json()["data"]
        assert listed == [{"id": "0", "kind": "errors", "title": "mine on labeled", "note": "labeled: 1 items"}]
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


def test_a_place_that_breaks_takes_no_other_with_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        measure(tmp_path / name, [0.9, 0.8])
    with running({}, results=[f"{name}={tmp_path / name / 'eval'}" for name in ("a", "b")]) as server:
        metrics = tmp_path / "a" / "eval" / "metrics.json"
        before = metrics.read_bytes()
        metrics.write_text("{")
        listed = server.client.get("/v1/documents").json()["data"]
        assert [(one["kind"], one["title"]) for one in listed] == [("broken", "a"), ("errors", "mine on labeled")]
        assert str(metrics) in server.client.get(f"/v1/documents/{listed[0]['id']}").json()["message"]
        metrics.write_text('{"a": 1,')
        again = server.client.get("/v1/documents").json()["data"]
        assert again[0]["id"] != listed[0]["id"], "another message"
        assert len(server.client.get("/v1/documents/1").json()["errors"]) == 1
        metrics.write_bytes(before)
        assert [one["id"] for one in server.client.get("/v1/documents").json()["data"]] == ["0", "1"]


def test_texts_are_read_where_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path, [0.9, 0.8])
    moved = (tmp_path / "data.jsonl").rename(tmp_path / "moved.jsonl")
    seen = []

    def make_server(*_: object, results: ShownResults, **__: object) -> None:
        seen.append(results)
        raise ConfigError("that is enough")

    monkeypatch.setattr("prism_prm.serve.server.make_server", make_server)
    words = ["serve", "--results", f"mine={tmp_path / 'eval'}", "--data", str(moved), "--port", "0"]
    CliRunner().invoke(app, words)
    CliRunner().invoke(app, [*words, "--set", "split=validation"])
    assert [(one.data, one.split) for one in seen] == [((str(moved),), None), ((str(moved),), "validation")]
    [document] = find_documents(seen[0]).values()
    assert [item["texts"] for item in document.body()["items"]] == [["a", "b"]]


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
