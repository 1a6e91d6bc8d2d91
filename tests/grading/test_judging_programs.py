"""Programs are judged by running them; what they vote under knows nothing of hidden tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from payloads import HUMANEVAL, MBPP, MBPP_OTHERS, OWN, fenced, function_record, stdin_record
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import problem_of
from prism_prm.errors import PrismError
from prism_prm.grading import problems, program_judge
from prism_prm.grading.code_benchmarks import count_packages, count_quirks
from prism_prm.grading.graders import TaskGrader
from prism_prm.grading.problems import TaskProblem
from prism_prm.grading.sandbox import Call, Program, RunResult, Sandbox
from prism_prm.grading.sandbox_policy import Limits
from prism_prm.search.grade_pool import Grade, GradedPool, grade_pool
from prism_prm.search.rerank_report import harness_notes

needs_bwrap = pytest.mark.skipif(
    not shutil.which("bwrap"), reason="NOT TESTED: bubblewrap is not installed (apt install bubblewrap)"
)
SUM = problem_of(stdin_record())
ORDER = problem_of(function_record())
HALF = problem_of(HUMANEVAL)
JOIN = problem_of(MBPP)
DOUBLE = problem_of({**OWN, "seconds": 1})


@pytest.fixture(scope="module")
def grader() -> Iterator[TaskGrader]:
    with TaskGrader(workers=1) as grader:
        yield grader


def outcomes(grader: TaskGrader, problem: TaskProblem, programs: list[str]) -> list[tuple[bool, str]]:
    found = grader.judge([(problem, program) for program in programs])
    return [(verdict.correct, verdict.status) for verdict in found]


def test_programs_that_read_and_print(grader: TaskGrader) -> None:
    programs = {
        "print(sum(map(int, input().split())))": (True, "ok"),
        "from __future__ import annotations\nprint(reduce(add, map(int, input().split())))": (True, "ok"),
        "print(3)": (False, "ok"),
        "print(float(sum(map(int, input().split()))))": (True, "ok"),
        "if __name__ == '__main__':\n    print(eval('+'.join(input().split())))": (True, "ok"),
        "1 / 0": (False, "error"),
        "print(": (False, "error"),
        "import os; print(3); os._exit(0)": (False, "ok"),
    }
    assert outcomes(grader, SUM, list(programs)) == list(programs.values())


TAKES_BACK = """
import os
taken = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
for _ in range(100_000):
    os.write(1, b"3")
    try: os.read(taken, 1)
    except BlockingIOError: pass
