"""On a Ray cluster of three nodes: the same numbers as in one process, also when workers, nodes and drivers are killed.

`kill -9` comes at random points of the work, and only where work is in flight. What is filed afterwards is complete,
and nothing is filed twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import prism_process
from killing import run_killed
from prism_prm import RerankSettings, evaluate_prm, init_prm, load_prm, measure_margins, rerank_pool, score_files
from prism_prm.backends.open_scorer import PrmOptions, RayScorer, _load, opened_prm
from prism_prm.console import Console, shown_on
from prism_prm.data.tables import write_pairs, write_trees
from prism_prm.errors import DataError
from prism_prm.evaluate.evaluate_prm import EvalSettings
from prism_prm.job import Opening
from prism_prm.ray import Ray, RaySettings, pool
from prism_prm.store import Request, ScoreStore
from prism_prm.tree import Step, StepPair, StepTree
from ray_cluster import RayCluster
from waiting import until

pytest.importorskip("ray")
NUM_TREES = 150
"""Two whole portions of 64, and a part."""


@pytest.fixture(scope="module")
def place(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PRM; solutions, pairs, a pool and labeled solutions."""
    root = tmp_path_factory.mktemp("ray")
    init_prm(tiny_lm("qwen2"), family="qwen").save(root / "prm")
    steps = [[f"{i} + {k} = {i + k}" for k in range(1 + i % 5)] for i in range(NUM_TREES)]
    rows = [{"problem": f"What is {i} + 1?", "steps": some, "id": str(i)} for i, some in enumerate(steps)]
    _lines(root / "solutions.jsonl", rows)
    labels = [[k != 1 for k in range(len(some))] for some in steps]
    records = [{"prompt": f"{i}?", "completions": steps[i], "labels": labels[i]} for i in range(NUM_TREES)]
    _lines(root / "labelled.jsonl", records)
    _lines(root / "pool.jsonl", [{"problem": f"{i}?", "answer": "1", "solutions": steps[i : i + 5]} for i in range(40)])
    trees = [
        StepTree(i, f"What is {i} + 1?", (Step(f"x = {i}", 1.0), Step("x = 7", 0.0)), (-1, -1), (0,))
        for i in range(NUM_TREES)
    ]
    (root / "pairs").mkdir()
    write_trees(root / "pairs" / "trees.parquet", trees, split="train")
    pairs = [StepPair(i, i, 0, 0, 1, i, "annotated") for i in range(NUM_TREES)]
    write_pairs(root / "pairs" / "pairs.parquet", pairs, split="train")
    return root


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Spread:
    """A PRM that three workers hold, and what was said about them."""

    prm: RayScorer
    said: list[str]

    @property
    def slots(self) -> list[Any]:
        workers: Any = self.prm.workers
        return list(workers._slots)

    def wait_for_all(self) -> None:
        """Until every worker has started, also in the place of one that was lost."""

        def is_complete() -> bool:
            self.prm.workers.ask(methodcaller("identity"))
            return all(slot.starting is None for slot in self.slots)

        until(is_complete)


@pytest.fixture(scope="module")
def spread(cluster: RayCluster, place: Path) -> Iterator[Spread]:
    said: list[str] = []
    settings = RaySettings(address=cluster.address, workers=3)
    with shown_on(Console(said.append)), opened_prm(place / "prm", PrmOptions(ray=settings)) as prm:
        found = Spread(prm, said)
        found.wait_for_all()
        assert len({slot.node for slot in found.slots}) > 1
        yield found


def score(prm: Any, place: Path, out: Path) -> None:
    score_files(prm, place / "solutions.jsonl", out / "table.parquet", chunk=16)


def margins(prm: Any, place: Path, out: Path) -> None:
    measure_margins(prm, place / "pairs", out / "table.parquet")


def rerank(prm: Any, place: Path, out: Path) -> None:
    settings = RerankSettings(judges=1, num_draws=10)
    rerank_pool(place / "pool.jsonl", out, prms={"mine": prm}, settings=settings)


def evaluate(prm: Any, place: Path, out: Path) -> None:
    evaluate_prm(prm, "labeled", out, data=place / "labelled.jsonl", name="mine", settings=EvalSettings(num_draws=100))


