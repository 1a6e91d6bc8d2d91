"""Problems of tasks and pools: what their fields may hold, and what is said of a record that holds something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prism_prm.data.pools import read_pool, write_pool
from prism_prm.data.tasks import load_task, problem_of
from prism_prm.errors import DataError
from prism_prm.grading.problems import TaskProblem

NAN, INF = float("nan"), float("inf")
GOOD = {"problem": "q", "answer": "1", "solutions": ["a"]}


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


OF_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"problem": 5}, "`problem` is 5, expected a string"),
    ({"problem": ["a"]}, "`problem` is ['a'], expected a string"),
    ({"problem": ""}, "no problem text in any of the fields problem, question, prompt; found the fields ['answer', "),
    ({"answer": True}, "`answer` is True, expected a string, a number, or a list of them"),
    ({"answer": {"value": 3}}, "`answer` is {'value': 3}, expected a string, a number, or a list of them"),
    ({"answer": [["a"]]}, "`answer` is [['a']], expected a string, a number, or a list of them"),
    ({"name": True}, "`name` is True, expected a string or a number"),
    ({"name": None, "id": ["a"]}, "`id` is ['a'], expected a string or a number"),
    ({"level": {}}, "`level` is {}, expected a string or a number"),
    ({"tolerance": "abc"}, "`tolerance` is 'abc', expected a number from 0 to 1,000,000"),
    ({"tolerance": -0.1}, "`tolerance` is -0.1, expected a number from 0 to 1,000,000"),
    ({"tolerance": True}, "`tolerance` is True, expected a number from 0 to 1,000,000"),
    ({"tolerance": []}, "`tolerance` is [], expected a number from 0 to 1,000,000"),
    ({"tolerance": 10**30}, "`tolerance` is 1000000000000000000000000000000, expected a number from 0 to 1,000,000"),
    ({"error": "x"}, "`error` is 'x', expected a number that is 0 or more"),
    ({"error": -1}, "`error` is -1, expected a number that is 0 or more"),
    ({"error": "nan"}, "`error` is 'nan', expected a number that is 0 or more"),
    ({"error": {"a": 1}}, "`error` is {'a': 1}, expected a number that is 0 or more"),
    ({"error": 1e300, "answer": "0." + "0" * 100 + "1"}, "too large for the answer"),
]


@pytest.mark.parametrize(("change", "message"), OF_PROBLEMS)
def test_bad_problems_say_where_and_what(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", GOOD, GOOD | change)
    for read in (read_pool, lambda path: load_task(str(path))):
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}:2: ")
        assert message in str(caught.value)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_numbers_that_are_none_come_from_tables(tmp_path: Path, value: float) -> None:
    for field in ("answer", "tolerance", "error", "id"):
        record = {"problem": "q", "answer": "1", "solutions": ["a"], field: value}
        pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=rf"a\.parquet: row 0: `{field}` is -?(nan|inf)"):
            read_pool(tmp_path / "a.parquet")


OF_SOLUTIONS: list[tuple[dict[str, Any], str]] = [
    ({"scores": 5}, "`scores` of the record: Expected `array | null`, got `int`"),
    ({"scores": "ab"}, "`scores` of the record: Expected `array | null`, got `str`"),
    ({"scores": [0.5]}, "`scores` of the record: Expected `array | null`, got `float` - at `[0]`"),
    ({"scores": [[1.5]]}, "solution 0: the score 1.5 is not in [0, 1]"),
    ({"scores": [[0.1], [0.2]]}, "2 lists of scores for 1 solutions"),
    ({"solutions": [{"steps": ["a"], "scores": [-0.5]}]}, "solution 0: the score -0.5 is not in [0, 1]"),
    ({"solutions": [{"steps": ["a"], "scores": 5}]}, "solution 0: Expected `array | null`, got `int`"),
    ({"solutions": [{"text": "a", "tokens": -1}]}, "solution 0: -1 tokens; expected 0 to "),
    ({"solutions": [{"text": "a", "tokens": 10**20}]}, "solution 0: 100000000000000000000 tokens; expected 0 to "),
    ({"solutions": [{"text": "a", "answer": True}]}, "solution 0: Expected `int | float | str | null`, got `bool`"),
    ({"solutions": [{"text": "a", "correct": 1}]}, "solution 0: Expected `bool | null`, got `int`"),
]


@pytest.mark.parametrize(("change", "message"), OF_SOLUTIONS)
def test_bad_solutions_say_where_and_what(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_lines(tmp_path / "pool.jsonl", GOOD, GOOD | change)
    with pytest.raises(DataError) as caught:
        read_pool(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)


def test_what_data_sets_do_write_is_taken() -> None:
    assert problem_of(GOOD | {"tolerance": "1e-2"}) == TaskProblem("q", "1", tolerance=0.01)
    assert problem_of(GOOD | {"tolerance": None, "error": "", "level": None}) == TaskProblem("q", "1")
    assert problem_of(GOOD | {"answer": [1, "$2$", 3.0]}) == TaskProblem("q", "1, 2, 3")
    assert problem_of(GOOD | {"id": 7.0}) == TaskProblem("q", "1", "7")
    assert problem_of(GOOD | {"answer": " "}) == TaskProblem("q")
    huge = 10**40
    assert problem_of(GOOD | {"answer": huge, "id": huge}) == TaskProblem("q", str(huge), str(huge))


@pytest.mark.parametrize("field", ["gold", "target", "reference_answer", "gt", "my_own"])
def test_an_answer_under_another_name(tmp_path: Path, field: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"problem": "q", field: 7, "solutions": ["a"]})
    with pytest.raises(DataError) as caught:
        load_task(str(path))
    said = str(caught.value)
    assert said.startswith(f"{path}:1: no reference answer in any of the fields answer, final_answer, expected_answer")
    assert f"found the fields {sorted(['problem', field, 'solutions'])}" in said
    assert f"--set answer_field={field if field != 'my_own' else 'FIELD'}" in said
    assert load_task(str(path), answer_field=field).problems[0].answer == "7"
    assert read_pool(path, answer_field=field).problems[0].problem.answer == "7"


def test_a_pool_need_not_have_answers_but_says_so_if_it_seems_to(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"problem": "q", "solutions": ["a"]})
    assert read_pool(path).problems[0].problem.answer is None
    write_lines(path, {"problem": "q", "gold": "7", "solutions": ["a"]})
    with pytest.raises(DataError, match=r"a\.jsonl:1: no reference answer .*--set answer_field=gold"):
        read_pool(path)
    assert read_pool(path, with_answers=False).problems[0].problem.answer is None
    write_lines(path, {"problem": "q", "gold": "7", "answer": None, "solutions": ["a"]})
    assert read_pool(path).problems[0].problem.answer is None, "the record itself says that there is none"


def test_the_named_field_alone_counts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"problem": "q", "answer": "1", "gold": "2"}, {"problem": "q", "gold": ""})
    with pytest.raises(DataError, match=r"a\.jsonl:2: no `gold`, which answer_field names; found the fields"):
        load_task(str(path), answer_field="gold")


def test_a_number_out_of_range_deep_in_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "q", "answer": "1", "completions": ["a"], "scores": [[1e999]]}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: Number out of range"):
        read_pool(path)


def test_an_error_larger_than_the_answer_is_written_and_read_back(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", GOOD | {"answer": "4", "error": 8})
    pool = read_pool(path)
    assert pool.problems[0].problem.tolerance == 2.0
    write_pool(tmp_path / "b.jsonl", pool.problems)
    assert read_pool(tmp_path / "b.jsonl").problems == pool.problems
