"""Parquet tables, score stores, journals and the JSON files of folders, torn and with other content than is right."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import anything, as_json, fuzz, mutated, survives, torn
from hypothesis import strategies as st

from prism_prm.data.pools import read_pool
from prism_prm.data.reader import Reader
from prism_prm.data.tables import check_split, iter_pairs, iter_trees, read_pairs, write_pairs, write_trees
from prism_prm.evaluate.compare import load_run
from prism_prm.evaluate.measure import read_steps
from prism_prm.evaluate.score_files import read_scores, scores_of_trees, table_of_trees
from prism_prm.job import Journal, is_made_for, once
from prism_prm.models.card import read_card, read_run
from prism_prm.models.model_files import base_of
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.store import Request, ScoreStore
from prism_prm.tree import StepPair, StepTree

TREES = [StepTree.chain("p", ["a", "b"], tree_id=i, name=f"t{i}") for i in range(2)]


class Lengths(Scorer):
    """A scorer whose score of a step is its length."""

    def identity(self) -> str:
        return "lengths"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]) -> list[TreeScores]:  # noqa: ARG002
        return [TreeScores(self.outputs, np.array([[float(len(s.text))] for s in tree.nodes])) for tree in trees]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Name → the bytes of a valid table."""
    folder = tmp_path_factory.mktemp("valid")
    write_trees(folder / "trees.parquet", TREES, split="train", source="a.jsonl")
    write_pairs(folder / "pairs.parquet", [StepPair(0, 0, 0, 0, 1, 0, "annotated")], split="train")
    scores = Lengths().score_trees(TREES, [range(2)] * 2)
    pq.write_table(table_of_trees(TREES, scores, ("correct",), "m"), folder / "scores.parquet")
    ScoreStore(folder / "store", Lengths()).score([Request.all_of(tree) for tree in TREES])
    (filed,) = (folder / "store").rglob("*.parquet")
    pq.write_table(pa.Table.from_pylist(SAMPLED), folder / "pool.parquet")
    steps = pa.table({
        "item": pa.array(["x", "x"]).dictionary_encode(), "group": pa.array(["g", "g"]).dictionary_encode(),
        "cluster": [0, 0], "contaminated": pa.array([-1, -1], pa.int8()), "parent": [-1, 0],
        "label": pa.array([1, 0], pa.int8()), "probability": [0.5, 0.25], "redundancy": [float("nan")] * 2,
        "content_hash": pa.array(["0f", "0f"]).dictionary_encode(),
    })  # fmt: skip
    pq.write_table(steps, folder / "steps.parquet")
    found = {file.stem: file.read_bytes() for file in folder.glob("*.parquet")}
    return {**found, "store": filed.read_bytes()}


SAMPLED = [{"problem": "p", "answer": "1", "solutions": [{"steps": ["a", "b"], "scores": [0.5, 1.0], "tokens": 3}]}] * 2
FRESH = itertools.count()


