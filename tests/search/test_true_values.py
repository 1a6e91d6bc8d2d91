"""Rollouts in the embedded world against true values, which enumeration of all that the policy may write gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from prism_prm.backends.hf import HfPolicy, load_hf
from prism_prm.backends.policy import Sampling
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.lab.world.problems import ProblemSettings, draw_problems
from prism_prm.search.label_engine import Judging, by_answer, label_problems
from prism_prm.search.label_rules import LabelSettings

BATCH = 4096
"""Texts that go through the policy at a time."""
MAX_TOKENS = 24
SAMPLING = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class TrueValue:
    """A probability, up to what was not followed."""

    reached: float
    """Of completions that were found right."""
    residual: float
    """Of texts so unlikely that they were not followed: the value is at most `reached` + `residual`."""


@torch.inference_mode()
def true_value(
    policy: HfPolicy,
    text: str,
    is_right: Callable[[Sequence[str]], Sequence[bool]],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    least: float = 1e-5,
) -> TrueValue:
    """Follow every continuation of `text` that is at least as likely as `least` to its end.

    `is_right` judges continuations that ended; those that `max_tokens` cuts are wrong.
    """
    start: list[int] = policy.tokenizer(text)["input_ids"]
    growing: list[tuple[list[int], float]] = [([], 1.0)]
    ended: list[tuple[list[int], float]] = []
    residual = 0.0
    for _ in range(max_tokens):
        after: list[tuple[list[int], float]] = []
        for first in range(0, len(growing), BATCH):
            some = growing[first : first + BATCH]
            logits_BV = policy.model(input_ids=torch.tensor([start + ids for ids, _ in some])).logits[:, -1]
            chance_BV = torch.softmax(logits_BV.double() / temperature, -1)
            chance_BV *= torch.tensor([chance for _, chance in some], dtype=torch.float64)[:, None]
            followed_BV = chance_BV >= least
            residual += float(chance_BV[~followed_BV].sum())
            for row, token in followed_BV.nonzero().tolist():
                grown = ([*some[row][0], token], float(chance_BV[row, token]))
                (ended if token in policy.end_ids else after).append(grown)
        growing = after
    texts = [policy.tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in ended]
    verdicts = is_right(texts) if texts else []
    return TrueValue(sum(chance for (_, chance), right in zip(ended, verdicts, strict=True) if right), residual)


@pytest.fixture(scope="module")
def policy(world_policy: Path) -> HfPolicy:
    return load_hf(world_policy)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judging]:
    with TaskGrader(workers=1) as grader:
        yield by_answer(grader)


def value_of(policy: HfPolicy, judge: Judging, problem: TaskProblem, steps: list[str], **more: float) -> TrueValue:
    before = "".join(f"{step}\n\n" for step in steps)

    def is_right(texts: list[str]) -> list[bool]:
        return judge([(problem, before + text) for text in texts])

    return true_value(policy, policy.prompt(problem.text) + before, is_right, max_tokens=MAX_TOKENS, **more)  # type: ignore[arg-type]


def test_enumeration_is_exhaustive_on_a_policy_that_can_be_computed_by_hand(policy: HfPolicy) -> None:
    """With three tokens to write, a right solution is one text: its probability is the product of its tokens'."""
    problem = TaskProblem("1+1", "2")
    text = policy.prompt(problem.text) + "1+1=2\n\n"
    ids = policy.tokenizer(text + "#### 2")["input_ids"]
    end = policy.tokenizer.eos_token_id
    with torch.inference_mode():
        chances = torch.softmax(policy.model(torch.tensor([[*ids, end]])).logits[0].double(), -1)
    start = len(policy.tokenizer(text)["input_ids"])
    by_hand = np.prod([float(chances[at - 1, token]) for at, token in enumerate([*ids, end]) if at >= start])

    def is_right(texts: list[str]) -> list[bool]:
        return [text == "#### 2" for text in texts]

    found = true_value(policy, text, is_right, max_tokens=3, least=0.0)  # type: ignore[arg-type]
    assert found.reached == pytest.approx(by_hand, rel=1e-5)
    assert found.residual == 0.0
    fewer = true_value(policy, text, is_right, max_tokens=3, least=1e-4)  # type: ignore[arg-type]
    assert fewer.reached == pytest.approx(by_hand, rel=1e-5)
    assert 0 < fewer.residual < 0.05


def test_monte_carlo_values_converge_to_true_ones(policy: HfPolicy, judge: Judging) -> None:
    """400 rollouts: every value lies within 3.5 standard errors of the true one, whose residual is stated."""
    rollouts = 400
    problems = [TaskProblem(p.text, p.answer) for p in draw_problems(ProblemSettings(5, "+-", 2, 2), 3, RNG)]
    settings = LabelSettings(rollouts=rollouts, alternatives=2, sampling=SAMPLING)
    trees = label_problems(problems, policy, judge, settings)
    residuals, seen = [], []
    for problem, tree in zip(problems, trees, strict=True):
        for node, step in enumerate(tree.nodes):
            if step.estimate is None or not step.estimate.rollouts:
                continue
            true = value_of(policy, judge, problem, tree.texts(tree.path(node)), least=3e-5)
            low, high = true.reached, true.reached + true.residual
            nearest = min(max(step.estimate.value, low), high)
            spread = np.sqrt(max(nearest * (1 - nearest), 1 / rollouts) / rollouts)
            assert step.estimate.value == pytest.approx(nearest, abs=3.5 * spread), step.text
            residuals.append(true.residual)
            seen.append(low)
    assert len(seen) >= 9
    assert min(seen) < 0.1
    assert max(seen) > 0.9
    assert max(residuals) < 0.04


RNG = np.random.default_rng(5)
