"""In which windows steps beyond the context are scored: against the definition, for every family."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.pools import read_pool
from prism_prm.data.reader import read_trees
from prism_prm.data.tables import iter_trees, write_trees
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks.prmbench import read_prmbench
from prism_prm.models.families import FAMILIES
from prism_prm.models.packing import EncodedTree, Layout, encode_tree
from prism_prm.models.prm import fit
from prism_prm.tree import Step, StepTree
from tiny import FAMILY_MODELS, MODELS


class Erratic:
    """A layout whose lengths follow no order at all: a step moved one place forward may grow or shrink."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.num_calls = 0

    def prompt_ids(self, problem: str) -> list[int]:
        return list(range(len(problem)))

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        self.num_calls += 1
        rng = random.Random(f"{self.seed} {text} {index}")
        ids = [rng.randrange(100) for _ in range(rng.choice((1, 1, 2, 3, 9)))]
        return ids, rng.randrange(len(ids))


def obvious(tree: StepTree, node: int, family: Layout, context: int) -> tuple[EncodedTree, list[int]] | None:
    """The window of one node, by its definition, walking along its path; None if the node alone does not fit."""
    path = tree.path(node)
    whole = encode_tree(StepTree.chain(tree.problem, [tree.nodes[n] for n in path]), family)

    def from_step(first: int, last: int) -> EncodedTree:
        return encode_tree(StepTree.chain(tree.problem, [tree.nodes[n] for n in path[first : last + 1]]), family)

    first = 0
    for k in range(len(path)):
        if from_step(first, k).path_tokens(k - first) <= context:
            continue
        tail = k
        room = (context - len(whole.prompt)) / 2
        while tail > first and sum(len(whole.ids[i]) for i in range(tail - 1, k)) <= room:
            tail -= 1
        while from_step(tail, k).path_tokens(k - tail) > context:
            tail += 1
            if tail > k:
                return None
        first = tail
    return from_step(first, len(path) - 1), list(path[first:])


def random_tree(rng: random.Random, texts: list[str]) -> StepTree:
    size = rng.randint(2, 24)
    bushy = rng.random()
    parents = [rng.randrange(-1, i) if rng.random() < bushy else i - 1 for i in range(size)]
    return StepTree(3, rng.choice(["Why?", "x = 1, y = 2?"]), tuple(Step(rng.choice(texts)) for _ in parents),
                    tuple(parents), ())  # fmt: skip


def check(tree: StepTree, nodes: list[int], family: Any, context: int) -> int:
    """How many nodes are in windows, if all is as the definition says."""
    whole = encode_tree(tree, family)
    long = [node for node in nodes if whole.path_tokens(node) > context]
    expected = {node: obvious(tree, node, family, context) for node in long}
    if any(found is None for found in expected.values()):
        with pytest.raises(DataError, match=r"tree 3, node \d+: the problem and this step alone exceed"):
            fit(tree, 5, nodes, family, context, "window")
        return 0
    items, found = fit(tree, 5, nodes, family, context, "window")
    assert found == long
    windows = [item for item in items if item.nodes is not None]
    reads = []
    for item in windows:
        assert item.index == 5
        assert item.nodes is not None
        for (read,) in item.groups:
            reads.append(item.nodes[read])
            path = StepTree(0, "", (Step(""),) * len(item.nodes), item.tree.parents, ()).path(read)
            window = expected[item.nodes[read]]
            assert window is not None
            assert [item.nodes[node] for node in path] == window[1]
            assert [item.tree.ids[node] for node in path] == list(window[0].ids)
            assert item.tree.path_tokens(read) <= context
    assert sorted(reads) == sorted(long)
    assert len({item.nodes[0] for item in windows if item.nodes}) == len(windows), "one item per window"
    return len(long)


@pytest.mark.parametrize("seed", range(4))
def test_erratic_layouts(seed: int) -> None:
    rng = random.Random(seed)
    shortened = 0
    for trial in range(300):
        tree = random_tree(rng, [f"step {i}" for i in range(30)])
        family = Erratic(trial)
        nodes = sorted(rng.sample(range(len(tree.nodes)), rng.randint(1, len(tree.nodes))))
        shortened += check(tree, nodes, family, len(tree.problem) + rng.randint(6, 50))
    assert shortened > 200


