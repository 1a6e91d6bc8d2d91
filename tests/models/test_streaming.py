"""Work of any length is scored as a stream: nothing of it is held, and the scores are those of work held whole."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm import StepTree, store
from prism_prm.evaluate.score_files import write_scores
from prism_prm.job import Chunk
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.store import KEY, KeyIndex, Request, ScoreStore, keys_of
from prism_prm.tree import Step

ROW = np.dtype([("value", "<f8", (1,)), ("flag", "?")])


def test_an_index_is_a_dict() -> None:
    """Rows of many sizes, some of them there before: the first stays, be it old or recent."""
    rng = np.random.default_rng(0)
    pool = [rng.bytes(15) + last for last in (b"\0", b"x") for _ in range(3_000)] + [b"\0" * 16, b"\xff" * 16]
    index, expected = KeyIndex(ROW, recent=100), {}
    for _ in range(400):
        chosen = [pool[i] for i in rng.integers(len(pool), size=rng.integers(1, 40))]
        rows_N = np.zeros(len(chosen), ROW)
        rows_N["value"][:, 0] = rng.random(len(chosen))
        index.add(np.array(chosen, KEY), rows_N)
        for key, row in zip(chosen, rows_N, strict=True):
            expected.setdefault(key, float(row["value"][0]))
    is_there_N, rows_N = index.find(np.frombuffer(b"".join(pool), KEY))
    assert is_there_N.tolist() == [key in expected for key in pool]
    assert [float(value) for value in rows_N["value"][is_there_N, 0]] == [expected[k] for k in pool if k in expected]
    assert len(index) == len(expected) > 4_000


class Rounding(Scorer):
    """A score is the length of what was read, with a rounding error of its own for each call and place in it."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, tuple[int, ...]]]] = []
        self.heard: Callable[[], None] = lambda: None

    def identity(self) -> str:
        return "rounding"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        self.heard()
        self.calls.append([(tree.problem, tuple(nodes)) for tree, nodes in zip(trees, wanted, strict=True)])
        found = []
        for place, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)):
            log_odds_NO = np.full((len(tree.nodes), 1), np.nan)
            for node in nodes:
                read = len(tree.problem) + sum(map(len, tree.texts(tree.path(node))))
                log_odds_NO[node] = read + place * 1e-3 + len(trees) * 1e-6
            found.append(TreeScores(self.outputs, log_odds_NO))
        return found


def trees(count: int, seed: int = 0) -> Iterator[StepTree]:
    """Trees of which many share steps, or are equal."""
    rng = random.Random(seed)
    for i in range(count):
        steps = tuple(Step("ab"[rng.randrange(2)] * rng.randrange(1, 3)) for _ in range(3))
        yield StepTree(i, f"problem {rng.randrange(count // 3)}", steps, (-1, 0, 0), (0, 1))


def as_whole(work: Sequence[Request], chunk: int) -> tuple[list[list[tuple[str, tuple[int, ...]]]], list[list[float]]]:
    """The rule, for work that is held whole: what is scored in which call, and the scores of all requests."""
    scorer, value = Rounding(), dict[bytes, float]()
    for start in range(0, len(work), chunk):
        some, seen = [], set[bytes]()
        for request in work[start : start + chunk]:
            new = []
            for key, node in zip(keys_of("rounding", request), request.nodes, strict=True):
                if key not in value and key not in seen:
                    seen.add(key)
                    new.append((key, node))
            if new:
                some.append((request.tree, new))
        if some:
            found = scorer.score_trees([tree for tree, _ in some], [[node for _, node in new] for _, new in some])
            for (_, new), scores in zip(some, found, strict=True):
                value |= {key: float(scores.log_odds_NO[node, 0]) for key, node in new}
    return scorer.calls, [[value[key] for key in keys_of("rounding", request)] for request in work]


class Scrambled:
    """Workers that answer in any order; the first chunk comes last, as after the loss of its worker."""

    num_workers = 3

    def __init__(self, held: Any, in_flight: int = 5) -> None:
        self.held, self.in_flight, self.rng = held, in_flight, random.Random(1)

    def run(
        self, act: Any, chunks: Iterable[Chunk[Any] | None], *, queued: bool = True
    ) -> Iterator[tuple[Chunk[Any], Any]]:
        assert queued
        flying: list[Chunk[Any]] = []
        left, more = iter(chunks), True
        while more or flying:
            while more and len(flying) < self.in_flight:
                try:
                    chunk = next(left)
                except StopIteration:
                    more = False
                    break
                if chunk is None:
                    break
                flying.append(chunk)
            if not flying:
                continue
            first_last = flying[1:] if flying[0].number == 0 and len(flying) > 1 else flying
            chosen = self.rng.choice(first_last)
            flying.remove(chosen)
            yield chosen, act(self.held, chosen.work)

    def rates(self) -> str:
        return ""