@pytest.mark.parametrize("work", [score, margins, rerank, evaluate])
def test_tables_are_those_of_one_process(
    spread: Spread, place: Path, tmp_path: Path, work: Callable[..., None]
) -> None:
    spread.wait_for_all()
    before = [slot.items for slot in spread.slots]
    for folder, prm in {"one": load_prm(place / "prm"), "three": spread.prm}.items():
        (tmp_path / folder).mkdir()
        work(prm, place, tmp_path / folder)
    names = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.parquet")}
    assert names == {path.relative_to(tmp_path / "three") for path in (tmp_path / "three").rglob("*.parquet")}
    assert names
    for name in names:
        one, three = (pq.read_table(tmp_path / folder / name) for folder in ("one", "three"))
        assert three.schema.equals(one.schema), name
        assert repr(three.to_pydict()) == repr(one.to_pydict()), name  # bit for bit, and NaN is NaN
    assert all(slot.items > done for slot, done in zip(spread.slots, before, strict=True)), "all workers took part"


def test_a_spread_prm_is_a_scorer(spread: Spread, place: Path) -> None:
    own = load_prm(place / "prm")
    trees = [StepTree.chain(f"{i}?", ["a", "b"]) for i in range(70)]
    assert (spread.prm.identity(), spread.prm.model_hash()) == (own.identity(), own.model_hash())
    assert (spread.prm.outputs, spread.prm.context, spread.prm.card) == (own.outputs, own.context, own.card)
    np.testing.assert_allclose(spread.prm.score_many(trees), own.score_many(trees), atol=1e-5)  # threads differ
    np.testing.assert_allclose(spread.prm.score("1 + 1?", ["2"]), own.score("1 + 1?", ["2"]), atol=1e-5)
    assert spread.prm.count_all(trees) == own.count_all(trees)
    assert spread.prm.can_score("a", 0) == own.can_score("a", 0)


def test_an_error_of_a_worker_names_the_item(spread: Spread) -> None:
    long = replace(StepTree.chain("long?", ["word " * 2000]), name="long-one", where="file.jsonl:7")
    said = r"^file\.jsonl:7: tree 0 \(long-one\), node 0: .* the model's context is .* \(on node .+/[0-9a-f]{6}\)$"
    with pytest.raises(DataError, match=said):
        spread.prm.score_trees([StepTree.chain("short?", ["a"]), long])


