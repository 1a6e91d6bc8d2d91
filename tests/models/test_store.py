"""The score store: nothing is scored twice, and no score is taken for that of another text, model or setting."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from prism_prm import StepTree, init_prm, load_prm
from prism_prm.errors import DataError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.store import Request, ScoreStore, Share, keys_of
from prism_prm.tree import Step


class Counting(Scorer):
    """A scorer whose score of a step is the length of all that it has read; it notes what it was asked."""

    def __init__(self, name: str = "one", context: int = 10**6) -> None:
        self.name, self.context = name, context
        self.asked: list[tuple[int, ...]] = []

    def identity(self) -> str:
        return f"{self.name} {self.context}"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        found = []
        for tree, nodes in zip(trees, wanted, strict=True):
            self.asked.append(tuple(nodes))
            log_odds_NO = np.full((len(tree.nodes), 1), np.nan)
            too_long = []
            for node in nodes:
                read = len(tree.problem) + sum(map(len, tree.texts(tree.path(node))))
                if read > self.context:
                    too_long.append(node)
                else:
                    log_odds_NO[node] = read
            found.append(TreeScores(self.outputs, log_odds_NO, tuple(too_long)))
        return found


def trees(count: int = 5) -> list[StepTree]:
    """Two steps, and another one in place of the second."""
    return [
        StepTree(i, f"problem {i}", tuple(map(Step, ("a", "b" * i, "c"))), (-1, 0, 0), (0, 1)) for i in range(1, count)
    ]


def requests(count: int = 5) -> list[Request]:
    return [Request.all_of(tree) for tree in trees(count)]


def values(scores: Sequence[TreeScores]) -> list[list[float]]:
    return [found.log_odds_NO[:, 0].tolist() for found in scores]


def test_everything_is_scored_once(tmp_path: Path) -> None:
    scorer, heard = Counting(), []
    store = ScoreStore(tmp_path, scorer, chunk=2)
    found = store.score(requests(), advance=heard.append)
    assert values(found) == [[10.0, 10.0 + i, 11.0] for i in range(1, 5)]
    assert (len(scorer.asked), sum(heard)) == (4, 4)
    again = ScoreStore(tmp_path, scorer, chunk=2)
    assert values(again.score(requests())) == values(found)
    filled = again.fill(requests(6))
    assert (filled.chunks, filled.found) == (3, 2)
    assert len(scorer.asked) == 5, "only the tree that was not there before"


def test_scores_are_found_under_another_cut_of_the_work(tmp_path: Path) -> None:
    scorer = Counting()
    whole = ScoreStore(tmp_path, scorer, chunk=2).score(requests())
    scorer.asked.clear()
    some = [Request(replace(tree, tree_id=tree.tree_id + 50), (2,)) for tree in trees()]
    found = ScoreStore(tmp_path, scorer, chunk=3).score(some)
    assert scorer.asked == []
    assert [v[2] for v in values(found)] == [v[2] for v in values(whole)]
    assert np.isnan([v[:2] for v in values(found)]).all(), "what was not asked for has no score"


@pytest.mark.parametrize("change", ["problem", "step", "step before", "model", "context"])
def test_what_differs_is_never_reused(tmp_path: Path, change: str) -> None:
    tree = trees()[3]
    ScoreStore(tmp_path, Counting()).score([Request(tree, (1,))])
    other = {
        "problem": replace(tree, problem=tree.problem.upper()),
        "step": replace(tree, nodes=(tree.nodes[0], Step("B" * 4), tree.nodes[2])),
        "step before": replace(tree, nodes=(Step("A"), *tree.nodes[1:])),
    }.get(change, tree)
    scorer = {"model": Counting("two"), "context": Counting(context=999)}.get(change, Counting())
    ScoreStore(tmp_path, scorer).score([Request(other, (1,))])
    assert scorer.asked == [(1,)]


def test_a_path_is_not_its_text() -> None:
    """The same letters cut into other steps, or moved from the problem into a step, are something else."""
    chains = [("p", ["ab", "c"]), ("p", ["a", "bc"]), ("pa", ["b", "c"]), ("p", ["abc"])]
    last = [keys_of("m", Request.all_of(StepTree.chain(*chain)))[-1] for chain in chains]
    assert len(set(last)) == len(chains)


class Rounding(Counting):
    """A real model's scores depend on what they are batched with: here each score has a rounding error of its own."""

    def score_trees(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        found = super().score_trees(trees, wanted)
        for number, scores in enumerate(found, start=len(self.asked)):
            scores.log_odds_NO[:] += number * 1e-6
        return found


def test_equal_steps_have_one_score_and_are_scored_once(tmp_path: Path) -> None:
    """In one chunk, in several, beside what other work has filed, and in a repeated run."""
    scorer = Rounding()
    ScoreStore(tmp_path, scorer, chunk=2).score([Request(trees()[2], (2, 1))])
    work = requests() + [Request(tree, (1, 0)) for tree in trees()] + requests() + [Request(trees()[0], (0, 0))]
    store = ScoreStore(tmp_path, scorer, chunk=3)
    first = store.score(work)
    assert sum(map(len, scorer.asked)) == 4 * 3, "four trees of three steps"
    value: dict[bytes, float] = {}
    for request, scores in zip(work, first, strict=True):
        for key, node in zip(keys_of("", request), request.nodes, strict=True):
            assert value.setdefault(key, scores.log_odds_NO[node, 0]) == scores.log_odds_NO[node, 0]
    assert len(value) == 12
    for chunk in (3, 5, 1):
        again = ScoreStore(tmp_path, scorer, chunk=chunk).score(work)
        np.testing.assert_array_equal(np.concatenate([s.log_odds_NO for s in again]),
                                      np.concatenate([s.log_odds_NO for s in first]))  # fmt: skip
    assert sum(map(len, scorer.asked)) == 4 * 3


def test_scores_made_elsewhere_change_none_that_is_filed(tmp_path: Path) -> None:
    scorer = Rounding()
    before = values(ScoreStore(tmp_path, scorer).score(requests(3)))
    ScoreStore(tmp_path, scorer).add(requests(), Counting().score_trees(trees(), [range(3)] * 4))
    found = ScoreStore(tmp_path, scorer).score(requests())
    assert values(found)[:2] == before
    assert values(found)[2:] == [[10.0, 13.0, 11.0], [10.0, 14.0, 11.0]]
    assert len(scorer.asked) == 2


FILED_AS = ("5176bd30d050be4f", "e033ec207f19519bc4c618393679f952")
KEYS = ["10dbac1e45926f62a15568584974636d", "7955817cc38fc0846b7c91445eff7b7d"]
"""As version 0.2.0 wrote them."""


def test_files_are_those_of_version_0_2_0(tmp_path: Path) -> None:
    """Its stores are opened and extended: the same folder, file names, keys and columns."""
    store = ScoreStore(tmp_path, Counting(context=11))
    store.score(requests(3))
    (path,) = store.folder.iterdir()
    table = pq.read_table(path)
    assert (store.folder.name, path.stem) == FILED_AS
    assert [f"{name} {kind}" for name, kind in zip(table.schema.names, table.schema.types, strict=True)] == [
        "key fixed_size_binary[16]", "correct double", "too_long bool"
    ]  # fmt: skip
    assert [key.hex() for key in table["key"].to_pylist()[:2]] == KEYS
    assert table["too_long"].to_pylist() == [False, False, False, False, True, False]


def test_what_is_too_long_is_remembered_as_such(tmp_path: Path) -> None:
    scorer = Counting(context=10)
    for _ in range(2):
        found = ScoreStore(tmp_path, scorer).score(requests())
        assert [scores.too_long for scores in found] == [(1, 2)] * 4
        assert np.isnan(found[0].log_odds_NO[1:]).all()
    assert len(scorer.asked) == 4


def test_scores_made_elsewhere_are_filed(tmp_path: Path) -> None:
    made = Counting().score_trees(trees(), [(0, 1)] * 4)
    ScoreStore(tmp_path, Counting()).add([Request(tree, (0, 1)) for tree in trees()], made)
    scorer = Counting()
    assert values(ScoreStore(tmp_path, scorer).score([Request(trees()[0], (1,))]))[0][1] == 11.0
    assert scorer.asked == []


def test_no_work_is_done_at_once(tmp_path: Path) -> None:
    scorer = Counting()
    store = ScoreStore(tmp_path, scorer)
    store.add([], [])
    assert store.score([]) == []
    assert np.isnan(store.score([Request(trees()[0], ())])[0].log_odds_NO).all()
    assert scorer.asked == []


def test_a_broken_file_names_itself(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path, Counting())
    store.score(requests())
    (path,) = store.folder.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=rf"{path}: cannot be read .* not a file of the score store; remove it"):
        ScoreStore(tmp_path, Counting())


