"""The last stage: TRL trains the world's policy once with each PRM as its reward.

The oracle's scores are the reward without errors. Truth is measured twice on problems that no model has seen: whether
the answer is right, and whether every step is.
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
from prism_prm.lab.world.build import World, unseen_problems
from prism_prm.lab.world.oracle import judge, solved
from prism_prm.lab.world.problems import ANSWER_MARK, Problem
from prism_prm.lab.world.scorer import OracleScorer
from prism_prm.lab.world.settings import FORMAT
from prism_prm.lab.world.tokens import prompt_of

if TYPE_CHECKING:
    from prism_prm.rl.alarm import TrainedPolicy
    from prism_prm.rl.monitor import Rollout, Row, Truth

T = TypeVar("T")

ORACLE = "oracle"
ANSWER, STEPS = "answer", "steps"
"""The two measures of truth: the answer is right; and so is every step."""
AT_ONCE = 2
"""Policies that are trained side by side, one thread each: more threads gain nothing on models this small."""
STREAM = 6
"""The random stream that chooses the problems policies are trained and monitored on."""


@dataclass(frozen=True, slots=True)
class Reinforcement:
    """How policies are trained."""

    updates: int = 100
    prompts: int = 16
    """Problems per update."""
    samples: int = 8
    """Solutions per problem: a group."""
    lr: float = 1e-3
    held_out: int = 200
    """Problems that the policy is watched on."""
    every: int = 5
    """Updates between two looks."""
    credits: tuple[str, ...] = ("outcome",)
    betas: tuple[float, ...] = (0.0,)
    """Weights of the divergence from the untrained policy in the loss."""

    def trainer(self, beta: float, seed: int) -> dict[str, Any]:
        """Settings of TRL."""
        return {
            "max_steps": self.updates, "per_device_train_batch_size": self.prompts * self.samples,
            "num_generations": self.samples, "learning_rate": self.lr, "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10, "adam_beta2": 0.98, "beta": beta, "max_completion_length": 32, "temperature": 1.0,
            "save_strategy": "no", "seed": seed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One policy: whose scores reward it, and how."""

    prm: str
    """The name of a PRM of the demo, or ORACLE."""
    credit: str = "outcome"
    beta: float = 0.0

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.prm}-{self.credit}-{self.beta:g}"


@dataclass(frozen=True)
class Job:
    """All that the process which trains a policy needs to know."""

    run: Run
    policy: Path
    prm: Path | OracleScorer
    modulus: int
    settings: Reinforcement
    train: Sequence[Row]
    held_out: Sequence[Row]
    seed: int
    out: Path


def runs_of(prms: Sequence[str], settings: Reinforcement) -> list[Run]:
    """Every PRM and the oracle, with every credit and weight; the oracle last, since it is the fastest."""
    return [Run(prm, credit, beta) for beta in settings.betas for credit in settings.credits for prm in (*prms, ORACLE)]


class OracleGold:
    """The oracle as who says what is true."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def __call__(self, rows: Sequence[Row], written: Sequence[Rollout]) -> Truth:
        from prism_prm.rl.monitor import Truth
        from prism_prm.steps import cut_steps

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
    """(to train on, to be watched on): no model of the world has seen any of them, and none is in both."""
    count = settings.updates * settings.prompts
    drawn = unseen_problems(world, count + settings.held_out, STREAM)
    return drawn[:count], drawn[count:]


def jobs_of(
    world: World, prms: Mapping[str, Path | OracleScorer], runs: Sequence[Run], settings: Reinforcement, folder: Path
) -> list[Job]:
    """A job per run, whose PRM is found in `prms`; a folder is named by what its policy comes from."""
    train, held_out = ([_row(problem) for problem in some] for some in rl_problems(world, settings))
    seed = world.settings.seed
    jobs = []
    for run in runs:
        prm = prms[run.prm]
        # Of a PRM the key of its recipe, and the round.
        comes_from = f"{prm.parents[1].name}/{prm.name}" if isinstance(prm, Path) else prm.identity()
        trainer = settings.trainer(run.beta, seed)
        key = content_key(FORMAT, world.policy.parent.name, comes_from, run, trainer, settings.held_out, settings.every)
        jobs.append(
            Job(
                run, world.policy, prm, world.settings.modulus, settings, train, held_out, seed,
                folder / f"{run.name}-{key}",
            )
        )  # fmt: skip
    return jobs


def _row(problem: Problem) -> dict[str, Any]:
    return {"prompt": prompt_of(problem.text), "problem": problem.text, "answer": problem.answer}


def train_job(job: Job) -> None:
    """Train one policy, in whatever process."""
    import torch

    from prism_prm.backends.load_prm import load_prm
    from prism_prm.rl.alarm import MonitorSettings
    from prism_prm.rl.reward import PRMReward
    from prism_prm.rl.trainer import train_with_reward

    torch.set_num_threads(1)
    prm = load_prm(job.prm, device="cpu", on_too_long="skip") if isinstance(job.prm, Path) else job.prm
    train_with_reward(
        job.policy, PRMReward(prm, "min"), train=job.train, held_out=job.held_out, gold=OracleGold(job.modulus),
        out=job.out, trainer=job.settings.trainer(job.run.beta, job.seed), credit=job.run.credit,
        monitor=MonitorSettings(every=job.settings.every, votes=8), identity=prm.identity(),
    )  # fmt: skip


def train_policies(jobs: Sequence[Job]) -> dict[Run, TrainedPolicy]:
    """Train what is not trained yet, some side by side; gives what became of each. Jobs must have different runs."""
    from prism_prm.rl.alarm import read_run_file, read_trained_policy

    side_by_side(
        "policies trained by TRL", train_job, [job for job in jobs if not read_run_file(job.out).get("finished")]
    )
    return {job.run: read_trained_policy(job.out) for job in jobs}


def side_by_side(title: str, do: Callable[[T], object], jobs: Sequence[T]) -> None:
    """Do some jobs at a time, each in a process."""
    if not jobs:
        return
    workers = min(AT_ONCE, os.cpu_count() or 1, len(jobs))
    with (
        progress(title, len(jobs)) as advance,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        for done in as_completed([pool.submit(do, job) for job in jobs]):
            done.result()
            advance(1)