def read_all(path: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a table, by name."""
    requests = [Request.all_of(tree) for tree in TREES]

    def stored() -> Any:
        folder = path.parent / f"store-{next(FRESH)}"
        store = ScoreStore(folder, Lengths())
        store.folder.mkdir(parents=True)
        shutil.copy(path, store.folder / "0.parquet")
        try:
            scores = ScoreStore(folder, Lengths()).score(requests)
            assert all(one.log_odds_NO.shape == (2, 1) for one in scores)
        finally:
            shutil.rmtree(folder)

    return {
        "trees": lambda: [tree.content_hash() for tree in iter_trees(path)],
        "pairs": lambda: (list(iter_pairs(path)), read_pairs(path, split="train").num_rows),
        "scores": lambda: scores_of_trees(read_scores(path), TREES),
        "pool": lambda: read_pool(path).content_hash(),
        "records": lambda: [draft.tree(0) for _, draft in Reader([path], unlabeled=True).drafts()],
        "split": lambda: check_split(path, "train"),
        "steps": lambda: read_steps(path),
        "store": stored,
        "made for": lambda: is_made_for(path, "x"),
    }


@fuzz(0.06, which=st.sampled_from(("trees", "pairs", "scores", "store", "pool", "steps")), data=st.data())
def test_torn_tables(tables: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, which: str, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "torn.parquet"
    path.write_bytes(data.draw(torn(st.just(tables[which]))))
    readers = read_all(path)
    for name in {which, data.draw(st.sampled_from(sorted(readers)))}:
        survives("torn tables", readers[name])


columns = ("tree_id", "name", "problem", "nodes", "trunk", "split", "source", "key", "correct", "too_long", "chosen",
           "answer", "solutions", "item", "log_odds", "parent", "node_id", "content_hash")  # fmt: skip
arrays = st.sampled_from([
    pa.array([1, 2]), pa.array(["a", "b"]), pa.array([None, None]), pa.array([[1], []]),
    pa.array([{"text": "a"}, None]),
    pa.array([1.5, float("nan")]), pa.array([b"\xff", b"a" * 16]), pa.array(["a", None]).dictionary_encode(),
    pa.array([True, None]), pa.array([2**62, -1]), pa.array([[{"text": None}], None]), pa.array([["a"], [None]]),
    pa.array([0, 0], pa.timestamp("s")), pa.array([{"correct": "x"}, {"correct": None}]),
])  # fmt: skip


@fuzz(0.06, which=st.sampled_from(("trees", "pairs", "scores", "store", "pool", "steps")), data=st.data())
def test_tables_with_other_columns(
    tables: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, which: str, data: Any
) -> None:
    table = pq.read_table(pa.BufferReader(tables[which]))
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from((*table.column_names, *table.column_names, *columns)))
        array = data.draw(arrays)[: table.num_rows]
        if len(array) < table.num_rows:
            continue
        at = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, array) if at is None else table.set_column(at, name, array)
    path = tmp_path_factory.getbasetemp() / "other.parquet"
    pq.write_table(table, path)
    readers = read_all(path)
    for name in {which, data.draw(st.sampled_from(sorted(readers)))}:
        survives("other tables", readers[name])


class Done(msgspec.Struct):
    """A record of a journal."""

    text: str
    scores: list[float]
    n: int = 0


LINES = [
    {"made_with": {"a": 1, "b": [1, 2]}},
    {"key": "x", "record": {"text": "t", "scores": [0.5], "n": 3}, "made_from": "", "seconds": 1.0},
]
journals = st.lists(mutated(LINES) | st.sampled_from(LINES), max_size=3).map(
    lambda found: b"".join(as_json(line) + b"\n" for line in found)
)


@fuzz(0.05, data=journals | torn(journals) | anything)
def test_journals(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "journal.jsonl"
    path.write_bytes(data)

    def go_on() -> None:
        with Journal(path, LINES[0]["made_with"], Done) as journal:
            before = dict(journal.done)
            journal.append("new", Done("u", [1.0]))
        with Journal(path, LINES[0]["made_with"], Done) as journal:
            assert journal.done == {**before, "new": Done("u", [1.0])}

    survives("journals", go_on)
    path.write_bytes(data)
    assert survives("journals", lambda: once(path, "k", lambda: [1])) == [1]
    assert json.loads(path.read_text())["result"] == [1], "written whole"


CARDS = [
    {
        "family": "qwen",
        "settings": {"a": "b"},
        "compat": False,
        "threshold": 0.5,
        "aggregator": "min",
        "frozen_layers": 0,
    }
]
ADAPTERS = [{"base_model_name_or_path": "x", "peft_type": "LORA", "r": 8}]
RUNS = [{"best": "rounds/1", "rounds": {"1": {"accuracy": 0.5}}}]
METRICS = [{"run": {"name": "x"}, "benchmarks": {"prmbench": {"threshold": {"value": 0.5}}}}]


def json_file(records: Sequence[Any]) -> st.SearchStrategy[bytes]:
    return mutated(records).map(as_json) | torn(mutated(records).map(as_json)) | anything


@fuzz(0.04, card=json_file(CARDS), metrics=json_file(METRICS))
def test_json_of_folders(tmp_path_factory: pytest.TempPathFactory, card: bytes, metrics: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "prism.json").write_bytes(card)
    (folder / "metrics.json").write_bytes(metrics)
    found = survives("cards", lambda: read_card(folder))
    assert found is None or isinstance(found.family, str)

    def thresholds() -> list[float]:
        run = load_run(str(folder))
        return [run.threshold(bench) for bench in run.benches]

    survives("metrics", thresholds)


@fuzz(0.02, adapter=json_file(ADAPTERS), run=json_file(RUNS))
def test_json_of_runs_and_adapters(tmp_path_factory: pytest.TempPathFactory, adapter: bytes, run: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "adapter_config.json").write_bytes(adapter)
    (folder / "run.json").write_bytes(run)
    survives("adapters", lambda: base_of(folder))
    survives("runs", lambda: read_run(folder))