def test_settings_of_a_prm_are_part_of_its_identity(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    ways: list[dict[str, Any]] = [
        {}, {"context": 64}, {"on_too_long": "skip"}, {"dtype": "float64"}, {"settings": {"system": "Other."}}
    ]  # fmt: skip
    identities = [load_prm(tmp_path / "prm", device="cpu", **way).identity() for way in ways]
    assert len(set(identities)) == len(ways)
    assert load_prm(tmp_path / "prm", device="cpu", token_budget=99).identity() == identities[0]


def test_two_at_once_agree_with_one(tmp_path: Path) -> None:
    one = ScoreStore(tmp_path / "one", Counting(), chunk=1).score(requests(9))
    scorers = [Counting(), Counting()]
    barrier = threading.Barrier(2)

    def fill(rank: int) -> list[TreeScores]:
        store = ScoreStore(tmp_path / "two", scorers[rank], chunk=1)
        return store.score(requests(9), share=Share(rank, 2, lambda: barrier.wait(300) and None))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(fill, range(2)))
    assert values(found[0]) == values(found[1]) == values(one)
    assert [len(scorer.asked) for scorer in scorers] == [4, 4]


def fill_and_die(folder: Path, files: int, step: int) -> None:
    """Fill a store, and die at the first to third step (making, opening, renaming) of writing one more file."""
    left = [files, step]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.mkdir", "open", "os.rename", "os.chmod") and str(folder) in str(arguments[0]):
            left[1] -= left[0] <= 0
            left[0] -= event == "os.rename"
            if not left[1]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    ScoreStore(folder, Counting(), chunk=2).fill(requests(200))


def test_killed_anywhere_it_is_whole(tmp_path: Path) -> None:
    """At ten random steps; what is there can be read each time, and in the end all of it is right."""
    rng = random.Random(0)
    folder = tmp_path / "killed"
    for _ in range(10):
        moment = (rng.randrange(5), rng.randrange(1, 4))
        process = multiprocessing.get_context("fork").Process(target=fill_and_die, args=(folder, *moment))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment
        ScoreStore(folder, Counting())
    scorer = Counting()
    killed = ScoreStore(folder, scorer, chunk=2).score(requests(200))
    assert 0 < len(scorer.asked) < 199
    assert values(killed) == values(ScoreStore(tmp_path / "whole", Counting()).score(requests(200)))
