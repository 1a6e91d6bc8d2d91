from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem
from prism_prm.evaluate.benchmarks import read_labeled
from prism_prm.tree import unique_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a#1", "a#2"]),
        (["X", "X", "X#1"], ["X", "X#1", "X#1#1"]),
        (["X#1", "X", "X", "X"], ["X#1", "X", "X#2", "X#3"]),
        (["", "", "#1"], ["", "#1", "#1#1"]),
    ],
)
def test_equal_names_are_numbered(names: list[str], expected: list[str]) -> None:
    assert unique_names(names) == expected


tricky = st.lists(st.sampled_from(["X", "X#1", "X#2", "X#1#1", "#1", ""]), max_size=12)


@given(tricky, tricky)
def test_unique_names_are_unique_and_hang_only_on_those_before(names: list[str], more: list[str]) -> None:
    found = unique_names(names)
    assert len(set(found)) == len(names)
    assert unique_names([*names, *more])[: len(names)] == found, "a longer task goes on with the work of a shorter one"


def test_many_equal_names_take_linear_time() -> None:
    assert unique_names(["a"] * 200_000)[-1] == "a#199999"


def test_what_is_named_so(tmp_path: Path) -> None:
    rows = [{"problem": "q", "steps": ["a"], "label": 0, "id": name} for name in ("X", "X", "X#1", "")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labeled = read_labeled([tmp_path / "own.jsonl"])
    assert [item.tree.name for item in labeled.items] == ["X", "X#1", "X#1#1", "tree-3"]
    assert unique_names(["X", "X", "X#1"]) == ["X", "X#1", "X#1#1"]
    names = ["", "p", "p", "0"]
    pool = Pool(tuple(PoolProblem(TaskProblem("q", "1", name), (Solution(("a",), "a"),) * 2) for name in names))
    assert [tree.name for tree in pool.trees()] == [
        "0#0", "0#1", "p#0", "p#1", "p#1#0", "p#1#1", "0#1#0", "0#1#1",
    ]  # fmt: skip
