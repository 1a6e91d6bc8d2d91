from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.tasks import TASKS, TaskGrader, TaskProblem, load_task, problem_of, subsample
from prism_prm.errors import ConfigError, DataError
from prism_prm.grading.extract import extract_answer

FILES = {
    "math-500": ("math500/test.jsonl", 500), "math-500-100": ("math500/test.jsonl", 100),
    "aime-2024": ("aime24/test.jsonl", 30), "amc-2023": ("amc23/test.jsonl", 40), "gsm8k": ("gsm8k/test.jsonl", 1319),
    "minerva": ("minerva_math/test.jsonl", 272), "olympiadbench": ("olympiadbench/test.jsonl", 675),
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"problem": "p", "answer": "1", "unique_id": "u", "level": 3}, TaskProblem("p", "1", "u", "3")),
        ({"question": "p", "answer": "2 + 3 = 5\n#### 1,005"}, TaskProblem("p", "1,005")),
        ({"problem": "p", "answer": 27.0, "id": 0}, TaskProblem("p", "27", "0")),
        ({"question": "p", "final_answer": ["$69$,$84$"]}, TaskProblem("p", "69,84")),
        ({"problem": "p", "solution": r"so $\boxed{1.6} \mathrm{cm}$"}, TaskProblem("p", "1.6")),
        ({"question": "p", "final_answer": ["4.2"], "error": "1e-1"}, TaskProblem("p", "4.2", tolerance=0.1 / 4.2)),
        ({"question": "p", "final_answer": ["50%"], "error": "1"}, TaskProblem("p", "50%", tolerance=1 / 50)),
    ],
)
def test_records_of_every_data_set(record: dict[str, Any], problem: TaskProblem) -> None:
    assert problem_of(record) == problem


def test_your_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "1+1?", "answer": 2}\n')
    task = load_task(path)
    assert (task.name, task.problems) == ("mine", (TaskProblem("1+1?", "2"),))
    assert load_task(str(path)) == task


def test_a_problem_without_an_answer_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "1+1?", "answer": 2}\n{"problem": "1+2?"}\n')
    with pytest.raises(DataError, match=r"mine.jsonl:2: no reference answer"):
        load_task(str(path))


def test_an_unknown_task_names_the_known() -> None:
    with pytest.raises(ConfigError, match=r"Unknown task 'math-501'\. Known: math-500, .*; or a file of problems"):
        load_task("math-501")


def test_subsample_is_in_proportion_and_independent_of_order() -> None:
    problems = [TaskProblem(f"p{i}", "1", level=str(i % 10 // 7)) for i in range(200)]  # 140 of level 0, 60 of level 1
    chosen = subsample(problems, 50)
    assert Counter(problem.level for problem in chosen) == {"0": 35, "1": 15}
    assert chosen == [problem for problem in problems if problem in chosen], "order kept"
    assert set(subsample(problems[::-1], 50)) == set(chosen)
    assert subsample(problems, 500) == problems


def test_methods_of_extraction_are_checked() -> None:
    with pytest.raises(ConfigError, match="boxed, ####, answer is, last number"):
        TaskGrader(methods=["box"])


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_known_tasks_load(name: str, real_data: Path) -> None:
    file, size = FILES[name]
    task = load_task(name, real_data / file)
    assert len(task.problems) == size
    assert all(problem.answer for problem in task.problems)
    assert {problem.tolerance for problem in task.problems} >= {TASKS[name].tolerance}


@pytest.mark.real_data
def test_the_subsample_spans_all_levels(real_data: Path) -> None:
    task = load_task("math-500-100", real_data / "math500/test.jsonl")
    assert Counter(problem.level for problem in task.problems) == {"1": 8, "2": 18, "3": 21, "4": 26, "5": 27}


@pytest.mark.real_data
def test_reference_solutions_are_judged_right(real_data: Path) -> None:
    """MATH-500's solutions end in a box and GSM8K's in ####: both must be found and judged right."""
    math = [json.loads(line) for line in (real_data / "math500/test.jsonl").open()]
    gsm8k = [json.loads(line) for line in (real_data / "gsm8k/train.jsonl").open()]
    found = [(problem_of(r), extract_answer(r["solution"])) for r in math]
    found += [(problem_of(r), extract_answer(r["answer"])) for r in gsm8k]
    with TaskGrader() as grader:
        verdicts = grader.judge([(problem, extraction.answer) for problem, extraction in found])
    wrong = [pair for pair, verdict in zip(found, verdicts, strict=True) if not verdict.correct]
    assert not wrong


def test_hyphens_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "1+1?", "answer": 2}\n')
    assert load_task("MATH500", path).name == "math-500"
    assert load_task("amc2023", path).name == "amc-2023"
