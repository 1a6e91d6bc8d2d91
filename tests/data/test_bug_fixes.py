"""Programs with a bug and their fixes: the candidates, the labels, what is left out, and splits by task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.build_pairs import PairRecipe, build_pairs
from prism_prm.data.formats import ReadOptions
from prism_prm.data.pair_rules import PairSettings, annotated_pairs
from prism_prm.data.reader import Reader, read_trees
from prism_prm.data.same_problem import Splits
from prism_prm.data.tables import iter_trees
from prism_prm.errors import DataError
from prism_prm.segments import split_text
from prism_prm.tree import ROOT, StepTree

SAMPLE = Path(__file__).with_name("bug_fixes.jsonl")
RECORDS: list[dict[str, Any]] = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
CONDEFECTS = {"buggy": "faulty", "fixed": "correct", "problem": "statement", "id": "submission"}


def candidates(tree: StepTree) -> tuple[list[str], str, str]:
    """The prefix, and the right and the wrong step after it."""
    (pair,) = annotated_pairs(tree)
    return tree.texts(tree.path(pair.chosen)[:-1]), tree.nodes[pair.chosen].text, tree.nodes[pair.rejected].text


def test_a_fix_is_a_right_and_a_wrong_step_after_one_prefix() -> None:
    changed, missing, extra, several = read_trees(SAMPLE)
    assert candidates(changed) == (
        ["import sys", "n = int(sys.stdin.readline())"], "while n > 1:\n    n //= 2", "while n > 2:\n    n //= 2",
    )  # fmt: skip
    assert candidates(missing) == (
        ["values = map(int, input().split())", "total = 0"], "for value in values:\n    total += value", "print(total)",
    )  # fmt: skip
    assert candidates(extra) == (["total = sum(map(int, input().split()))"], "print(total)", "total -= 1")
    header = "for value in map(int, input().split()):\n    total "
    assert candidates(several) == (["total = 1"], f"{header}+= value", f"{header}*= value")


def test_labels_and_names() -> None:
    tree = next(read_trees(SAMPLE))
    assert (tree.problem, tree.name, tree.ended) == ("Print n halved again and again, down to 1.", "halves/1", True)
    assert tree.parents == (ROOT, 0, 1, 2, 1, 4)
    assert tree.trunk == (0, 1, 2, 3)
    assert [step.label for step in tree.nodes] == [1.0, 1.0, 1.0, None, 0.0, None]
    for version, path in (("fixed", tree.trunk), ("buggy", tree.path(5))):
        assert tree.texts(path) == split_text(RECORDS[0][version], "code")
    trusted = next(read_trees(SAMPLE, options=ReadOptions(trust_solutions=True)))
    assert [step.label for step in trusted.nodes] == [1.0, 1.0, 1.0, 1.0, 0.0, None]


def test_records_without_a_pair_are_counted() -> None:
    reader = Reader([SAMPLE])
    assert len(list(reader.drafts())) == 4
    assert reader.report.dropped == {"no-difference": 1, "nothing-instead": 1, "differs-before-fault": 1}
    assert reader.report.formats == {"bug-fixes": 7}


def test_names_of_condefects(tmp_path: Path) -> None:
    file = tmp_path / "condefects.jsonl"
    records = [{CONDEFECTS.get(name, name): value for name, value in record.items()} for record in RECORDS]
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    assert list(read_trees(file)) == list(read_trees(SAMPLE))


def test_null_is_a_missing_field(tmp_path: Path) -> None:
    file = tmp_path / "fixes.jsonl"
    records = [{**RECORDS[0], "fault_line": None, "task": None, "id": None}, {**RECORDS[0], "problem": None}]
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    assert [(tree.name, tree.problem) for tree in read_trees(file)] == [
        ("", RECORDS[0]["problem"]), ("halves/1", "halves"),
    ]  # fmt: skip


def test_a_task_stays_in_one_split_without_a_statement(tmp_path: Path) -> None:
    records = [{**RECORDS[1], "task": f"task {i // 5}", "id": i} for i in range(200)]
    file = tmp_path / "fixes.jsonl"
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    recipe = PairRecipe(PairSettings(lookahead="none"), Splits({"train": 0.5, "test": 0.5}))
    summary = build_pairs(file, tmp_path / "pairs", recipe)
    assert summary["pairs"]["total"] == 200
    train, test = ({tree.problem for tree in iter_trees(tmp_path / "pairs", split=name)} for name in ("train", "test"))
    assert (len(train | test), train & test) == (40, set())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fault_line": 9}, "fault_line 9 is not one of the 7 lines"),
        ({"fault_line": 0}, "fault_line 0 is not"),
        ({"buggy": " ", "fault_line": 1}, "the buggy program is empty"),
        ({"fixed": ""}, "the fixed program is empty"),
        ({"problem": None, "task": ""}, "neither a problem nor a `task`"),
    ],
)
def test_bad_records(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "fixes.jsonl"
    file.write_text(json.dumps({**RECORDS[0], **change}), encoding="utf-8")
    with pytest.raises(DataError, match=rf"fixes\.jsonl:1: {message}"):
        list(read_trees(file))


def test_real_pairs(real_data: Path) -> None:
    reader = Reader([real_data / "code_pairs" / "condefects_python.jsonl"])
    trees = [draft.tree(i) for i, (_, draft) in enumerate(reader.drafts())]
    assert (len(trees), reader.report.dropped) == (1929, {})
    assert all(len(annotated_pairs(tree)) == 1 for tree in trees)
    assert len({tree.name for tree in trees}) == 1929
    assert len({tree.name.partition("/")[0] for tree in trees}) == len({tree.problem for tree in trees}) == 711
    assert sum(tree.problem == tree.name.partition("/")[0] for tree in trees) == 1929 - 435
