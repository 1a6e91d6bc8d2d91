"""Steps of programs, labeled by rollouts that are judged by tests."""

from __future__ import annotations

from collections.abc import Sequence

from payloads import OWN
from prism_prm.backends.policy import Sampling, StepRequest, Written, rng
from prism_prm.data.tasks import problem_of
from prism_prm.grading.graders import TaskGrader
from prism_prm.search.label_engine import by_answer, label_problems
from prism_prm.search.label_methods import _first_step
from prism_prm.search.label_rules import LabelSettings

BEGINNING = "Read it, then double it.\n\n```python\nx = int(\n\n    input())\n\n"
RIGHT, WRONG = "if x:\n\n    print(2 * x)\nelse:\n    print(0)\n```", "print(5)\n```"


class Programmer:
    """Writes one of two programs, half of the time each."""

    name, has_log_likelihood = "programmer", False

    def identity(self) -> str:
        return "programmer"

    def prompt(self, problem: str) -> str:
        return f"{problem}\n\n"

    def close(self) -> None: ...

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        return [self._one(ask, sampling.stop) for ask in asks]

    def _one(self, ask: StepRequest, stop: str) -> Written:
        done = ask.text[len(self.prompt(OWN["problem"])) :]
        wholes = [whole for whole in (BEGINNING + RIGHT, BEGINNING + WRONG) if whole.startswith(done)]
        rest = wholes[int(rng(ask.key).random() * len(wholes))][len(done) :]
        if ask.whole or stop not in rest:
            return Written(rest, "end", 1)
        return Written(rest[: rest.index(stop) + len(stop)], "stop", 1)


def test_steps_of_programs_get_values() -> None:
    settings = LabelSettings(rollouts=16, alternatives=4, solutions=6)
    with TaskGrader(workers=1) as grader:
        trees = label_problems([problem_of(OWN)], Programmer(), by_answer(grader), settings)
    paths = {tuple(tree.texts(tree.path(node))): tree.nodes[node] for tree in trees for node in range(len(tree.nodes))}
    plan, read = "Read it, then double it.", "```python\nx = int(\n\n    input())"
    test, double = "if x:", "    print(2 * x)\nelse:\n    print(0)\n```"
    assert set(paths) == {(plan,), (plan, read), (plan, read, test), (plan, read, test, double), (plan, read, WRONG)}
    values = {path: step.estimate.value for path, step in paths.items() if step.estimate is not None}
    assert values[plan, read, test] == values[plan, read, test, double] == 1
    assert values[plan, read, WRONG] == 0
    assert 0.2 < values[plan, read] < 0.8


def test_an_alternative_without_a_fence_keeps_its_indentation() -> None:
    before, written = "for x in y:\n    a = 1\n", Written("    b = (1,\n    2)\n    c", "stop", 9)
    step = "    b = (1,\n    2)"
    assert _first_step(before, written, Sampling(segmenter="code")) == (step, f"{before}{step}\n")
