"""Rivals stand wherever a PRM can: in commands, rewards, searches and the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prism_prm import PRMReward, SearchSettings, open_policy, search_problems
from prism_prm.backends.load_prm import open_prm
from prism_prm.cli import app
from prism_prm.serve.models import ServedModel
from prism_prm.tree import StepTree

POOL = {"problem": "1 + 2?", "answer": "3", "solutions": [["Add.", "#### 3"], ["#### 4"], ["#### 3"]]}
LABELED = {"prompt": "1 + 2?", "completions": ["Add.", "3"], "labels": [True, False]}


def run(*arguments: object) -> None:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture
def names(tiny_lm: Callable[..., Path]) -> dict[str, str]:
    one, other = tiny_lm("qwen2"), tiny_lm("qwen2", initializer_range=0.2)
    return {
        "implicit": f"implicit:{one}+{other}", "sure": f"self-certainty:hf:{one}",
        "both": f"ensemble:mean-1std:logprob:hf:{one},implicit:{one}+{other}",
    }  # fmt: skip


def test_commands(names: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text(json.dumps(POOL) + "\n")
    (tmp_path / "labeled.jsonl").write_text(json.dumps(LABELED) + "\n" + json.dumps(LABELED | {"prompt": "2 + 2?"}))
    run("score", tmp_path / "labeled.jsonl", "--prm", names["both"], "--out", tmp_path / "scores.parquet")
    table = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    expected = open_prm(names["both"]).score("1 + 2?", ["Add.", "3"])
    assert [row["probability"] for row in table[:2]] == pytest.approx(expected, rel=1e-5)
    prms = [part for name, place in names.items() for part in ("--prm", f"{name}={place}")]
    run("rerank", tmp_path / "pool.jsonl", *prms, "--set", "judges=1", "--out", tmp_path / "rerank")
    metrics = json.loads((tmp_path / "rerank" / "metrics.json").read_text())
    assert {name: choice["value"] for name, choice in metrics["own_aggregator"].items()} == {
        "implicit": "min", "sure": "last", "both": "min",
    }  # fmt: skip
    assert all(count > 0 for count in metrics["tokens"].values())
    run("eval", "--bench", "labeled", "--data", tmp_path / "labeled.jsonl", "--prm", names["implicit"], "--threshold",
        "0.5", "--out", tmp_path / "eval")  # fmt: skip
    assert (tmp_path / "eval" / "metrics.json").exists()


def test_rewards_search_and_server(names: dict[str, str], memorising_policy: Path) -> None:
    scorer = open_prm(names["both"])
    reward = PRMReward(names["both"], gate=False, aggregator="last")
    [expected] = scorer.score_many([("1-2", ["1 - 2 = -1", "#### -1"])])
    assert reward(["1-2"], ["1 - 2 = -1\n\n#### -1"])[0] == pytest.approx(expected[-1], rel=1e-5)
    with contextlib.closing(open_policy(f"hf:{memorising_policy}")) as policy:
        settings = SearchSettings(method="beam", n=4, expand=2, max_steps=4)
        [found] = search_problems(policy, scorer, ["1-2"], settings)
    assert found.solutions
    steps = list(found.solutions[0].steps)
    assert [odds[0] for odds in found.solutions[0].log_odds] == pytest.approx(
        scorer.score_trees([StepTree.chain("1-2", steps)])[0].log_odds_NO[:, 0].tolist(), abs=1e-4
    )
    served = ServedModel("both", scorer)
    [scores] = served.score([("me", served.item(StepTree.chain("1-2", ["1 - 2 = -1"])))])
    assert scores.log_odds_NO.shape == (1, 1)
