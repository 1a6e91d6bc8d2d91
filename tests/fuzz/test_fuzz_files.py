"""Files of users, torn and mutated: every reader gives a result or a `PrismError`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import anything, files, fuzz, survives, torn
from click.testing import CliRunner
from hypothesis import strategies as st

from payloads import HUMANEVAL, MBPP, OWN, function_record, stdin_record
from prism_prm.cli import app
from prism_prm.config import read_settings, read_toml
from prism_prm.data.formats import FORMATS, ReadOptions
from prism_prm.data.pools import read_pool, write_pool
from prism_prm.data.reader import Reader
from prism_prm.data.tasks import TaskProblem, load_task
from prism_prm.errors import PrismError
from prism_prm.evaluate.benchmarks.prmbench import read_prmbench
from prism_prm.evaluate.benchmarks.processbench import read_processbench
from prism_prm.search.recipes import SearchRecipe
from prism_prm.train.recipe import load_recipe

STEP = {"text": "so x = 1", "rating": 1}
LABELLED: list[dict[str, Any]] = [
    {
        "question": {"problem": "p", "ground_truth_answer": "1"},
        "label": {
            "finish_reason": "solution",
            "steps": [
                {"completions": [STEP, {"text": "b", "rating": -1}], "chosen_completion": 0, "human_completion": None},
                {"completions": [STEP], "chosen_completion": None, "human_completion": {"text": "c", "rating": None}},
            ],
        },
        "is_quality_control_question": False,
    },
    {"input": "p Step 1: a ки\nStep 2: b ки", "label": "p Step 1: a +\nStep 2: b -"},
    {"questions": "p", "solution": {"Step 1": {"content": "a", "label": 1.0}, "Step 2": {"content": "b", "label": 0}}},
    {"prompt": "p", "completions": ["a", "b"], "labels": [True, 0.25]},
    {"problem": "p", "steps": ["a", "b", "c"], "label": 1, "id": "math-3"},
    {
        "classification": "redundency", "idx": "3", "modified_question": "p", "modified_process": ["a", "b"],
        "error_steps": [2], "original_question": "q", "original_process": ["c"], "ground_truth": "1",
    },
    {
        "task": "t", "id": 3, "problem": "p", "fault_line": 2, "buggy": "x = 1\nif x:\n    f(\n1)\nprint(x)",
        "fixed": "x = 1\nfor y in x:\n    print(x)",
    },
    {"task": "t", "submission": "7", "statement": "", "faulty": "x = (1\nprint(x)", "correct": "x = 1\nprint(x)"},
    {"problem": "p", "solution": "First.\n\nThen $x = 1$.", "answer": 3, "id": 4},
    {"problem": "p", "steps": ["a", "b"]},
    {
        "tree_id": 0, "name": "n", "problem": "p", "answer": None, "ended": True, "trunk": [0, 1], "split": "train",
        "nodes": [
            {"text": "a", "parent": -1, "label": 1.0, "rating": 1.0, "origin": "model"},
            {"text": "b", "parent": 0, "label": None, "rating": None, "origin": "human"},
        ],
    },
]  # fmt: skip
POOLS: list[dict[str, Any]] = [
    {
        "problem": "p", "answer": "12", "name": "n", "level": 3, "tolerance": 0.01, "solutions": [
            "a\n\nb", ["a", "b"], {"text": "a", "answer": 3, "tokens": 9, "correct": True},
            {"steps": ["a", "b"], "scores": [0.5, 1.0], "answer": "\\frac{1}{2}"},
        ],
    },
    {"question": "p", "final_answer": ["$4.2$"], "error": "1e-1", "completions": ["a"], "scores": [[0.5]]},
    {"prompt": "p", "solution": "so \\boxed{3}", "outputs": [{"response": "a"}], "id": 7},
]  # fmt: skip
TRAIN = b"""extends = "base.toml"
seed = 3
lookahead_ratio = 0.5
[data]
inputs = ["x.jsonl"]
[base]
prm = "x"
[train]
lr = 2e-6
[objective]
name = "sc"
[curriculum]
mode = "none"
"""
SEARCH = b"""task = "gsm8k"
n = [4, 16]
[policy]
name = "hf:x"
[search]
method = "sample"
seed = 1
[search.sampling]
temperature = 0.7
top_p = 0.9
"""
NAMES = ("a.jsonl", "a.json", "a.jsonl.gz", "a.parquet")
names = st.sampled_from((*NAMES, "a.jsonl", "a.jsonl", "a.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def write(folder: Path, name: str, data: bytes) -> Path:
    for other in NAMES:
        (folder / other).unlink(missing_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def data_of(records: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    return files(records) | files(records) | torn(files(records)) | anything


@fuzz(0.16, name=names, data=data_of(LABELLED), unlabelled=st.booleans(), skip=st.booleans())
def test_trees(folder: Path, name: str, data: bytes, unlabelled: bool, skip: bool) -> None:
    path = write(folder, name, data)
    options = ReadOptions(split_steps=unlabelled, on_bad_record="skip" if skip else "fail")

    def read() -> list[Any]:
        trees = [draft.tree(i) for i, (_, draft) in enumerate(Reader([path], options=options).drafts())]
        return [(tree.content_hash(), tree.depths(), tree.where) for tree in trees]

    for found in survives("trees", read) or ():
        assert found[2].startswith(str(path))


@fuzz(0.03, name=names, data=data_of(LABELLED), format=st.sampled_from(tuple(FORMATS)))
def test_trees_of_a_named_format(folder: Path, name: str, data: bytes, format: str) -> None:
    path = write(folder, name, data)
    survives("trees", lambda: [draft.tree(0) for _, draft in Reader([path], format=format).drafts()])


@fuzz(0.02, name=names, data=data_of([LABELLED[4], LABELLED[5]]))
def test_benchmarks(folder: Path, name: str, data: bytes) -> None:
    path = write(folder, name, data)
    survives("benchmarks", lambda: read_prmbench([path]))
    survives("benchmarks", lambda: read_processbench([path]))


@fuzz(0.1, name=names, data=data_of(POOLS))
def test_pools(folder: Path, name: str, data: bytes) -> None:
    path = write(folder, name, data)
    pool = survives("pools", lambda: read_pool(path))
    if pool is not None:
        assert len(pool.content_hash()) == 32
        assert all(tree.where.startswith(str(path)) for tree in pool.trees())
        write_pool(folder / "again.jsonl", pool.problems)
        again = read_pool(folder / "again.jsonl")
        kept = [[(s.steps, s.answer, s.scores, s.tokens, s.correct) for s in one.solutions] for one in pool.problems]
        assert kept == [
            [(s.steps, s.answer, s.scores, s.tokens, s.correct) for s in one.solutions] for one in again.problems
        ]
        assert [one.problem for one in again.problems] == [one.problem for one in pool.problems]


@fuzz(0.06, name=names, data=data_of(POOLS), field=st.sampled_from((None, None, "answer", "gold", "solutions", "")))
def test_tasks(folder: Path, name: str, data: bytes, field: str | None) -> None:
    path = write(folder, name, data)
    task = survives("tasks", lambda: load_task(str(path), answer_field=field))
    if task is not None:
        assert all(problem.text.strip() and problem.answer is not None for problem in task.problems)
        assert all(0 <= problem.tolerance < float("inf") for problem in task.problems)


CODE: list[dict[str, Any]] = [stdin_record(), function_record(), HUMANEVAL, MBPP, OWN]


@fuzz(0.1, name=names, data=data_of(CODE))
def test_code_tasks(folder: Path, name: str, data: bytes) -> None:
    path = write(folder, name, data)
    task = survives("code tasks", lambda: load_task(str(path)))
    for problem in task.problems if task is not None else ():
        assert problem.is_judged
        if problem.tests is not None:
            assert problem.tests.judged(), "nothing would be right without tests"
            again = TaskProblem.with_reference(problem.text, problem.reference or "")
            assert again.tests is not None
            assert len(again.tests.judged()) == len(problem.tests.judged())


toml_values = st.sampled_from(
    ("nan", "inf", "-1", "0", "1e400", "99999999999999999999", "true", '""', "[]", "{}", "2020-01-01", '"\\u0000"',
     "'x'", "[[]]", "{a = 1}", "[1, 'a']", "-0.5", "1e-9", "9" * 5000)
)  # fmt: skip


def naming(place: str, read: Callable[[], Any]) -> Any:
    """What is read; an error must begin with the place."""
    try:
        return read()
    except PrismError as error:
        if not str(error).startswith(place):
            raise AssertionError(f"the error does not name the file: {error}") from error
        raise


@st.composite
def recipes(draw: st.DrawFn) -> bytes:
    lines = draw(st.sampled_from((TRAIN, SEARCH))).splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(("value", "value", "drop", "double", "move")))
        if change == "value":
            lines[at] = lines[at].split(b"=")[0] + b"= " + draw(toml_values).encode()
        elif change == "double":
            lines.insert(at, lines[at])
        elif len(lines) > 1:
            line = lines.pop(at)
            if change == "move":
                lines.insert(draw(st.integers(0, len(lines))), line)
    return b"\n".join(lines) + b"\n"


@fuzz(
    0.04,
    data=recipes() | torn(recipes()) | anything,
    base=st.sampled_from((b"", b'extends = "a.toml"\n', b"seed = 4\n")),
)
def test_recipes(folder: Path, data: bytes, base: bytes) -> None:
    path = folder / "a.toml"
    path.write_bytes(data)
    (folder / "base.toml").write_bytes(base)
    survives("recipes", lambda: read_toml(path))
    for read in (lambda: load_recipe(path), lambda: read_settings(SearchRecipe, path)):
        survives("recipes", partial(naming, str(folder), read))


FRESH = itertools.count()


@fuzz(0.015, name=names, data=data_of(LABELLED), skip=st.booleans())
def test_pairs_are_written_whole_or_not_at_all(folder: Path, name: str, data: bytes, skip: bool) -> None:
    path = write(folder, name, data)
    out = folder / f"out-{next(FRESH)}"
    command = ["pairs", str(path), "--out", str(out), *(["--on-bad-record", "skip"] if skip else [])]

    def run() -> int:
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return 0

    done = survives("prism pairs", run)
    found = sorted(file.name for file in out.rglob("*")) if out.exists() else []
    assert not [file for file in found if file.endswith(".part") or file == ".lock"]
    assert ("pairs.parquet" in found and "trees.parquet" in found) if done == 0 else not found