"""


@pytest.mark.parametrize("level", [pytest.param("bubblewrap", marks=needs_bwrap), "landlock", "none"])
def test_a_program_that_takes_its_output_back_is_wrong_and_others_are_judged(
    level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_judge, "RETRY_WAITS", ())
    with TaskGrader(workers=1, sandbox=level) as grader:
        taker, right = outcomes(grader, SUM, [TAKES_BACK, "print(sum(map(int, input().split())))"])
    assert taker[0] is False
    assert right == (True, "ok")


def test_programs_that_define_a_function(grader: TaskGrader) -> None:
    programs = {
        "class Solution:\n    def order(self, a, b):\n        return sorted([a, b])": (True, "ok"),
        "class Solution:\n    def order(self, a, b):\n        return min(a, b), max(a, b)": (True, "ok"),
        "def order(a, b):\n    return sorted([a, b])": (True, "ok"),
        "def order(a, b):\n    return [a, b]": (False, "ok"),
        "def other(a, b):\n    return [a, b]": (False, "error"),
        "def order(a):\n    return [a]": (False, "error"),
    }
    assert outcomes(grader, ORDER, list(programs)) == list(programs.values())
    equal = "    def __eq__(self, other): return True"
    answers = {
        "def half(x):\n    return x / 2": (True, "ok"),
        "def half(x):\n    return math.ldexp(x, -1)": (True, "ok"),  # the prompt imports math
        "def half(x):\n    return x // 2": (False, "ok"),
        "map = [[1]]\n\ndef half(x):\n    return x / 2": (True, "ok"),
        f"class Always:\n{equal}\n\ndef half(x):\n    return Always()": (False, "ok"),
        f"class Always(float):\n{equal}\n\ndef half(x):\n    return Always(7)": (False, "ok"),
    }
    assert outcomes(grader, HALF, list(answers)) == list(answers.values())
    joined = {
        "def join(a, b):\n    return a + b": (True, "ok"),
        "def join(a, b):\n    return [*a, *b]": (False, "ok"),  # a list is not a tuple in MBPP
    }
    assert outcomes(grader, JOIN, list(joined)) == list(joined.values())
    for record in (MBPP_OTHERS["close"], MBPP_OTHERS["named as Python's own"]):
        assert outcomes(grader, problem_of(record), [str(record["code"])]) == [(True, "ok")]


def test_the_verdict_on_every_test_is_kept(grader: TaskGrader) -> None:
    doubling = problem_of(
        {"problem": "Double it.", "public_tests": [{"input": "1", "output": "2"}, {"input": "2", "output": "4"}],
         "tests": [{"input": str(i), "output": str(2 * i)} for i in (3, 4, 5, 6)]}
    )  # fmt: skip
    programs = {
        "print(2 * int(input()))": (["passed"] * 2, ["passed"] * 4),
        "x = int(input())\nprint(2 * x if x < 4 else 0)": (["passed"] * 2, ["passed", "failed", "not run", "not run"]),
        "x = int(input())\nprint(2 * x / (5 - x))": (["failed", "failed"], ["not run"] * 4),
        "print(12 // (int(input()) - 1) - 8)": (["error", "passed"], ["not run"] * 4),
        None: ([], []),
    }
    pool = Pool(
        (PoolProblem(doubling, tuple(Solution(("s",), "" if one is None else fenced(one)) for one in programs)),)
    )
    graded = grade_pool(pool, grader).grades[0]
    for grade, (public, hidden) in zip(graded, programs.values(), strict=True):
        assert (grade.public_tests, grade.hidden_tests) == (tuple(public), tuple(hidden))
    (alone,) = grade_pool(Pool((PoolProblem(TaskProblem("1?", "1"), (Solution(("1",), "1"),)),)), grader).grades[0]
    assert (alone.public_tests, alone.hidden_tests) == (None, None)
    calls = grader.judge([(HALF, "def half(x):\n    return 1.0"), (HALF, "def half(x):\n    return 0.5")])
    assert [verdict.tests for verdict in calls] == [("passed", "failed"), ("failed", "not run")]


def test_limits_are_the_problems_own(grader: TaskGrader) -> None:
    assert outcomes(grader, DOUBLE, ["while True: pass"]) == [(False, "timeout")]
    assert outcomes(grader, DOUBLE, ["x = [0] * 10**10"]) == [(False, "memory")]


def test_a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that gets a third of a core does not fail: what counts is its CPU time."""
    opened: list[Limits] = []
    monkeypatch.setattr(program_judge, "Sandbox", lambda *, limits, **_: opened.append(limits) or Watching())
    TaskGrader().judge([(DOUBLE, "program")])
    assert opened == [Limits(cpu=1, wall=4)]


def test_whole_solutions_and_answers_side_by_side(grader: TaskGrader) -> None:
    plain = TaskProblem("1 + 1?", "2")
    solutions = [
        (DOUBLE, fenced("print(2 * int(input()))")), (DOUBLE, "4"), (DOUBLE, fenced("print(4)")),
        (plain, "It is \\boxed{2}."), (plain, "It is \\boxed{3}."),
    ]  # fmt: skip
    answers = [(problem, grader.extract(problem, text).answer) for problem, text in solutions]
    assert [one.correct for one in grader.judge(answers)] == [True, False, False, True, False]
    mixed = grader.judge([(plain, "2"), (DOUBLE, "print(2 * int(input()))"), (DOUBLE, None), (plain, None)])
    assert [(one.correct, one.status) for one in mixed] == [
        (True, "ok"), (True, "ok"), (False, "no answer"), (False, "no answer"),
    ]  # fmt: skip


def test_programs_vote_by_what_they_do_on_the_public_tests(grader: TaskGrader) -> None:
    programs = ["print(4)", "print(2 * int(input()))", "print(4.0)", "print(5)", "1 / 0", "print(4); 1 / 0", None]
    keys = grader.keys([(DOUBLE, program) for program in programs])
    assert keys[0].key == keys[1].key == keys[2].key is not None
    assert keys[3].key not in (None, keys[0].key)
    assert [key.key for key in keys[4:]] == [None] * 3, "no group for crashes"
    assert [(key.status, key.passed) for key in keys] == [
        ("ok", True), ("ok", True), ("ok", True), ("ok", False), ("error", False), ("error", False),
        ("no answer", None),
    ]  # fmt: skip
    values = ["{1, 2}", "{2, 1}", "(1, 2)", "[1, 2]", "[1.0, True + 1]", "lambda: 0"]
    found = grader.keys([(HALF, f"def half(x):\n    return {value}") for value in values])
    groups = [[key.key for key in found].index(key.key) for key in found]
    assert groups == [0, 0, 2, 3, 3, 5]
    assert found[5].key is None, "what cannot be told apart casts no vote"
    (bare,) = grader.keys([(TaskProblem("p", tests=problems.ProgramTests((), (problems.Case("", ""),))), "print(1)")])
    assert (bare.key, bare.status, bare.passed) == ("", "no public tests", None), "all are one group"


