"""Nothing writes over what it reads, however the two are spelled; it is refused before any work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contents import contents
from gated_scorer import GatedScorer
from prism_prm import build_pairs, compare_runs, evaluate_prm, rerank_pool, score_files
from prism_prm.backends.policy import PolicySettings
from prism_prm.data.tables import write_trees
from prism_prm.errors import ConfigError
from prism_prm.evaluate.evaluate_prm import EvalSettings
from prism_prm.search.label_task import label_task
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import LabelRecipe, SearchRecipe
from prism_prm.search.search_task import search_task
from prism_prm.train.margins import measure_margins
from prism_prm.tree import Step, StepTree

SCORER: Any = GatedScorer()
NO_POLICY, SAMPLED = PolicySettings("hf:none"), SearchSettings("sample")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Solutions, pairs, an evaluation, a pool and links to them, in the current folder."""
    monkeypatch.chdir(tmp_path)
    trees = [StepTree.chain(f"p{i}", [Step("a", 1.0), Step("bb", 0.0)], tree_id=i) for i in range(4)]
    write_trees("in.parquet", trees)
    build_pairs("in.parquet", "pairs")
    evaluate_prm(GatedScorer(), "labeled", "eval", data="in.parquet", settings=EvalSettings(num_draws=100))
    Path("pools").mkdir()
    Path("pools/n2.jsonl").write_text(json.dumps({"problem": "p", "answer": "1", "solutions": ["1", "2"]}) + "\n")
    Path("selected.jsonl").write_text(Path("pools/n2.jsonl").read_text())
    os.symlink(tmp_path / "in.parquet", "link.parquet")
    os.link("in.parquet", "hard.parquet")
    os.symlink(tmp_path / "pairs", "linked")
    return tmp_path


@pytest.mark.parametrize(
    "act",
    [
        lambda: score_files(SCORER, "in.parquet", "in.parquet"),
        lambda: score_files(SCORER, "./pairs/../in.parquet", Path.cwd() / "in.parquet"),
        lambda: score_files(SCORER, "in.parquet", "link.parquet"),
        lambda: score_files(SCORER, "link.parquet", "in.parquet"),
        lambda: score_files(SCORER, "hard.parquet", "in.parquet"),
        lambda: score_files(SCORER, ["pairs"], "linked/trees.parquet"),
        lambda: measure_margins(SCORER, "pairs", "pairs/pairs.parquet"),
        lambda: measure_margins(SCORER, "linked", "pairs/trees.parquet"),
        lambda: build_pairs("pairs", "pairs"),
        lambda: build_pairs("linked/trees.parquet", "pairs"),
        lambda: compare_runs(["a=eval", "b=eval"], "eval", num_draws=100),
        lambda: rerank_pool("selected.jsonl", "."),
        lambda: search_task(SearchRecipe(task="pools/n2.jsonl", policy=NO_POLICY, search=SAMPLED), ".", policy=SCORER),
        lambda: label_task(LabelRecipe(task="in.parquet", check="pairs", policy=NO_POLICY), "pairs", policy=SCORER),
    ],
)
def test_inputs_are_kept(act: Callable[[], object], folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(ConfigError, match="is an input and would be overwritten; name another --out"):
        act()
    assert contents(folder) == before
    assert SCORER.calls == []


def test_new_files_beside_the_inputs_are_written_again_and_again(folder: Path) -> None:
    for _ in range(2):
        score_files(GatedScorer(), "pairs", "pairs/scores.parquet")
    build_pairs(folder / "in.parquet", folder)
    assert (folder / "trees.parquet").exists()