@pytest.mark.slow
def test_a_node_without_the_folder_gets_one_copy(
    cluster: RayCluster, place: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """All nodes are on this machine, so the folder has a name under which none of them sees it."""
    monkeypatch.setattr(pool, "pack", lambda ray, _folder: pack(ray, str(place / "prm")))
    from prism_prm.ray.cluster import pack

    make = partial(_load, place="/elsewhere/prm", load={})
    settings = RaySettings(address=cluster.address, workers=1)
    with Ray(settings).open(Opening(make, ("/elsewhere/prm",)), alike=methodcaller("identity")) as workers:
        assert workers.ask(methodcaller("identity")) == load_prm(place / "prm").identity()
    assert sum("copying /elsewhere/prm" in line for line in said) == 1


def kill_while_scoring(
    spread: Spread, place: Path, folder: Path, kill: Callable[[Any], None], after: int, said: str
) -> None:
    """Fill a store; after so many portions `kill` gets a worker that is at work. Then look at all that was filed.

    The worker is stopped first, so that what it is given then is certain to be in flight.
    """
    import ray

    spread.wait_for_all()
    trees = [StepTree.chain(f"{i} + 1?", [f"{i} + {k}" for k in range(2 + i % 5)]) for i in range(300)]
    requests = [Request.all_of(tree) for tree in trees]
    stopped, killed = list[Any](), list[Any]()
    portions = []

    def advance(done: int, _more: str = "") -> None:
        portions.append(done)
        if len(portions) > after and not stopped:
            stopped.append(spread.slots[0])
            os.kill(stopped[0].process, signal.SIGSTOP)
        if stopped and not killed and stopped[0].queue and not ray.wait([stopped[0].queue[-1][0]], timeout=0)[0]:
            killed.append(stopped[0])
            kill(stopped[0])

    before = len(spread.said)
    found = ScoreStore(folder, spread.prm, chunk=3).score(requests, advance=advance)
    assert killed, "work was in flight"
    assert any(said in line for line in spread.said[before:]), spread.said
    assert sum(portions) == 300
    _check_filed(folder, requests)
    expected = ScoreStore(folder.with_name("one"), load_prm(place / "prm"), chunk=3).score(requests)
    assert all(
        np.array_equal(a.log_odds_NO, b.log_odds_NO, equal_nan=True) for a, b in zip(found, expected, strict=True)
    )


def _check_filed(folder: Path, requests: list[Request]) -> None:
    keys = [key for path in folder.rglob("*.parquet") for key in pq.read_table(path)["key"].to_pylist()]
    assert len(keys) == len(set(keys)) == sum(len(request.nodes) for request in requests), "nothing lost, nothing twice"


def kill_worker(spread: Spread, place: Path, folder: Path, seed: int) -> None:
    after = random.Random(seed).randrange(60)
    kill_while_scoring(
        spread, place, folder, lambda slot: os.kill(slot.process, signal.SIGKILL), after, "was lost (The"
    )


def kill_node(cluster: RayCluster, spread: Spread, place: Path, folder: Path, seed: int) -> None:
    after = random.Random(seed).randrange(60)

    def kill(slot: Any) -> None:
        cluster.kill_node(slot.node.split("/")[1], slot.process)

    kill_while_scoring(spread, place, folder, kill, after, "was lost (its node is gone)")
    cluster.add_node()


def kill_driver(cluster: RayCluster, place: Path, folder: Path, seed: int, workers: int) -> None:
    """`prism score --ray` is killed when some of its portions are filed, and run again."""
    words = ["score", place / "solutions.jsonl", "--prm", place / "prm", "--out", folder / "table.parquet", "--json"]
    words += ["--store", folder / "store", "--set", "chunk=1", "--ray", cluster.address, "-R", f"workers={workers}"]
    filed = 1 + random.Random(seed).randrange(NUM_TREES // 2)
    run = run_killed(words, "prism_prm.store:ScoreStore.file", filed + 1)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert not run.stdout, "it was not finished"
    assert len(list((folder / "store").rglob("*.parquet"))) == filed, run.stderr
    again = prism_process.run(*words)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["trees"] == NUM_TREES, "and nothing else is on standard output"
    assert f"Reused {_rows(folder, filed)} of" in again.stderr
    score_files(load_prm(place / "prm"), place / "solutions.jsonl", folder / "one.parquet", chunk=1)
    assert pq.read_table(folder / "table.parquet").equals(pq.read_table(folder / "one.parquet"))
    keys = [key for path in folder.rglob("store/**/*.parquet") for key in pq.read_table(path)["key"].to_pylist()]
    assert len(keys) == len(set(keys)), "nothing twice"


def _rows(folder: Path, filed: int) -> str:
    """How many scores the oldest files have."""
    oldest = sorted((folder / "store").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)[:filed]
    return f"{sum(pq.read_metadata(path).num_rows for path in oldest):,}"


def test_a_killed_worker_costs_what_it_had_in_flight(spread: Spread, place: Path, tmp_path: Path) -> None:
    kill_worker(spread, place, tmp_path / "store", seed=0)


@pytest.mark.slow
def test_a_killed_node_costs_what_it_had_in_flight(
    cluster: RayCluster, spread: Spread, place: Path, tmp_path: Path
) -> None:
    kill_node(cluster, spread, place, tmp_path / "store", seed=0)


@pytest.mark.slow
def test_a_killed_driver_resumes(cluster: RayCluster, place: Path, tmp_path: Path) -> None:
    kill_driver(cluster, place, tmp_path, seed=0, workers=1)  # each takes seconds to start


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_kills_at_random_moments(cluster: RayCluster, spread: Spread, place: Path, tmp_path: Path, seed: int) -> None:
    kill_worker(spread, place, tmp_path / "worker" / "store", seed)
    kill_node(cluster, spread, place, tmp_path / "node" / "store", seed)
    kill_driver(cluster, place, tmp_path / "driver", seed, workers=2)
