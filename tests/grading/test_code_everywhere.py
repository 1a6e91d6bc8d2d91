"""Re-ranking, rewards and evaluation on problems that ask for a program; searching for one is in tests/search."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from payloads import OWN, fenced
from prism_prm import PRMReward, init_prm, read_trees
from prism_prm.cli import app
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import problem_of
from prism_prm.grading.graders import TaskGrader
from prism_prm.rl.monitor import AnswerGold
from prism_prm.rl.monitor import Rollout as Whole
from prism_prm.rl.train_policy import AnswerReward
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.search.label_engine import by_answer
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool

RIGHT, LUCKY, WRONG, CRASH = "print(2 * int(input()))", "print(4)", "print(5)", "print(4); 1 / 0"
"""`LUCKY` passes the public test (2 → 4), and no hidden one."""
SCORES = {RIGHT: 0.6, LUCKY: 0.3, WRONG: 0.9, CRASH: 0.95}
DOUBLE = problem_of(OWN)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "double.jsonl"
    path.write_text(json.dumps(OWN) + "\n")
    return path


def pool_file(folder: Path, programs: Sequence[str]) -> Path:
    solutions = [{"steps": [fenced(one).strip()], "scores": [SCORES[one]]} for one in programs]
    path = folder / "pool.jsonl"
    path.write_text(json.dumps({"problem": OWN["problem"], "solutions": solutions}) + "\n")
    return path


def test_reranking_a_code_pool(tmp_path: Path, task: Path) -> None:
    programs = [WRONG, LUCKY, CRASH, RIGHT, "print(2 * int(input()) )"]
    SCORES[programs[-1]] = 0.5
    settings = RerankSettings(aggregators=("min",), num_draws=50, judges=1)
    results = rerank_pool(pool_file(tmp_path, programs), tmp_path / "out", task=str(task), settings=settings)
    (grades,) = results.graded.grades
    assert [grade.correct for grade in grades] == [False, False, False, True, True]
    assert [grade.passed for grade in grades] == [False, True, False, True, True]
    assert [grade.group for grade in grades] == [0, 1, -1, 1, 1], "no group for a crash"
    assert [grade.status for grade in grades] == ["ok", "ok", "error", "ok", "ok"]
    chosen = {(one.rule, one.prm): one.solution for one in results.selections}
    assert chosen == {
        ("majority", ""): 1, ("public-tests", ""): 1,
        ("best-of-n", "pool"): 2, ("weighted", "pool"): 3, ("public-tests", "pool"): 3,
    }  # fmt: skip
    last = {(curve.method, curve.prm): curve.points[-1].value for curve in results.curves}
    assert last["mean", ""] == pytest.approx(2 / 5)
    assert last["oracle", ""] == 1
    assert last["public-tests", ""] == pytest.approx(2 / 3), "one of the three that pass"
    assert last["public-tests", "pool"] == 1
    assert last["best-of-n", "pool"] == 0
    assert "public tests first" in (tmp_path / "out" / "report.md").read_text()
    again = rerank_pool(tmp_path / "pool.jsonl", tmp_path / "out", task=str(task), settings=settings)
    assert again.graded.grades == results.graded.grades, "grades are kept"


def test_right_programs_that_crash_on_a_public_test(tmp_path: Path) -> None:
    """They are right, and cast no vote."""
    tests = problem_of({**OWN, "public_tests": [{"input": "x", "output": "4"}]}).tests
    assert tests is not None
    problem = replace(DOUBLE, tests=replace(tests, judged_on_public=False))
    pool = Pool((PoolProblem(problem, (Solution((fenced(RIGHT),), fenced(RIGHT)),) * 2),))
    results = rerank_pool(pool, tmp_path / "out", settings=RerankSettings(num_draws=10, judges=1))
    assert [(grade.correct, grade.group) for grade in results.graded.grades[0]] == [(True, -1)] * 2
    assert [point.value for point in results.curve("majority").points] == [0.0, 0.0]
    assert [point.value for point in results.curve("public-tests").points] == [1.0, 1.0]


def test_no_selector_sees_a_hidden_test(tmp_path: Path) -> None:
    """Other hidden tests turn every verdict around, and change nothing else."""
    programs = [WRONG, LUCKY, CRASH, RIGHT]
    found = []
    for name, tests in (
        ("as-is", OWN["tests"]),
        ("other", [{"input": "2", "output": "4"}, {"input": "3", "output": "4"}]),
    ):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({**OWN, "tests": tests}) + "\n")
        settings = RerankSettings(aggregators=("min",), num_draws=20, judges=1)
        found.append(rerank_pool(pool_file(tmp_path, programs), tmp_path / name, task=str(path), settings=settings))
    correct = [[grade.correct for grade in results.graded.grades[0]] for results in found]
    assert correct == [[False, False, False, True], [False, True, False, False]]
    chosen = [[(one.rule, one.prm, one.solution) for one in results.selections] for results in found]
    assert chosen[0] == chosen[1]
    seen = [[(grade.group, grade.passed) for grade in results.graded.grades[0]] for results in found]
    assert seen[0] == seen[1]


class ByText(Scorer):
    """A PRM that gives every step the score 0.8 but those of the lucky program."""

    def identity(self) -> str:
        return "by text"

    def count_tokens(self, tree: Any) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[Any], *_: Any, **__: Any) -> list[TreeScores]:
        chances = [np.array([0.5 if LUCKY in one.text else 0.8 for one in tree.nodes]) for tree in trees]
        return [TreeScores(self.outputs, np.log(p / (1 - p))[:, None]) for p in chances]


def test_programs_without_a_sandbox_are_warned_of(task: Path, tmp_path: Path) -> None:
    settings = RerankSettings(judges=1, sandbox="none", num_draws=10)
    rerank_pool(pool_file(tmp_path, [RIGHT]), tmp_path / "out", task=str(task), settings=settings)
    assert "WITHOUT a sandbox" in (tmp_path / "out" / "report.md").read_text()


def test_rewards_for_programs() -> None:
    texts = [fenced(RIGHT), fenced(LUCKY), "It is 4."]
    reference = DOUBLE.reference
    assert reference is not None
    reward = PRMReward(ByText(), "min", verifiable=1.0)  # type: ignore[arg-type]
    found = reward(prompts=[DOUBLE.text] * 3, completions=texts, answer=[reference] * 3)
    assert found == pytest.approx([1.8, 0.5, 0.0]), "a right program, a wrong one, and none, which is gated"
    reward.close()
    with TaskGrader(workers=1) as grader:
        assert AnswerReward(grader)([DOUBLE.text] * 3, texts, [reference] * 3) == [1.0, 0.0, 0.0]
        judge = by_answer(grader)  # as `prism label` judges rollouts
        assert judge([(DOUBLE, text) for text in texts]) == [True, False, False]
        rows = [{"problem": DOUBLE.text, "answer": reference, "tolerance": 0.0}] * 3
        truth = AnswerGold(grader)(rows, [Whole(text, (1,), True) for text in texts])
        assert truth.right["answer"] == [True, False, False]
        assert truth.answers[0] == truth.answers[1] is not None
        assert truth.answers[2] is None


def test_evaluating_labelled_code(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    steps = ["```python\ndef f(x):", "    y = x + 1", "    return y\n```"]
    data = tmp_path / "code.jsonl"
    records = [{"prompt": f"Add 1 ({i}).", "completions": steps, "labels": [True, True, i % 2 == 0]} for i in range(4)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [node.text for node in next(iter(read_trees(data))).nodes] == steps, "indentation is kept"
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    words = ["eval", "--bench", "labeled", "--data", str(data), "--prm", str(tmp_path / "prm")]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "eval")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "eval" / "metrics.json").exists()
