"""`eval --trained-on` marks exactly the problems that `pairs --exclude` with the benchmark would leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eval_helpers import prmbench_row, processbench_row, write_jsonl

from prism_prm.data.same_problem import Exclusions
from prism_prm.data.tables import write_pairs, write_trees
from prism_prm.evaluate.benchmarks import ItemSet, read_labeled, read_pair_folders
from prism_prm.evaluate.benchmarks.prmbench import read_prmbench
from prism_prm.evaluate.benchmarks.processbench import read_processbench
from prism_prm.tree import Step, StepPair, StepTree

LONG = "A train leaves the station at noon and travels at 60 miles per hour. How far has it gone when it is 4:30 pm?"
SHORT = "What is $2+2$?"
IN_FRONT = "Here is an easy question: "


def _processbench(folder: Path) -> ItemSet:
    rows = [processbench_row(f"math-{i}", 2, -1, problem) for i, problem in enumerate((LONG, SHORT))]
    return read_processbench([write_jsonl(folder / "math.jsonl", rows)])


def _prmbench(folder: Path) -> ItemSet:
    rows = [
        prmbench_row("circular", str(i), 2, [1], question=problem, original_question=f"{i}?", modified_question=f"{i}!")
        for i, problem in enumerate((LONG, SHORT))
    ]
    return read_prmbench([write_jsonl(folder / "circular.jsonl", rows)])


def _labeled(folder: Path) -> ItemSet:
    rows = [processbench_row(f"own-{i}", 2, 1, problem) for i, problem in enumerate((LONG, SHORT))]
    return read_labeled([write_jsonl(folder / "own.jsonl", rows)])


def _pairs(folder: Path) -> ItemSet:
    steps = (Step("right", label=1.0), Step("wrong", label=0.0))
    write_trees(
        folder / "trees.parquet",
        [StepTree(i, problem, steps, (-1, -1), (0,)) for i, problem in enumerate((LONG, SHORT))],
    )
    write_pairs(folder / "pairs.parquet", [StepPair(i, i, 0, 0, 1, i, "annotated") for i in range(2)])
    return read_pair_folders([folder])


@pytest.mark.parametrize("read", [_processbench, _prmbench, _labeled, _pairs])
def test_words_put_in_front_of_a_problem_do_not_hide_it(read: Callable[[Path], ItemSet], tmp_path: Path) -> None:
    """The long problem is found by its runs of words; the short one has none, and only whole would be found."""
    benchmark = read(tmp_path)
    given = [{"problem": IN_FRONT + problem} for problem in (LONG, SHORT)]
    training = write_jsonl(tmp_path / "train" / "near.jsonl", given)
    whole = write_jsonl(tmp_path / "train" / "whole.jsonl", [{"problem": f"{SHORT} "}])
    assert [item.contaminated for item in benchmark.checked_against([training]).items] == [True, False]
    assert [item.contaminated for item in benchmark.checked_against([whole]).items] == [False, True]


def test_copies_of_one_problem_are_one_cluster_and_its_text_is_kept(tmp_path: Path) -> None:
    rows = [processbench_row(f"math-{i}", 2, -1, problem) for i, problem in enumerate((SHORT, "what is  2 + 2 ?"))]
    items = read_processbench([write_jsonl(tmp_path / "math.jsonl", rows)]).items
    assert [item.problem for item in items] == [SHORT, "what is  2 + 2 ?"]
    assert items[0].problem_key == items[1].problem_key


def test_processbench_with_five_words_in_front_is_marked_as_pairs_would_exclude_it(
    real_data: Path, tmp_path: Path
) -> None:
    source = real_data / "processbench" / "math.json"
    records: list[dict[str, Any]] = json.loads(source.read_text(encoding="utf-8"))
    training = write_jsonl(
        tmp_path / "train.jsonl", [{"problem": f"Here is an easy question: {record['problem']}"} for record in records]
    )
    checked = read_processbench([source]).checked_against([training])
    exclusions = Exclusions.read([training])
    expected = [exclusions.match(record["problem"]) for record in records]
    assert [item.contaminated for item in checked.items] == expected
    assert sum(expected) > 900