@pytest.mark.parametrize(("family", "kind"), dict.fromkeys((family, MODELS[kind][2]) for family, kind in FAMILY_MODELS))
def test_every_family(family: str, kind: Any) -> None:
    """Math-Shepherd numbers its steps, so "Step 10:" shrinks as steps before it go; others know a first step."""
    tokenizer = kind()
    made = FAMILIES[family]
    tokenizer.add_special_tokens({"additional_special_tokens": list(made.new_tokens)})
    layout = made(tokenizer)
    rng = random.Random(family)
    texts = ["x = 1", "so y = 2", "Step 3: then z = 3", "y", "we compute 12 * 4 = 48\nand divide", "so the answer"]
    shortened = 0
    for _ in range(60):
        tree = random_tree(rng, texts)
        encoded = encode_tree(tree, layout)
        lengths = [encoded.path_tokens(node) for node in range(len(tree.nodes))]
        shortened += check(tree, list(range(len(lengths))), layout, rng.randint(min(lengths), max(lengths)))
    assert shortened > 60


@pytest.mark.parametrize("wanted", ["all", "last"])
def test_the_work_grows_with_the_steps_that_are_kept(wanted: str) -> None:
    """A step is laid out a few times, and stands in about two windows."""
    size, context = 2000, 60
    family = Erratic(0)
    tree = StepTree.chain("Why?", [f"step {i}" for i in range(size)])
    nodes = range(size) if wanted == "all" else [size - 1]
    items, long = fit(tree, 0, nodes, family, context, "window")
    longest = max(len(item.tree.ids) for item in items if item.nodes is not None)
    assert sum(len(item.tree.ids) for item in items if item.nodes is not None) < 3 * size
    assert len(long) > size - 60 if wanted == "all" else long == [size - 1]
    assert family.num_calls < 8 * size
    assert longest < 60


RECORDS = [{"problem": "Why?", "steps": ["a"] * size, "label": -1} for size in (1, 40)]


@pytest.mark.parametrize("kind", ["steps", "pool", "prmbench", "table"])
def test_a_step_that_is_too_long_is_found_in_its_file(tmp_path: Path, kind: str) -> None:
    path, place = tmp_path / "a.jsonl", r"a\.jsonl:2: tree 1"
    records: list[dict[str, Any]] = RECORDS
    if kind == "pool":
        records = [{"problem": "Why?", "answer": "1", "solutions": [record["steps"]]} for record in RECORDS]
    elif kind == "prmbench":
        records = [
            {"classification": "circular", "idx": str(i), "modified_question": "Why?",
             "modified_process": record["steps"], "error_steps": []}
            for i, record in enumerate(RECORDS)
        ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    if kind == "pool":
        trees = read_pool(path).trees()
    elif kind == "prmbench":
        trees = [item.tree for item in read_prmbench([path]).items]
    elif kind == "table":
        write_trees(tmp_path / "trees.parquet", read_trees(path), source="a.jsonl")
        trees, place = list(iter_trees(tmp_path)), r"trees\.parquet \(from a\.jsonl\): tree 1"
    else:
        trees = list(read_trees(path))
    for choice in ("error", "window"):
        context = 20 if choice == "error" else 4
        with pytest.raises(DataError, match=rf"{place}.*, node \d+: .*(are \d+ tokens|alone exceed)"):
            fit(trees[1], 0, range(40), Plain(), context, choice)


class Plain:
    """A token per character, and one after each step."""

    def prompt_ids(self, problem: str) -> list[int]:
        return [0] * len(problem)

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        return [0] * (len(text) + 1), len(text)


def test_where_a_tree_was_read_is_no_part_of_what_it_says() -> None:
    tree = StepTree.chain("Why?", ["a"])
    moved = replace(tree, where="b.jsonl:3")
    assert (moved, moved.content_hash(), hash(moved), repr(moved)) == (
        tree, tree.content_hash(), hash(tree), repr(tree),
    )  # fmt: skip
