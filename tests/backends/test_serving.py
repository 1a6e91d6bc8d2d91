"""A real `transformers serve` writes what the local policy writes, and may die in the middle of a search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from serving import Served

from prism_prm.backends.policy import Policy, PolicySettings, Sampling, StepRequest, Written, open_policy, write_steps
from prism_prm.cli import app
from prism_prm.data.pools import read_pool
from prism_prm.net import RetryPolicy, ServerError
from prism_prm.search.engine import SearchEngine
from prism_prm.search.tree import SearchResult
from tiny import SOLVED

SAMPLING = Sampling(temperature=0.0, max_step_tokens=12)


@pytest.fixture(scope="module")
def served(memorising_policy: Path) -> Iterator[Served]:
    server = Served(memorising_policy)
    server.start()
    yield server
    server.kill()


def solve(policy: Policy) -> list[list[Written]]:
    """Step after step, each problem's text growing by what was written, until all have ended."""
    asks = [StepRequest(policy.prompt(problem), 0, SAMPLING.max_step_tokens) for problem in SOLVED]
    found = []
    while asks:
        step = write_steps(policy, asks, SAMPLING)
        found.append([replace(one, state=None, log_likelihood=None, ids=()) for one in step])
        asks = [
            replace(ask, text=ask.text + one.text, state=one.state)
            for ask, one in zip(asks, step, strict=True)
            if one.ending == "stop"
        ]
    return found


def test_greedy_texts_equal_the_local_policy(served: Served) -> None:
    settings = PolicySettings(f"openai:{served.url}", model=str(served.model), retry=RetryPolicy(timeout=300))
    remote = open_policy(settings)
    local = open_policy(f"hf:{served.model}")
    assert [remote.prompt(p) for p in SOLVED] == [local.prompt(p) for p in SOLVED]
    expected = solve(local)
    assert solve(remote) == expected
    assert {one.ending for step in expected for one in step} == {"stop", "end"}
    assert [step[0].text for step in expected[:3]] == ["3 + 4 = 7\n\n", "7 - 2 = 5\n\n", "#### 5"]
    remote.close()


@pytest.mark.slow
def test_a_search_survives_its_server(served: Served, tmp_path: Path) -> None:
    """Killed in the middle of a run: a plain error, and the same command resumes when the server is back."""
    problems = [*SOLVED] * 3
    task = tmp_path / "task.jsonl"
    task.write_text(
        "".join(json.dumps({"problem": p, "answer": SOLVED[p][-1].removeprefix("#### ")}) + "\n" for p in problems)
    )
    command = [
        "search", "--policy", f"openai:{served.url}", "-P", f"model={served.model}", "--task", str(task), "--method",
        "greedy", "--out", str(tmp_path / "out"), "--set", "at_once=1", "-P", "concurrency=2", "-P", "retries=1",
        "--set", "policy.retry.backoff=0.1", "--set", "judges=1",
    ]  # fmt: skip
    journal = tmp_path / "out" / "journal" / "n1.jsonl"
    run, found_before = SearchEngine.run, []

    def killing(self: SearchEngine, problems: Any, keys: Any = None) -> Any:
        for found in run(self, problems, keys):
            yield found
            found_before.extend([found] if isinstance(found, SearchResult) else [])
            if len(found_before) == 5:
                served.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchEngine, "run", killing)
        with pytest.raises(ServerError, match=r"no connection .*rerun the same command"):
            CliRunner().invoke(app, command, catch_exceptions=False)
    assert len(journal.read_text().splitlines()) == 1 + 5
    served.start()
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert len(journal.read_text().splitlines()) == 1 + len(problems)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["points"][0]["accuracy"]["value"] == 1.0
    pool = read_pool(tmp_path / "out" / "pools" / "n1.jsonl")
    assert [list(solution.steps) for solution in pool.solutions] == [SOLVED[problem] for problem in problems]
