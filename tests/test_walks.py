"""The walks in docs/architecture.md are true: taken with tiny models, they call the files that the page lists."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prism_prm

SOURCE = Path(prism_prm.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"


def listed(title: str) -> tuple[list[str], set[str]]:
    """The files of a walk in order, and the files and modules that the page names on its side."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {title}\n")[1].split("\n#")[0]
    table, side = section.split("On the side:")
    return re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE), set(re.findall(r"`(\S+?)`", side))


def called_files(walk: Callable[[], Any]) -> list[str]:
    """The files of prism_prm whose functions were called, by first call."""
    for module in pkgutil.walk_packages([str(SOURCE)], "prism_prm."):  # else importing would count as calling
        if not module.name.endswith("__main__") and not module.name.startswith("prism_prm.rl.connectors."):
            importlib.import_module(module.name)  # connectors import their framework
    found: dict[str, None] = {}

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        in_function = code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and in_function and code.co_filename.startswith(f"{SOURCE}/"):
            found[Path(code.co_filename).relative_to(SOURCE).as_posix()] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [name for name in found if name.endswith(".py")]


def check(title: str, walk: Callable[[], Any], at_most: int) -> None:
    files, side = listed(title)
    called = called_files(walk)
    assert files == [name for name in called if name in files], "called in another order, or not at all"
    rest = {name for name in called if name not in files and name not in side}
    assert {name for name in rest if name.split("/")[0].removesuffix(".py") not in side} == set(), "named nowhere"
    assert len(files) <= at_most


def prm800k_line() -> str:
    def position(*ratings: int) -> dict[str, Any]:
        completions = [{"text": f"then {rating}", "rating": rating, "flagged": None} for rating in ratings]
        return {"completions": completions, "human_completion": None, "chosen_completion": 0}

    return json.dumps(
        {
            "labeler": "x", "timestamp": "t", "generation": None, "is_quality_control_question": False,
            "is_initial_screening_question": False, "question": {"problem": "P?", "ground_truth_answer": "1"},
            "label": {"steps": [position(1, -1), position(1, -1)], "total_time": 1, "finish_reason": "solution"},
        }
    )  # fmt: skip


def test_one_prm800k_line(tmp_path: Path, tiny_lm: Callable[..., Path]) -> None:
    from prism_prm import init_prm
    from prism_prm.evaluate.benchmarks import read_benchmark
    from prism_prm.evaluate.evaluate_prm import EvalSettings, evaluate_steps
    from prism_prm.evaluate.report import RunInfo, write_run
    from prism_prm.evaluate.score_files import score_benchmark, steps_from_table

    (tmp_path / "line.jsonl").write_text(prm800k_line())
    prm = init_prm(tiny_lm("qwen2"), family="qwen")
    settings = EvalSettings(num_draws=100)

    def walk() -> None:
        items = read_benchmark("labeled", [tmp_path / "line.jsonl"])
        steps, *_ = steps_from_table(items, score_benchmark(prm, items, tmp_path))
        write_run(tmp_path, RunInfo("tiny", "tiny"), [evaluate_steps(items, steps, settings)], settings)

    check("One PRM800K line, from its file to the report", walk, at_most=15)
    assert json.loads((tmp_path / "metrics.json").read_text())["benchmarks"]["labeled"]["subsets"]["all"]["steps"] == 4


def test_one_problem_of_a_search(tmp_path: Path, tiny_lm: Callable[..., Path]) -> None:
    from prism_prm import SearchSettings, init_prm, load_task, open_policy
    from prism_prm.backends.policy import Sampling
    from prism_prm.search.engine import search_problems

    (tmp_path / "task.jsonl").write_text('{"problem": "What is 1 + 2?", "answer": "3"}')
    prm = init_prm(tiny_lm("qwen2"), family="qwen")
    policy = open_policy(f"hf:{tiny_lm('qwen2')}")
    settings = SearchSettings(method="beam", n=4, max_steps=2, sampling=Sampling(max_step_tokens=4))
    found: list[Any] = []

    def walk() -> None:
        task = load_task(str(tmp_path / "task.jsonl"))
        found.extend(search_problems(policy, prm, [problem.text for problem in task.problems], settings))

    check("One problem of a search", walk, at_most=20)
    assert len(found) == 1
