"""`prism score`: the table, resuming, sharing out, and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prism_prm import PrismError, StepTree, init_prm, load_prm
from prism_prm.cli import app
from prism_prm.data.pools import holds_pool
from prism_prm.data.tables import scores_schema, write_trees
from prism_prm.evaluate.score_files import card_of_scores, inputs_of_scores, read_scores, write_scores


@pytest.fixture(scope="module")
def folder(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved PRM, solutions and trees."""
    root = tmp_path_factory.mktemp("scores")
    init_prm(tiny_lm("mistral"), family="reasoneval").save(root / "prm")
    records = [
        {
            "prompt": f"What is {i} + 1?",
            "completions": [f"x = {i}", "so y = 2", "done, so y = 2"],
            "labels": [True, True, False],
        }
        for i in range(7)
    ]
    (root / "solutions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return root


def chains(count: int = 7) -> list[StepTree]:
    steps = ["so y = 2", "done, so y = 2"]
    return [
        StepTree.chain(f"What is {i} + 1?", [f"x = {i}", *steps], tree_id=10 + i, name=f"n{i}") for i in range(count)
    ]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_table(folder: Path, tmp_path: Path) -> None:
    prm = load_prm(folder / "prm")
    trees = chains(3)
    report = write_scores(prm, trees, tmp_path / "s.parquet", chunk=2)
    assert (report.trees, report.steps, report.too_long, report.resumed) == (3, 9, 0, 0)
    table = read_scores(tmp_path / "s.parquet")
    assert table.schema.equals(scores_schema(("validity", "redundancy")))
    assert table["tree_id"].to_pylist() == [10] * 3 + [11] * 3 + [12] * 3
    assert table["node_id"].to_pylist() == [0, 1, 2] * 3
    assert table["parent"].to_pylist() == [-1, 0, 1] * 3
    assert table["name"].to_pylist()[:4] == ["n0", "n0", "n0", "n1"]
    assert set(table["model_hash"].to_pylist()) == {prm.identity()}
    assert table["content_hash"].to_pylist()[::3] == [tree.content_hash() for tree in trees]
    expected = [p for tree in trees for p in prm.score(tree.problem, tree.texts(tree.trunk))]
    assert table["probability"].to_pylist() == pytest.approx(expected, abs=1e-6)
    assert list(tmp_path.iterdir()) == [tmp_path / "s.parquet"], "no parts are left"


def test_stopped_work_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prm = load_prm(folder / "prm")
    write_scores(prm, chains(), tmp_path / "whole.parquet", chunk=2)
    scored: list[int] = []
    score_trees = type(prm).score_trees

    def stops(self: Any, trees: list[StepTree], wanted: Any) -> Any:
        if len(scored) == stop_after:
            raise KeyboardInterrupt
        scored.append(len(trees))
        return score_trees(self, trees, wanted)

    monkeypatch.setattr(type(prm), "score_trees", stops)
    stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        write_scores(prm, chains(), tmp_path / "s.parquet", chunk=2)
    assert not (tmp_path / "s.parquet").exists()
    stop_after = 99
    scored.clear()
    report = write_scores(prm, chains(), tmp_path / "s.parquet", chunk=2)
    assert (scored, report.resumed) == ([2, 1], 2)
    assert pq.read_table(tmp_path / "s.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))

    scored.clear()
    assert write_scores(prm, chains(), tmp_path / "s.parquet", chunk=2).steps == 21
    assert scored == [], "a finished table is not made again"
    write_scores(prm, chains(6), tmp_path / "s.parquet", chunk=2)
    assert sum(scored) == 6, "but other input is other work"
    prm.module.head.weight.data[0, 0] += 1.0
    scored.clear()
    write_scores(prm, chains(6), tmp_path / "s.parquet", chunk=2)
    assert sum(scored) == 6, "and so is another model"


def test_a_finished_table_gets_a_new_card(folder: Path, tmp_path: Path, said: list[str]) -> None:
    prm = load_prm(folder / "prm")
    out = tmp_path / "s.parquet"
    write_scores(prm, chains(), out, inputs=["a.jsonl"])
    before = read_scores(out)
    old = card_of_scores(out)
    prm.card = replace(prm.card, threshold=0.7, aggregator="product")
    report = write_scores(prm, chains(), out)
    assert said == [f"Reusing all scores: {out} is complete"]
    assert (report.trees, report.steps) == (7, 21)
    new = card_of_scores(out)
    assert old is not None
    assert new == replace(old, threshold=0.7, aggregator="product")
    assert read_scores(out).equals(before)
    assert inputs_of_scores(out) == ["a.jsonl"]
    write_scores(prm, chains(), out, inputs=["moved/a.jsonl"])
    assert inputs_of_scores(out) == ["moved/a.jsonl"], "or its texts would not be found"
    assert card_of_scores(out) == new


def test_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    result = run("score", "--prm", folder / "prm", folder / "solutions.jsonl", "--out", out, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "21 steps of 7 trees" in result.stdout
    assert read_scores(out).num_rows == 21

    write_trees(tmp_path / "trees.parquet", chains())
    run("score", "--prm", folder / "prm", tmp_path / "trees.parquet", "--out", out, "--device", "cpu")
    assert set(read_scores(out)["tree_id"].to_pylist()) == set(range(10, 17)), "a table of trees keeps its ids"

    encoded = [load_prm(folder / "prm").encode_tree(tree) for tree in chains()]
    context = max(tree.path_tokens(1) for tree in encoded)
    too_long = sum(tree.path_tokens(node) > context for tree in encoded for node in range(3))
    assert too_long > 0
    more = ["--set", f"context={context}", "--set", "on_too_long=skip"]
    result = run("score", "--prm", folder / "prm", tmp_path, "--out", out, *more)
    assert f"{too_long} steps exceeded the context" in result.stderr
    assert read_scores(out).num_rows == 21 - too_long


def test_a_run_is_its_best_round_and_steps_need_no_labels(folder: Path, tmp_path: Path) -> None:
    runs, line = tmp_path / "runs" / "mine", {"problem": "What is 1 + 1?", "steps": ["x = 1", "so y = 2"]}
    (runs / "rounds").mkdir(parents=True)
    (runs / "recipe.toml").write_text("seed = 0\n")
    (tmp_path / "steps.jsonl").write_text(json.dumps(line))
    command = ("score", "--prm", runs, tmp_path / "steps.jsonl", "--out", tmp_path / "s.parquet", "--device", "cpu")
    early = run(*command)
    assert isinstance(early.exception, PrismError)
    assert "this run is not finished (no round is finished yet)" in str(early.exception)
    shutil.copytree(folder / "prm", runs / "rounds" / "1_all")
    with pytest.raises(PrismError, match=rf"the finished rounds are PRMs: {runs}/rounds/1_all"):
        load_prm(runs)
    (runs / "run.json").write_text(
        json.dumps({"best": "rounds/1_all", "criterion": "auroc", "beats_base": True, "rounds": {}})
    )
    assert run(*command).exit_code == 0
    table = read_scores(tmp_path / "s.parquet")
    assert table["probability"].to_pylist() == pytest.approx(
        load_prm(folder / "prm").score(line["problem"], line["steps"]), abs=1e-6
    )


def test_errors(folder: Path, tmp_path: Path) -> None:
    missing = run("score", "--prm", folder / "nowhere", folder / "solutions.jsonl", "--out", tmp_path / "s.parquet")
    assert isinstance(missing.exception, PrismError)
    assert "no such model folder" in str(missing.exception)
    with pytest.raises(PrismError, match="no such scores table; `prism score` writes one"):
        read_scores(tmp_path / "none.parquet")
    write_trees(tmp_path / "trees.parquet", chains())
    with pytest.raises(PrismError, match=r"not a scores table; the columns \['log_odds'"):
        read_scores(tmp_path / "trees.parquet")


def test_a_pool_is_scored_solution_by_solution(folder: Path, tmp_path: Path) -> None:
    """Its table holds the scores that `prism rerank --prm` would make, under the same trees."""
    pool = tmp_path / "pool.jsonl"
    solutions = ["First.\n\nSo \\boxed{3}", {"steps": ["1 + 2 = 3"], "answer": "3"}, ""]
    pool.write_text(json.dumps({"problem": "1 + 2?", "answer": "3", "solutions": solutions}) + "\n")
    out = tmp_path / "s.parquet"
    result = run("score", "--prm", folder / "prm", pool, "--out", out, "--device", "cpu")
    assert "3 steps of 2 trees" in result.stdout
    table = read_scores(out)
    assert table["name"].to_pylist() == ["0#0", "0#0", "0#1"]
    prm = load_prm(folder / "prm", device="cpu")
    expected = [*prm.score("1 + 2?", ["First.", "So \\boxed{3}"]), *prm.score("1 + 2?", ["1 + 2 = 3"])]
    assert table["probability"].to_pylist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"problem": "p", "solutions": ["a", "b"]}, True),
        ({"prompt": "p", "completions": ["a", "b"], "answer": "1"}, True),
        ({"problem": "p", "completions": ["a", "b"]}, True),
        ({"prompt": "p", "completions": ["a", "b"]}, False),
        ({"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}, False),
        ({"problem": "p", "steps": ["a"]}, False),
        ({"problem": "p", "solution": "a"}, False),
    ],
)
def test_what_is_a_pool(record: dict[str, object], expected: bool, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    assert holds_pool(tmp_path / "x.jsonl") == expected
