"""Searching for programs, by every method, with a policy and a PRM that are written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from payloads import OWN
from prism_prm.backends.policy import PolicySettings, Sampling, StepRequest, Written, rng
from prism_prm.cli import app
from prism_prm.errors import ConfigError
from prism_prm.grading import program_judge
from prism_prm.grading.sandbox_policy import SandboxError
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool
from prism_prm.search.search_report import Point
from prism_prm.search.search_task import search_task
from prism_prm.serve.page_documents import ShownResults, find_documents
from worlds import FakePrm


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "double.jsonl"
    path.write_text(json.dumps(OWN) + "\n")
    return path


class CodePolicy:
    """Writes a program in three steps, the last of them by lot; the first has an empty line within brackets."""

    name, has_log_likelihood = "code", True

    def identity(self) -> str:
        return "code"

    def prompt(self, problem: str) -> str:
        return f"{problem}\n\n"

    def close(self) -> None: ...

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        return [self._one(ask, sampling.stop) for ask in asks]

    def _one(self, ask: StepRequest, stop: str) -> Written:
        written = ask.text[ask.start :]
        whole = "```python\nx = int(\n\n    input())\n\nif True:\n\n    print(" + self._last(ask.key) + ")\n```"
        if "print(" not in written:
            piece = whole[len(written) :]
            if not piece.lstrip().startswith("print("):
                return Written(piece[: piece.index(stop) + len(stop)], "stop", 5, -1.0)
        return Written(whole[len(written) :], "end", 5, -1.0)

    def _last(self, key: int) -> str:
        return ("2 * x", "4", "y")[min(2, int(3 * rng(key).random()))]


def right(steps: tuple[str, ...]) -> float:
    """Likes the right program best, and one that crashes least."""
    return 0.2 if "print(y" in steps[-1] else 0.5 if "print(4" in steps[-1] else 0.8


def searched(task: Path, out: Path, method: Any, select: Any = None, *, prm: bool = True) -> Point:
    recipe = SearchRecipe(
        task=str(task), n=(8,), select=select, prm=("p",) if prm else (), policy=PolicySettings("openai:http://h/v1"),
        search=SearchSettings(method, aggregator="min"),
    )  # fmt: skip
    prms: dict[str, Any] = {"p": FakePrm(right)} if prm else {}
    (point,) = search_task(recipe, out, prms=prms, policy=CodePolicy(), judges=1)
    return point


@pytest.mark.parametrize("method", ["best-of-n", "beam", "dvts", "particle"])
def test_searching_for_programs(method: str, task: Path, tmp_path: Path) -> None:
    point = searched(task, tmp_path / "out", method, "argmax")
    assert point.accuracy.value == 1
    (pool,) = (tmp_path / "out" / "pools").glob("p-*.jsonl")
    record = json.loads(pool.read_text())
    assert all(one["steps"][0] == "```python\nx = int(\n\n    input())" for one in record["solutions"])
    assert any(one["steps"][2].startswith("    print(") for one in record["solutions"]), "indentation is kept"
    assert OWN["tests"][0]["output"] not in pool.read_text(), "pools hold no hidden test"


def test_sampling_programs_without_a_prm(task: Path, tmp_path: Path) -> None:
    one = searched(task, tmp_path / "vote", "sample", prm=False)
    assert 0 < one.accuracy.value <= one.oracle.value == 1
    two = searched(task, tmp_path / "tests", "sample", "public-tests", prm=False)
    assert 0 < two.accuracy.value < 1, "a lucky program passes, too"
    shown = find_documents(ShownResults.named([tmp_path / "tests"]))
    assert [one.kind for one in shown.values()] == ["search", "tree", "programs", "program"]
    programs = shown["0-n8-program-0"].body()["solutions"]
    assert [one["selected"] for one in programs].count(["the search"]) == 1
    for one in programs:
        passed = {"2": ["passed"], "4": ["passed"], "y": ["error"]}[one["program"].partition("print(")[2][0]]
        assert one["public"] == passed
        failed = ["not run" if passed == ["error"] else "failed", "not run"]
        assert one["hidden"] == (["passed"] * 2 if one["correct"] else failed)
    pool = tmp_path / "tests" / "pools" / "n8.jsonl"
    words = ["rerank", str(pool), "--task", str(task), "--out", str(tmp_path / "again"), "--set", "judges=1", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "again" / "metrics.json").read_text())
    (curve,) = [row for row in metrics["curves"] if row["method"] == "public-tests" and row["n"] == 8]
    assert curve["value"] == pytest.approx(two.accuracy.value)
    bare = rerank_pool(pool, tmp_path / "bare", settings=RerankSettings(judges=1))
    assert not bare.curves, "without the task nothing is measured"
    assert {one.rule for one in bare.selections} == {"majority", "public-tests"}


def test_a_sandbox_that_does_not_work_stops_a_search_before_it_begins(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> NoReturn:
        raise SandboxError("Programs cannot be run in isolation on this machine")

    monkeypatch.setattr(program_judge, "Sandbox", broken)
    with pytest.raises(SandboxError, match="cannot be run in isolation"):
        searched(task, tmp_path / "out", "sample", prm=False)
    assert not (tmp_path / "out" / "journal").exists()


def test_public_tests_are_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    with pytest.raises(ConfigError, match="no problem of sums has public tests"):
        searched(path, tmp_path / "out", "sample", "public-tests", prm=False)
