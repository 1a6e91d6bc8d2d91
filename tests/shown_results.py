"""Results on disc for the views of searches, training and programs, written by the product's own code.

    python shown_results.py FOLDER GATE

runs a search to be watched: it goes on for as many rounds as the file GATE says.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prism_prm.aggregate import Choice
from prism_prm.backends.policy import PolicySettings, Sampling, StepRequest, Written
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.grading.problems import Case, ProgramTests, TaskProblem
from prism_prm.rl.alarm import POINTS, EvalPoint, SamplesFile, write_points
from prism_prm.search.grade_pool import Grade, GradedPool, write_solutions
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_task import search_task
from prism_prm.search.select import select_solutions, write_selected
from screens import HOSTILE
from worlds import FakePolicy, FakePrm

CRATES = "A crate holds 12 jars. Of the jars in 7 crates, 5 are broken. How many are whole?"
STEPS: list[dict[str, tuple[float, float]]] = [
    {
        "Each crate holds 12 jars, so 7 crates hold 7 · 12 = 84 jars": (0.35, 0.94),
        "7 crates and 12 jars make 7 + 12 = 19 jars": (0.25, 0.12),
        "Let w be the number of whole jars; then w + 5 is the number of all jars": (0.2, 0.88),
        "First find out how many jars there are: 12 · 7 = 72": (0.2, 0.31),
    },
    {
        "There are 84 jars in all, and 5 of them are broken": (0.4, 0.91),
        "Adding the broken ones gives 84 + 5 = 89": (0.3, 0.22),
        "Check the product: 10 · 7 = 70 and 2 · 7 = 14, together 84": (0.3, 0.86),
    },
    {
        "Taking away the broken ones leaves 84 - 5 = 79": (0.6, 0.93),
        "Taking away the broken ones leaves 84 - 5 = 78": (0.4, 0.35),
    },
    {"The answer is \\boxed{79}.": (0.6, 0.95), "The answer is \\boxed{78}.": (0.4, 0.4)},
]
"""Step of a depth → how likely the policy writes it, and how likely it is right."""
SCORES = {text: score for depth in STEPS for text, (_, score) in depth.items()}
HOSTILE_SCORES = {text: 0.2 + 0.1 * number for number, text in enumerate(HOSTILE)}


class Policy(FakePolicy):
    """Writes what STEPS says, or hostile texts for the problem that is one; a gate may let it wait."""

    gate: Path | None = None
    num_rounds = 0

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        self.num_rounds += 1
        while self.gate is not None and int(self.gate.read_text()) < self.num_rounds:
            time.sleep(0.05)
        written = []
        for ask in asks:
            self.options = _hostile if ask.text.startswith(HOSTILE[0]) else _crates
            written += super().write([ask], sampling)
        return written


def _crates(steps: tuple[str, ...]) -> dict[str, float]:
    return {text: chance for text, (chance, _) in STEPS[min(len(steps), 3)].items()}


def _hostile(steps: tuple[str, ...]) -> dict[str, float]:
    return {"The end \\boxed{1}.": 1.0} if len(steps) > 1 else dict.fromkeys(HOSTILE, 1 / len(HOSTILE))


def _score(steps: tuple[str, ...]) -> float:
    return {**SCORES, **HOSTILE_SCORES}.get(steps[-1], 0.5) - 0.01 * len(steps)


def search(folder: Path, settings: SearchSettings, *, num_problems: int = 3, gate: Path | None = None) -> None:
    """Run a search with fakes; its first problems are alike, and the last one is hostile."""
    folder.mkdir(parents=True, exist_ok=True)
    task = folder.with_name(f"{folder.name}.jsonl")
    problems = [{"problem": f"{CRATES} ({i + 1})", "answer": "79"} for i in range(num_problems - 1)]
    problems.append({"problem": HOSTILE[0], "answer": "1"})
    task.write_text("".join(json.dumps(one) + "\n" for one in problems), encoding="utf-8")
    recipe = SearchRecipe(
        task=str(task), policy=PolicySettings("hf:none"), search=settings, n=(settings.n,), prm=("jars",), at_once=2
    )
    policy = Policy(_crates)
    policy.gate = gate
    search_task(recipe, folder, policy=policy, prms={"jars": FakePrm(_score)}, judges=1)


LONG = Sampling(max_step_tokens=200_000, max_tokens=1_000_000, temperature=1.0)
BEAM = SearchSettings("beam", n=12, expand=4, max_steps=6, sampling=LONG)
AHEAD = SearchSettings("beam", n=8, expand=4, lookahead=1, max_steps=6, sampling=LONG)
SAMPLED = SearchSettings("best-of-n", n=6, max_steps=6, sampling=LONG)


def train(folder: Path, *, num_looks: int = 9) -> None:
    """A run whose reward rises while the truth falls, with an alarm."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    looks = []
    for number in range(num_looks):
        truth = 0.3 + 0.08 * number if number < 4 else 0.62 - 0.09 * (number - 4)
        reward = 0.35 + 0.06 * number
        right = (random.random((64, 4)) < truth).mean(axis=1).tolist()
        greedy = (random.random(64) < truth + 0.05).astype(float).tolist()
        proxy = np.clip(reward + 0.1 * random.standard_normal(64), 0, 1).tolist()
        numbers = {
            "answered": 0.9,
            "cut": 0.02,
            "num_steps": 4.0,
            "num_tokens": 60.0 + 9 * number,
            "entropy": 1.2 / (number + 1),
        }
        by_problem = {"proxy": proxy, "answer": right, "greedy/answer": greedy}
        looks.append(EvalPoint(5 * number, by_problem, numbers | {"kl": 0.3 * number**1.5}))
    write_points(folder / POINTS, looks)
    file = SamplesFile(folder, [f"{CRATES} ({i + 1})" for i in range(3)] + [HOSTILE[0]], up_to=-1)
    for look in looks:
        solutions = [
            [
                {"text": f"7 · 12 = 84\n\n84 - 5 = {79 + (k + i) % 2}\n\n\\boxed{{{79 + (k + i) % 2}}}",
                 "reward": look.mean("proxy"), "right": (k + i) % 2 == 0}
                for k in range(3)
            ] + [{"text": f"Greedy after update {look.update}: \\boxed{{79}}", "right": True}]
            for i in range(3)
        ]  # fmt: skip
        hostile = [{"text": text, "reward": 0.5, "right": False} for text in HOSTILE[1:]]
        file.add(look.update, [*solutions, [*hostile, {"text": HOSTILE[0], "right": False}]])