@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.parametrize("scrambled", [False, True])
def test_a_stream_is_scored_as_if_held_whole(tmp_path: Path, chunk: int, scrambled: bool) -> None:
    work = [Request.all_of(tree) for tree in trees(120)]
    calls, values = as_whole(work, chunk)
    scorer: Any = Rounding()
    if scrambled:
        scorer.workers = Scrambled(scorer)
    heard: list[tuple[Sequence[Request], list[TreeScores]]] = []
    ScoreStore(tmp_path, scorer, chunk=chunk).fill(iter(work), each=lambda some, scores: heard.append((some, scores)))
    assert sorted(scorer.calls) == sorted(calls)
    assert [request for some, _ in heard for request in some] == work, "passed on in order"
    assert [scores.log_odds_NO[:, 0].tolist() for _, some in heard for scores in some] == values
    again = Rounding()
    assert [one.log_odds_NO[:, 0].tolist() for one in ScoreStore(tmp_path, again).score(work)] == values
    assert again.calls == []


def trees_in_memory() -> int:
    gc.collect()
    return sum(type(thing) is StepTree for thing in gc.get_objects())


def test_input_is_not_held(tmp_path: Path) -> None:
    """At any time a few chunks of 400 trees are in memory, and the table is the same as of a list."""
    scorer = Rounding()
    read, done, most_ahead, most_held = 0, 0, 0, 0
    others = trees_in_memory()  # of other tests

    class Trees:
        def __iter__(self) -> Iterator[StepTree]:
            nonlocal read
            for tree in trees(400):
                read += 1
                yield tree

    def look() -> None:
        nonlocal most_ahead, most_held
        most_ahead = max(most_ahead, read - done)
        if len(scorer.calls) in (2, 12):
            most_held = max(most_held, trees_in_memory() - others)

    def advance(more: int, _said: str = "", /) -> None:
        nonlocal done
        done += more

    scorer.heard = look
    report = write_scores(scorer, Trees(), tmp_path / "streamed.parquet", chunk=16, advance=advance)
    assert (report.trees, done, most_ahead) == (400, 400, 16)
    assert most_held <= 2 * 16
    scorer.heard = lambda: None
    write_scores(scorer, list(trees(400)), tmp_path / "held.parquet", chunk=16)
    assert (tmp_path / "streamed.parquet").read_bytes() == (tmp_path / "held.parquet").read_bytes()


@pytest.mark.parametrize("filed_before", [False, True])
def test_a_late_portion_does_not_make_the_others_pile_up(
    tmp_path: Path, filed_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are scored meanwhile or were there before."""
    monkeypatch.setattr(store, "AHEAD", 8)
    monkeypatch.setattr(store, "AHEAD_EACH", 2)
    work = [Request.all_of(StepTree.chain(f"problem {i}", ["a"])) for i in range(60)]
    if filed_before:
        ScoreStore(tmp_path, Rounding(), chunk=64).fill(work[1:])
    scorer: Any = Rounding()
    scorer.workers = Scrambled(scorer)
    read = 0
    most_waiting, passed_on = 0, 0

    def requests() -> Iterator[Request]:
        nonlocal read, most_waiting
        for request in work:
            read += 1
            most_waiting = max(most_waiting, read - passed_on)
            yield request

    def each(some: Sequence[Request], _scores: list[TreeScores]) -> None:
        nonlocal passed_on
        passed_on += len(some)

    ScoreStore(tmp_path, scorer, chunk=1).fill(requests(), each=each)
    assert passed_on == 60
    assert most_waiting <= 8 + scorer.workers.in_flight + 2


@pytest.mark.parametrize(("is_heard", "expected"), [(True, 7 * 16), (False, 0)])
def test_a_slow_worker_holds_up_few(tmp_path: Path, is_heard: bool, expected: int) -> None:
    """How many chunks are done before the first, and not passed on: more with more workers, none if nobody hears."""
    work = [Request.all_of(StepTree.chain(f"problem {i}", ["a"])) for i in range(200)]
    scorer: Any = Rounding()
    scorer.workers = Scrambled(scorer)
    scorer.workers.num_workers = 7
    passed_on, most_waiting = 0, 0

    def advance(more: int, _said: str = "") -> None:
        nonlocal passed_on, most_waiting
        most_waiting = max(most_waiting, len(scorer.calls) - 1 - passed_on)
        passed_on += more

    def each(_some: Sequence[Request], _scores: list[TreeScores]) -> None:
        pass

    ScoreStore(tmp_path, scorer, chunk=1).fill(work, each=each if is_heard else None, advance=advance)
    assert passed_on == 200
    assert expected <= most_waiting <= expected + is_heard * scorer.workers.in_flight
