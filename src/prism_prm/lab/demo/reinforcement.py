"""The last stage: TRL trains the world's policy with each PRM as its reward.

The oracle is a reward without errors. True accuracy is measured on problems that no model has seen, in two ways:
whether the answer is right, and whether every step is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prism_prm.console import progress
from prism_prm.job import content_key
from prism_prm.lab.world.build import FORMAT, World, unseen_problems
from prism_prm.lab.world.oracle import OracleScorer, judge, solved
from prism_prm.lab.world.policy import prompt_of
from prism_prm.lab.world.problems import ANSWER_MARK, Problem
from prism_prm.rl.alarm import MonitorSettings, TrainedPolicy, read_run_file, read_trained_policy
from prism_prm.steps import cut_steps

if TYPE_CHECKING:
    from prism_prm.rl.monitor import Rollout, Row, Truth

T = TypeVar("T")

ORACLE = "oracle"
ANSWER, STEPS = "answer", "steps"
"""The two measures of true accuracy: the answer is right; every step is right."""
SKIPPED = "Reinforcement learning was skipped: it needs TRL. Install it with: pip install 'prism-prm[rl]'"
AT_ONCE = 2
"""Policies that are trained in parallel, one thread each: more threads do not help models this small."""
STREAM = 6
"""The random stream that chooses the problems policies are trained and monitored on."""


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """How policies are trained."""

    updates: int = 100
    prompts: int = 16
    """Problems per update."""
    samples: int = 8
    """Solutions per problem (the group size)."""
    lr: float = 1e-3
    held_out: int = 200
    """Problems that the policy is monitored on."""
    every: int = 5
    """Updates between two evaluations."""
    credits: tuple[str, ...] = ("outcome",)
    betas: tuple[float, ...] = (0.0,)
    """Weights of the KL penalty in the loss."""

    def trainer(self, beta: float, seed: int) -> dict[str, Any]:
        """Settings of TRL."""
        return {
            "max_steps": self.updates, "per_device_train_batch_size": self.prompts * self.samples,
            "num_generations": self.samples, "learning_rate": self.lr, "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10, "adam_beta2": 0.98, "beta": beta, "max_completion_length": 32, "temperature": 1.0,
            "save_strategy": "no", "seed": seed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy: the PRM that rewards it, and how."""

    prm: str
    """The name of a PRM of the demo, or ORACLE."""
    credit: str = "outcome"
    beta: float = 0.0

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.prm}-{self.credit}-{self.beta:g}"


@dataclass(frozen=True)
class PolicyTraining:
    """The training of a policy, for a worker process."""

    run: PolicyRun
    world: World
    prm: Path | OracleScorer
    settings: Reinforcement
    train: Sequence[Row]
    held_out: Sequence[Row]
    out: Path


class OracleGold:
    """Grades solutions by the oracle."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def __call__(self, rows: Sequence[Row], written: Sequence[Rollout]) -> Truth:
        from prism_prm.rl.monitor import Truth

        right: dict[str, list[bool]] = {ANSWER: [], STEPS: []}
        answers: list[str | None] = []
        for row, one in zip(rows, written, strict=True):
            problem, steps = Problem.parse(row["problem"], self.modulus), cut_steps(one.text)
            is_right = one.ended and solved(problem, steps)
            right[ANSWER].append(is_right)
            right[STEPS].append(is_right and set(judge(problem, steps)) == {"right"})
            last = steps[-1] if steps else ""
            answers.append(last.removeprefix(ANSWER_MARK) if one.ended and last.startswith(ANSWER_MARK) else None)
        return Truth(right, answers)


def rl_problems(world: World, settings: Reinforcement) -> tuple[list[Problem], list[Problem]]:
    """(training problems, held-out problems): disjoint, and not seen by any model of the world."""
    count = settings.updates * settings.prompts
    drawn = unseen_problems(world, count + settings.held_out, STREAM)
    return drawn[:count], drawn[count:]


def rows_of(problems: Sequence[Problem]) -> list[Row]:
    """Problems as the trainer and its rewards read them."""
    return [{"prompt": prompt_of(one.text), "problem": one.text, "answer": one.answer} for one in problems]


def policy_trainings(
    world: World,
    prms: Mapping[str, Path | OracleScorer],
    runs: Sequence[PolicyRun],
    settings: Reinforcement,
    folder: Path,
) -> list[PolicyTraining]:
    """One training per run; its PRM is in `prms`, and its folder is named by a hash of its inputs."""
    train, held_out = map(rows_of, rl_problems(world, settings))
    trainings = []
    for run in runs:
        prm = prms[run.prm]
        # For a PRM, the hash of its recipe and the round.
        comes_from = f"{prm.parents[1].name}/{prm.name}" if isinstance(prm, Path) else prm.identity()
        trainer = settings.trainer(run.beta, world.settings.seed)
        key = content_key(FORMAT, world.policy.parent.name, comes_from, run, trainer, settings.held_out, settings.every)
        out = folder / f"{run.name}-{key}"
        trainings.append(PolicyTraining(run, world, prm, settings, train, held_out, out))
    return trainings


def train_policy(one: PolicyTraining) -> None:
    """Train one policy; runs in a worker process."""
    import torch

    from prism_prm.backends.load_prm import load_prm
    from prism_prm.rl.reward import PRMReward
    from prism_prm.rl.trainer import train_with_reward

    torch.set_num_threads(1)
    prm = load_prm(one.prm, device="cpu", on_too_long="skip") if isinstance(one.prm, Path) else one.prm
    world = one.world.settings
    train_with_reward(
        one.world.policy, PRMReward(prm, "min"), train=one.train, held_out=one.held_out,
        gold=OracleGold(world.modulus), out=one.out, trainer=one.settings.trainer(one.run.beta, world.seed),
        credit=one.run.credit, monitor=MonitorSettings(every=one.settings.every, votes=8), identity=prm.identity(),
    )  # fmt: skip


def train_policies(trainings: Sequence[PolicyTraining]) -> dict[PolicyRun, TrainedPolicy]:
    """Train the policies that are not trained yet, several in parallel; returns all. Runs must differ."""
    todo = [one for one in trainings if not read_run_file(one.out).get("finished")]
    run_in_processes("policies trained by TRL", train_policy, todo)
    return {one.run: read_trained_policy(one.out) for one in trainings}


def run_in_processes(title: str, act: Callable[[T], object], items: Sequence[T]) -> None:
    """Call `act` on every item, AT_ONCE at a time, each in its own process."""
    if not items:
        return
    workers = min(AT_ONCE, os.cpu_count() or 1, len(items))
    with (
        progress(title, len(items)) as advance,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        for done in as_completed([pool.submit(act, item) for item in items]):
            done.result()
            advance(1)
