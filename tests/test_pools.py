from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.pools import Pool, PoolProblem, Solution, pool_problem, read_pool, write_pool
from prism_prm.data.tasks import TaskProblem
from prism_prm.errors import DataError

TEXT = "First.\n\nSecond, so \\boxed{2}."


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_solutions_come_as_texts_steps_or_objects() -> None:
    entry = pool_problem(
        {
            "problem": "1+1?",
            "answer": 2,
            "id": 7,
            "solutions": [TEXT, ["a", "b"], {"steps": ["c"], "answer": 3, "tokens": 9}],
        }
    )
    assert entry.problem == TaskProblem("1+1?", "2", "7")
    assert entry.solutions == (
        Solution(("First.", "Second, so \\boxed{2}."), TEXT),
        Solution(("a", "b"), "a\n\nb"),
        Solution(("c",), "c", answer="3", tokens=9),
    )


@pytest.mark.parametrize(
    "record",
    [
        {"question": "q", "answer": "1", "completions": ["a"], "scores": [[0.5]]},
        {"problem": "q", "answer": "1", "samples": [{"solution": "a", "scores": [0.5], "correct": True}]},
    ],
)
def test_other_tools_names_are_understood(record: dict[str, Any]) -> None:
    (solution,) = pool_problem(record).solutions
    assert (solution.text, solution.scores) == ("a", (0.5,))


def test_an_empty_solution_stays_and_has_no_tree() -> None:
    pool = Pool((pool_problem({"problem": "q", "answer": "1", "name": "x", "solutions": ["a\n\nb", "", "c"]}),))
    assert [(tree.tree_id, tree.name, tree.texts(tree.trunk)) for tree in pool.trees()] == [
        (0, "x#0", ["a", "b"]),
        (2, "x#2", ["c"]),
    ]
    assert len(pool.solutions) == 3


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"problem": "q", "answer": "1"}, "no list of solutions"),
        ({"answer": "1", "solutions": ["a"]}, "no problem text"),
        (
            {"problem": "q", "solutions": ["a", 3]},
            "solution 1: expected a string, a list of steps or an object",
        ),
        ({"problem": "q", "solutions": [{"no": "text"}]}, "solution 0: neither `steps` nor a text"),
        ({"problem": "q", "solutions": [["a", " "]]}, "solution 0: a step is empty"),
        ({"problem": "q", "solutions": [{"steps": ["a"], "scores": [0.1, 0.2]}]}, "2 scores for 1 steps"),
        ({"problem": "q", "solutions": [{"steps": "a"}]}, "solution 0: Expected `array | null`, got `str`"),
        ({"problem": "q", "completions": ["a"], "scores": []}, "0 lists of scores for 1 solutions"),
    ],
)
def test_bad_records_say_where_and_what(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    good = {"problem": "q", "answer": "1", "solutions": ["a"]}
    path = write_lines(tmp_path / "pool.jsonl", good, record)
    with pytest.raises(DataError) as caught:
        read_pool(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    solutions = (
        Solution(("a", "b"), "a\n\nb", answer="1", scores=(0.25, 0.5), tokens=12, correct=True),
        Solution(("c",), "c"),
        Solution(("e",), "e", answer=""),  # it states an empty answer: none is extracted
        Solution((), ""),
    )
    problems = (
        PoolProblem(TaskProblem("q", "1", "n", "5", 0.1), solutions),
        PoolProblem(TaskProblem("r"), (Solution(("d",), "d", correct=False),)),
        PoolProblem(TaskProblem("s", "2"), ()),
    )
    write_pool(tmp_path / "pool.jsonl", problems)
    assert read_pool(tmp_path / "pool.jsonl").problems == problems


def test_the_hash_sees_every_change() -> None:
    pools = [Pool((PoolProblem(TaskProblem("q", "1"), (Solution((text,), text),)),)) for text in "ab"]
    assert pools[0].content_hash() != pools[1].content_hash()