def programs(folder: Path) -> None:
    """A re-ranked pool of a code task, graded by hand: no sandbox is needed to look at it."""
    tests = ProgramTests(
        tuple(Case(str(i), str(2 * i)) for i in (1, 2)), tuple(Case(f"SECRET {i}", "SECRET") for i in range(12))
    )
    passed, failed, idle = ("passed",), ("failed",), ("not run",)
    written = [
        ("n = int(input())\nprint(2 * n)", Grade("", "fence", True, 0, "ok", True, passed * 2, passed * 12)),
        ("n = int(input())\nprint(n + n if n < 5 else 10)",
         Grade("", "fence", False, 0, "ok", True, passed * 2, passed * 6 + failed + idle * 5)),
        ("while True:\n    pass", Grade("", "fence", False, -1, "timeout", False, ("timeout",) * 2, idle * 12)),
        (HOSTILE[1], Grade("", "fence", False, -1, "error", False, ("error",) * 2, idle * 12)),
        (None, Grade(None, "none", False, -1, "no answer", None, (), ())),
    ]  # fmt: skip
    entries, grades = [], []
    for number in range(2):
        problem = TaskProblem(
            f"Read a number and print its double. ({number + 1})", tests=tests, name=f"double-{number}"
        )
        some = [(program, replace(grade, answer=program)) for program, grade in written[: 5 - number]]
        entries.append(PoolProblem(problem, tuple(Solution(("s",), program or "") for program, _ in some)))
        grades.append(tuple(grade for _, grade in some))
    graded = GradedPool(Pool(tuple(entries)), tuple(grades))
    scores = {"mine": [np.array([0.9 - 0.1 * i]) for i in range(9)]}
    write_solutions(folder / "solutions.parquet", graded, "by hand", scores, ["min"])
    write_selected(folder / "selected.jsonl", select_solutions(graded, scores, {"mine": Choice("min", "as given")}))


if __name__ == "__main__":
    search(Path(sys.argv[1]), BEAM, gate=Path(sys.argv[2]))
