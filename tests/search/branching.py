"""A policy that is written down as a tree of chances, so that the value of every step is known exactly."""

from __future__ import annotations

from collections.abc import Sequence

from prism_prm.backends.policy import Sampling, StepRequest, Written, rng
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.label_engine import Judging

SLIP, REPAIR, LENGTH = 0.3, 0.1, 4
"""After good steps a bad one is written with this chance, after a bad one the next repairs it with that; a solution has
so many steps before its answer, which is right if the last step is."""
RIGHT, WRONG = "#### 1", "#### 0"


def chances(steps: Sequence[str]) -> dict[str, float]:
    """What may come next."""
    is_good = not steps or steps[-1].startswith("good")
    if len(steps) == LENGTH:
        return {RIGHT if is_good else WRONG: 1.0}
    good = 1 - SLIP if is_good else REPAIR
    return {f"good {len(steps)}": good, f"bad {len(steps)}": 1 - good}


def value(steps: Sequence[str]) -> float:
    """How likely a solution that begins with these steps is right."""
    if steps and steps[-1].startswith("####"):
        return float(steps[-1] == RIGHT)
    return sum(chance * value([*steps, step]) for step, chance in chances(steps).items())


class Branching:
    """Writes what `chances` say; a word is a token."""

    name, has_log_likelihood = "branching", False

    def __init__(self) -> None:
        self.batches: list[int] = []

    def identity(self) -> str:
        return "branching"

    def prompt(self, problem: str) -> str:
        return f"{problem}\n\n"

    def close(self) -> None: ...

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        self.batches.append(len(asks))
        return [self._one(ask, sampling.stop) for ask in asks]

    def _one(self, ask: StepRequest, stop: str) -> Written:
        steps = [step for step in ask.text.split(stop)[1:] if step]
        draws, written = rng(ask.key), ""
        num_tokens = 0
        while num_tokens + 2 <= ask.max_tokens:
            names, shares = zip(*chances(steps).items(), strict=True)
            step = names[0] if draws.random() < shares[0] else names[-1]
            num_tokens += 2
            steps.append(step)
            written += step
            if step.startswith("####"):
                return Written(written, "end", num_tokens)
            written += stop
            if not ask.whole:
                return Written(written, "stop", num_tokens)
        return Written(written, "cut", num_tokens)


def judge(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
    """Right if it ends with the right answer."""
    return [text.endswith(f"#### {problem.answer}") for problem, text in solutions]


judging: Judging = judge
