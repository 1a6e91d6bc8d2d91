"""Records of code benchmarks: what policies are asked, what is public, what is hidden, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from payloads import HUMANEVAL, MBPP, MBPP_OTHERS, OWN, function_record, packed, stdin_record
from prism_prm.data.pools import PoolProblem, Solution, read_pool, write_pool
from prism_prm.data.tasks import TASKS, Window, load_task, problem_of
from prism_prm.errors import DataError, PrismError
from prism_prm.grading.code_benchmarks import ERRATA, LIVECODEBENCH_PRELUDE, read_asserts, read_examples
from prism_prm.grading.problems import Case, Packed, ProgramTests, TaskProblem, read_reference, unpack

DEEP = "[" * 100_000
"""Nested too deeply to be parsed."""


def its_tests(problem: TaskProblem) -> ProgramTests:
    assert problem.tests is not None
    return problem.tests


def test_livecodebench_reads_from_standard_input() -> None:
    problem = problem_of(stdin_record())
    tests = its_tests(problem)
    assert (problem.name, problem.level, problem.date, problem.in_errata) == ("abc100_a", "easy", "2024-03-02", False)
    assert (tests.function, tests.seconds, tests.prelude) == (None, 6.0, LIVECODEBENCH_PRELUDE)
    assert tests.public == (Case("1 2\n", "3\n"),)
    assert isinstance(tests.hidden, Packed)
    assert tests.judged() == (Case("1 2\n", "3\n"), Case("5 5\n", "10\n")), "graded on both"
    assert problem.text.startswith("Print the sum of two numbers.\n\nThe program reads standard input")
    assert "5 5" not in problem.text
    compile(LIVECODEBENCH_PRELUDE, "prelude", "exec")


def test_livecodebench_refuses_metadata_that_cannot_be_read() -> None:
    for metadata in ("{", "[]", DEEP):
        with pytest.raises(DataError, match=r"`metadata` is .*, expected a JSON object"):
            problem_of(stdin_record() | {"metadata": metadata})


def test_livecodebench_calls_a_function() -> None:
    problem = problem_of(function_record())
    tests = its_tests(problem)
    assert tests.function == "order"
    assert tests.judged() == (Case((2, 1), [1, 2]), Case((7, 9), [7, 9]))
    assert "def order(self" in problem.text


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/prism-was-here",)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode(), "more than a string .*it was not read"),
        (base64.b64encode(zlib.compress(pickle.dumps(["x"]))).decode(), "more than a string .*it was not read"),
        (base64.b64encode(zlib.compress(b"junk")).decode(), "cannot be read"),
        (packed([])[:-8], "cannot be read"),
        ("not base64!", "cannot be read"),
        ("[1, ", "cannot be read"),
        ("[1]", "test 0: needs `input` and `output`"),
        ('[{"input": 1, "output": "2"}]', "must be strings"),
        (packed({"input": 1}), "a list of objects"),
    ],
)
def test_bad_payloads_are_refused_when_they_are_read(payload: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        problem_of(stdin_record(private_test_cases=payload))
    assert not Path("/tmp/prism-was-here").exists()


def test_a_problem_without_any_test_is_refused() -> None:
    with pytest.raises(DataError, match="there are no tests"):
        problem_of(stdin_record(public_test_cases="[]", private_test_cases=packed([])))


def test_plain_and_packed_tests_are_the_same() -> None:
    tests = [{"input": "1", "output": "2"}]
    assert unpack(json.dumps(tests)) == unpack(packed(tests)) == tests


def test_humaneval() -> None:
    problem = problem_of(HUMANEVAL)
    tests = its_tests(problem)
    assert (problem.name, tests.function, tests.prelude) == ("HumanEval/999", "half", "import math")
    assert tests.public == (Case((4,), 2.0),)
    assert tests.hidden == (Case((2,), 1.0), Case((1,), 0.5, 1e-6))
    assert tests.judged() == tests.hidden, "a few of its examples are wrong"
    assert tests.num_unread == 1, "the loop; `assert True` tests nothing"
    assert "def half" in problem.text


@pytest.mark.parametrize(
    ("test", "case"),
    [
        ("assert f(1, 'a') == [1, (2,)]", Case((1, "a"), [1, (2,)])),
        ("assert 3 == f(-1)", Case((-1,), 3)),
        ("assert f({'a': 1}) is True, 'why'", Case(({"a": 1},), True)),
        ("assert f('a')", Case(("a",), True, view="truth")),
        ("assert not f([])", Case(([],), False, view="truth")),
        ("assert f('x' * 3) == 'xxx'", Case(("xxx",), "xxx")),
        ("assert tuple(f([1])) == tuple([1])", Case(([1],), (1,), view="tuple")),
        ("assert abs(f(1) - 0.5) <= 1e-3", Case((1,), 0.5, 1e-3)),
        ("assert math.isclose(f(1), 0.5)", Case((1,), 0.5, 0.0, relative=1e-9)),
        ("assert isclose(2, f(1), rel_tol=1e-3, abs_tol=1)", Case((1,), 2, 1.0, relative=1e-3)),
        ("assert f(set()) == set([1])", Case((set(),), {1})),
        ("assert math.isclose(f(1), 0.5, rtol=1)", None),
        ("assert math.isclose(f(1), 0.5, rel_tol='x')", None),
        ("assert np.isclose(f(1), 0.5)", None),
        ("assert abs(f(1), 2) < 1", None),
        ("assert abs(f(1) - 2) < 'x'", None),
        ("assert f(x) == 1", None),
        ("assert f(1) == g(1)", None),
        ("assert f(1) < 2", None),
        ("assert f(a=1) == 2", None),
        ("assert 1 < f(1) < 3", None),
        ("if True:\n    assert f(1) == 2", None),
        ("assert f('%s' % 'x') == 1", None),
        ("assert f('x' * 10**9) == 1", None),
        ("assert f([0] * 999999999) == 1", None),
    ],
)
def test_asserts_become_cases_or_are_counted(test: str, case: Case | None) -> None:
    assert read_asserts(test, "f") == (([case], 0) if case else ([], 1))


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (">>> f(1)\n2\n>>> f(3)\n'a b'", [Case((1,), 2), Case((3,), "a b")]),
        ("f([1, 2]) ==> [2, 1]\nf([]) => []", [Case(([1, 2],), [2, 1]), Case(([],), [])]),
        ("For f('(') the result. f(')') -> False.", [Case((")",), False)]),
        (">>> f(1) == None", [Case((1,), None)]),
        ("f(2) # returns 4\nf(2) # returns 5", [Case((2,), 4)]),
        ("f(2) should return 1.5, not 1", [Case((2,), 1.5)]),
        ("f(a) => 1, and f is good", []),
        (">>> f(1)\n>>> f(2)\n7", [Case((2,), 7)]),
        ("half(1) -> 2", []),
    ],
)
def test_examples_of_a_docstring(docstring: str, expected: list[Case]) -> None:
    assert read_examples(docstring, "f") == expected


def test_mbpp_shows_the_first_assert_and_hides_the_others() -> None:
    problem = problem_of(MBPP)
    tests = its_tests(problem)
    assert (problem.name, tests.function, tests.prelude) == ("MBPP/7", "join", "import math")
    assert (tests.public, tests.hidden) == ((Case(([1], [2]), [1, 2]),), (Case(([], [3]), [3]), Case(((), ()), ())))
    assert "assert join([1], [2])" in problem.text
    assert "[3]" not in problem.text


def test_mbpp_of_other_forms(tmp_path: Path) -> None:
    ball, sums, size = (its_tests(problem_of(record)) for record in MBPP_OTHERS.values())
    assert (ball.function, ball.public) == ("volume", (Case((1,), 4.19, 0.0, relative=0.001),))
    assert ball.hidden == (Case((2,), 33.5, 0.0, relative=0.001),)
    assert (sums.function, sums.hidden) == ("sum", (Case((100, 150), 93), Case((4, 6), 3)))
    assert (size.is_judged, size.num_unread) == (False, 2)
    path = tmp_path / "mbpp.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (MBPP, *MBPP_OTHERS.values())))
    task = load_task("mbpp", path)
    assert [problem.name for problem in task.problems] == ["MBPP/7", "MBPP/82", "MBPP/126"]
    assert task.notes() == ["1 problems of mbpp are left out: no hidden test that can be read."]
    path.write_text(json.dumps(MBPP_OTHERS["unreadable"]) + "\n")
    with pytest.raises(DataError, match=r"none of its 1 problems is left\. no hidden test that can be read: 1"):
        load_task("mbpp", path)


@pytest.mark.parametrize("test", ["assert 1 == 1", "assert sorted([1]) == [1]", "not Python"])
def test_mbpp_without_a_function(test: str) -> None:
    with pytest.raises(DataError, match="no function is called in the test"):
        problem_of({**MBPP, "test_list": [test]})


def test_own_records() -> None:
    tests = its_tests(problem_of(OWN))
    assert (tests.function, tests.seconds, tests.prelude) == (None, 6.0, "")
    assert tests.judged() == (Case("2", "4"), Case("-3", "-6"), Case("0", "0"))
    called = {
        "problem": "p",
        "function": "f",
        "prelude": "import re",
        "seconds": 1,
        "tests": [{"input": [1], "output": {"a": 1}}],
    }
    assert its_tests(problem_of(called)) == ProgramTests((), (Case((1,), {"a": 1}),), "f", "import re", 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tests": "x"}, "a list of objects"),
        ({"tests": [{"input": 1, "output": 2}]}, "test 0: `input` and `output` must be strings"),
        ({"function": 3}, "`function` is 3"),
        ({"function": "f; g", "public_tests": [], "tests": []}, "`function` is 'f; g'"),
        ({"function": "f"}, "not one JSON value per line|must list the arguments"),
        ({"seconds": -1}, "`seconds` is -1"),
        ({"seconds": True}, "`seconds` is True"),
        ({"prelude": 1}, "`prelude` is 1"),
        ({"problem": ""}, "`problem` is ''"),
        ({"public_tests": "junk"}, "must be a list of tests"),
        ({"public_tests": '{"tests": 1}'}, "`public_tests` is not valid"),
        ({"public_tests": '{"tests": [], "public_tests": [], "function": 3}'}, "`function` is 3"),
        ({"public_tests": '{"tests": ' + DEEP}, "`public_tests` is not valid"),
        ({"function": "f", "tests": [{"input": DEEP, "output": "1"}]}, "test 0: not one JSON value per line"),
    ],
)
def test_bad_own_records(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PrismError, match=message):
        problem_of({**OWN, "public_tests": [{"input": "x y", "output": "1"}], **changes})


def test_all_tests_as_one_text() -> None:
    for record in (stdin_record(), function_record(), HUMANEVAL, MBPP, MBPP_OTHERS["close"], OWN):
        problem = problem_of(record)
        reference = problem.reference
        assert reference is not None
        again = TaskProblem.with_reference(problem.text, reference)
        assert again.answer is None
        assert its_tests(again).judged() == its_tests(problem).judged()
        assert its_tests(again).public == its_tests(problem).public
        assert its_tests(again).function == its_tests(problem).function
    assert TaskProblem.with_reference("1 + 1?", "2", 0.5) == TaskProblem("1 + 1?", "2", tolerance=0.5)
    assert read_reference("{x}") is None
    for broken in ('{"tests"', '{"tests": [', '{"tests": [[1]], "public_tests": []}', '{"tests": ' + DEEP):
        with pytest.raises(DataError, match=r"the tests of a reference, .*, cannot be read"):
            read_reference(broken)


def test_pools_hold_no_hidden_test(tmp_path: Path) -> None:
    problem = problem_of(MBPP)
    write_pool(tmp_path / "pool.jsonl", [PoolProblem(problem, (Solution(("a",), "a"),))])
    assert "[3]" not in (tmp_path / "pool.jsonl").read_text()
    (entry,) = read_pool(tmp_path / "pool.jsonl").problems
    assert its_tests(entry.problem) == its_tests(problem).public_only()
    assert (entry.problem.text, entry.problem.name, entry.problem.is_judged) == (problem.text, problem.name, False)


@pytest.fixture
def contest(tmp_path: Path) -> Path:
    dates = {"a": "2023-05-01", "abc350_c": "2024-05-01", "c": "2025-01-01"}
    records = [
        stdin_record(question_id=name, question_content=f"Problem {name}.", contest_date=f"{day}T00:00:00")
        for name, day in dates.items()
    ]
    path = tmp_path / "contest.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("window", "names", "left_out"),
    [
        (Window(), ["a", "abc350_c", "c"], []),
        (Window(errata="drop"), ["a", "c"], ["in the errata"]),
        (Window(since="2024-01-01"), ["abc350_c", "c"], ["outside the dates"]),
        (Window(since="2023-05-01", until="2024-05-01"), ["a", "abc350_c"], ["outside the dates"]),
        (Window("2024-01-01", "2024-12-31", "drop"), None, None),
    ],
)
def test_windows(contest: Path, window: Window, names: list[str] | None, left_out: list[str] | None) -> None:
    if names is None:
        with pytest.raises(DataError, match="none of its 3 problems is left"):
            load_task("livecodebench-v5", contest, window=window)
        return
    task = load_task("livecodebench", contest, window=window)
    assert [problem.name for problem in task.problems] == names
    assert [why for _, why in task.left_out] == left_out
    assert len(task.notes()) == len(set(left_out or []))


def test_windows_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(PrismError, match="must be a day"):
        Window(since="yesterday")
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps(OWN) + "\n")
    with pytest.raises(DataError, match="has no date"):
        load_task(str(own), window=Window(since="2024-01-01"))


def test_the_tasks_are_known() -> None:
    assert {f"livecodebench-v{release}" for release in range(1, 7)} | {"humaneval", "mbpp"} <= set(TASKS)
    assert TASKS["livecodebench-v3"].place == "lighteval/code_generation_lite:release_v3:test"
    assert TASKS["livecodebench"].place == TASKS["livecodebench-v6"].place
    assert len(ERRATA) == 12


def test_a_task_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "he.jsonl"
    bare = {**HUMANEVAL, "prompt": "def half(x):\n    '''Half of x.'''\n"}
    path.write_text("".join(json.dumps(record) + "\n" for record in (HUMANEVAL, bare)))
    assert load_task("humaneval", path).notes() == [
        "1 of 2 code problems have no public tests: votes cannot tell programs apart.",
        "2 tests of humaneval cannot be read as arguments and a value, and are not used.",
    ]