class Watching(Sandbox):
    """Notes all that goes in, and runs nothing."""

    def __init__(self, **_: Any) -> None:
        self.seen: list[str] = []

    def map(self, jobs: Any) -> Iterator[RunResult | list[RunResult]]:
        for job in jobs:
            self.seen.append(repr(job))
            yield [RunResult("ok", value=1)] * len(job.arguments) if isinstance(job, Call) else RunResult("ok", b"1")


@pytest.mark.parametrize("problem", [SUM, ORDER, HALF, JOIN, DOUBLE], ids=lambda problem: problem.name)
def test_votes_see_no_hidden_test(problem: TaskProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouping neither looks at hidden tests nor sends them anywhere, and no expected value enters the sandbox."""
    watching = Watching()
    monkeypatch.setattr(program_judge, "Sandbox", lambda **_: watching)
    assert problem.tests is not None
    hidden = problem.tests.judged()[-1]

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("hidden tests are looked at")

    with monkeypatch.context() as within:
        within.setattr(problems.ProgramTests, "judged", refuse)
        within.setattr(problems.Packed, "cases", refuse)
        TaskGrader().keys([(problem, "program")])
    sent = hidden.given if isinstance(hidden.given, str) else repr(list(hidden.given))
    assert watching.seen
    assert not any(sent in job for job in watching.seen)
    watching.seen.clear()
    marked = problems.ProgramTests((problems.Case("a", "SECRET1"),), (problems.Case("b", "SECRET2"),))
    TaskGrader().keys([(TaskProblem("p", tests=marked), "program")])
    TaskGrader().judge([(TaskProblem("p", tests=marked), "program")])
    assert watching.seen == [repr(Program("program", b"a"))] * 2
    assert not any("SECRET" in job for job in watching.seen)


def test_programs_that_the_benchmark_treats_otherwise_are_counted() -> None:
    programs = [
        "import sys\nfor line in sys.stdin.buffer.readline().split(): quit()", "sys.exit(0 if x else 1)", "sys.exit()",
        "open('x')\nself.open(3)", "exit (1)", "data = sys.stdin.buffer.read()", None,
        "n, *lines = sys.stdin.readlines()", "line = sys.stdin.readline()",
    ]  # fmt: skip
    counts = count_quirks([(SUM.tests, program) for program in programs])
    assert sorted(counts.values()) == [1, 1, 1, 1, 2]
    assert not count_quirks([(ORDER.tests, programs[0]), (DOUBLE.tests, programs[0]), (None, "quit()")])


def test_programs_that_import_packages_are_counted() -> None:
    programs = [
        "import numpy as np\nfrom numpy.linalg import det", "import math, sympy\nimport os.path, numpy", "import re",
        "    from sortedcontainers import SortedList", "x = 1  # import numpy", "important = 1\nfrom_ = 2", None,
    ]  # fmt: skip
    for problem in (SUM, ORDER, HALF, DOUBLE):
        counts = count_packages([(problem.tests, program) for program in programs])
        assert counts == {"numpy": 2, "sympy": 1, "sortedcontainers": 1}
    assert not count_packages([(None, programs[0])])
    pool = Pool((PoolProblem(DOUBLE, tuple(Solution(("s",), fenced(one or "")) for one in programs)),))
    grades = tuple(Grade(one, "fences", None, -1, "error") for one in programs)
    assert harness_notes([GradedPool(pool, (grades,))]) == [
        "Programs that import packages which the sandbox does not have, and so fail: numpy 2, sympy 1, "
        "sortedcontainers 1."
    ]


def test_a_wrong_program_is_stopped_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching()
    monkeypatch.setattr(program_judge, "Sandbox", lambda **_: watching)
    tests = problems.ProgramTests((), tuple(problems.Case(str(i), "1" if i < 4 else "2") for i in range(100)))
    (verdict,) = TaskGrader().judge([(TaskProblem("p", tests=tests), "program")])
    assert not verdict.correct
    assert len(watching.seen) == 1 + 2 + 4, "rounds of 1, 2 and 4 tests"
    watching.seen.clear()
    TaskGrader().judge([(TaskProblem("p", tests=tests), "program")] * 50)
    assert len(watching.seen) == 7, "equal programs run once"


def test_a_sandbox_that_fails_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching()
    monkeypatch.setattr(watching, "map", lambda jobs: iter([RunResult("sandbox", stderr=b"no room")] * len(list(jobs))))
    monkeypatch.setattr(program_judge, "Sandbox", lambda **_: watching)
    monkeypatch.setattr(program_judge, "RETRY_WAITS", (0.0, 0.0))
    with pytest.raises(PrismError, match="could not be started in the sandbox, 3 times: no room"):
        TaskGrader().judge([(DOUBLE, "program")])


class Failing(Watching):
    """Starts nothing in the first two rounds, as a machine that is short of memory for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[int] = []

    def map(self, jobs: Any) -> Iterator[RunResult | list[RunResult]]:
        self.rounds.append(len(jobs))
        for outcome in super().map(jobs):
            lost = RunResult("sandbox", stderr=b"no room")
            yield outcome if len(self.rounds) > 2 else [lost] * len(outcome) if isinstance(outcome, list) else lost


@pytest.mark.parametrize("problem", [SUM, ORDER], ids=["printing", "called"])
def test_programs_that_could_not_be_started_are_tried_again_alone(
    problem: TaskProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, waited = Failing(), list[float]()
    monkeypatch.setattr(program_judge, "Sandbox", lambda **_: box)
    monkeypatch.setattr(program_judge.time, "sleep", waited.append)
    found = TaskGrader().judge([(problem, "program"), (problem, "other")])
    assert [(one.correct, one.status) for one in found] == [(False, "ok")] * 2
    assert (box.rounds, waited) == ([2, 1, 1, 1], [1.0, 5.0, 1.0])


COLLIDING = """
class Numbers(set):
    def __iter__(self):
        return iter([number * (2**61 - 1) for number in range(1, 20_000)])

def f(x):
    return Numbers()
"""


@pytest.mark.parametrize(
    ("case", "program"),
    [
        (problems.Case((1,), {1}), COLLIDING),  # all in one place of a hash table, which takes quadratic time
        (problems.Case(([1] * 8,), 0.0, 1e-4, "polynomial"), "def f(x):\n    return (1 << 4_000_000) // 3"),
    ],
    ids=["hashed", "multiplied"],
)
def test_a_value_that_takes_long_to_compare_is_a_timeout(
    case: problems.Case, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_judge, "COMPARE_SECONDS", 0.5)
    problem = TaskProblem("p", tests=problems.ProgramTests((case,), (case,), "f"))
    with TaskGrader(workers=1) as grader:
        assert outcomes(grader, problem, [program]) == [(False, "timeout")]
        (key,) = grader.keys([(problem, program)])
        assert (key.passed, key.tests) == (False, ("timeout",))


def test_long_values_are_compared(grader: TaskGrader) -> None:
    case = problems.Case((10_000,), list(range(10_000)))
    problem = TaskProblem("p", tests=problems.ProgramTests((case,), (case,), "f"))
    programs = {
        "def f(n):\n    return list(range(n))": (True, "ok"),
        "def f(n):\n    return (*range(n),)": (True, "ok"),
        "def f(n):\n    return list(range(1, n + 1))": (False, "ok"),
        "class Odd:\n    pass\n\ndef f(n):\n    return [Odd() for _ in range(n)]": (False, "ok"),
    }
    assert outcomes(grader, problem, list(programs)) == list(programs.values())
    first, same, other, none = grader.keys([(problem, program) for program in programs])
    assert first.key == same.key != other.key != none.key is None
    assert [key.status for key in (first, same, other, none)] == ["ok", "ok", "ok", "error"]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [{"tuple": 5}, {"unknown": 5}, {"a": 1, "b": 2}, {"int": "x"}, {"set": [[1]]}, {"complex": ["a", 1]}, nested(5000)],
    ids=["tuple", "unknown", "fields", "int", "set", "complex", "nested"],
)
def test_what_a_program_writes_in_place_of_a_value_is_no_value(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching()
    monkeypatch.setattr(
        watching, "map", lambda jobs: iter([[RunResult("ok", value=value)] * len(job.arguments) for job in jobs])
    )
    monkeypatch.setattr(program_judge, "Sandbox", lambda **_: watching)
    assert not TaskGrader().judge([(HALF, "program")])[0].correct
    assert TaskGrader().keys([(HALF, "program")])[0].key is None
