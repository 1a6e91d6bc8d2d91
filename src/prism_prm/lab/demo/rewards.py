"""Rewards under optimization: does a policy that is trained without a KL penalty stay honest?

A policy of the world is trained by GRPO with PRISM (ours) as its reward, in several forms: as it is, retrained on what
an earlier policy exploited (rounds), with its scores clipped, or as an ensemble of PRMs with different seeds. An oracle
tells how the policy really does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from prism_prm.aggregate import card_values, choose_threshold
from prism_prm.backends.ensemble import Ensemble
from prism_prm.backends.hf import load_hf
from prism_prm.backends.load_prm import load_prm
from prism_prm.backends.policy import Sampling
from prism_prm.calibration import sigmoid
from prism_prm.config import from_mapping
from prism_prm.data.tables import write_trees
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.job import Job, content_key
from prism_prm.lab.demo.prms import train_base, train_by_recipe
from prism_prm.lab.demo.reinforcement import ANSWER, STREAM, OracleGold, Reinforcement, rows_of
from prism_prm.lab.demo.settings import ARMS, DemoSettings
from prism_prm.lab.world.build import FORMAT, World, load_policy, unseen_problems
from prism_prm.lab.world.oracle import OracleScorer, OracleStep, judge_step
from prism_prm.lab.world.problems import Problem
from prism_prm.lab.world.trees import label_step, sample_trees
from prism_prm.report import Report, percent
from prism_prm.report.figures import finish, nested, styles
from prism_prm.rl.alarm import MonitorSettings, TrainedPolicy, read_trained_policy
from prism_prm.rl.exploits import Exploits, find_exploits, num_pairs
from prism_prm.rl.recipe import RoundSettings
from prism_prm.rl.reward import PRMReward
from prism_prm.scorer import Scorer
from prism_prm.search.label_engine import by_answer
from prism_prm.train.recipe import Recipe
from prism_prm.tree import StepTree

OFF_POLICY_PARTS = 3
"""The off-policy control may use this many times the problems of a round to find as many pairs."""
MEMBERS, MEMBER_SEED = 4, 1000
"""PRMs in an ensemble, and the distance of their seeds."""
MEASURED = 300
"""Problems for the FPR on the last policy's steps."""


@dataclass(frozen=True)
class Rewarded:
    """A policy that was trained with some reward."""

    folder: Path
    scorer: Scorer
    facts: dict[str, Any] = field(default_factory=dict)
    """Tokens, pairs and label errors of the rounds before it."""

    @property
    def trained(self) -> TrainedPolicy:
        """Its curve and alarms."""
        return read_trained_policy(self.folder)


class RewardStudy:
    """One world with its PRMs, and policies of one RL seed in it. Everything is made once and kept on disk.

    Args:
        world: the world.
        folder: where its PRMs and policies are kept.
        settings: the training of PRMs and policies.
        rl_seed: the seed of RL.
        prm_seed: the seed of the PRMs; those of an ensemble's members follow from it.
        problems: unseen problems in a round.
    """

    def __init__(
        self, world: World, folder: Path, settings: DemoSettings, *, rl_seed: int, prm_seed: int, problems: int = 600
    ) -> None:
        assert settings.rl is not None, "there is no study without RL"
        self.world, self.folder, self.settings, self.prm_seed = world, folder, settings, prm_seed
        self.rl: Reinforcement = settings.rl
        self.rl_seed, self.num_problems = rl_seed, problems
        made_with = content_key(FORMAT, settings, prm_seed, problems, world.policy.parent.name)
        self.policies = folder / f"seed-{rl_seed}-{made_with}"

    @property
    def rounds(self) -> RoundSettings:
        """How exploits are sampled and labeled."""
        sampling = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=60)
        return RoundSettings(problems=self.num_problems, rollouts=8, rule="half", sampling=sampling)

    @cached_property
    def base(self) -> Path:
        """The base PRM, trained on lenient labels."""
        return train_base(self.folder, self.world, self.settings, self.prm_seed)

    def recipe(self, prm_seed: int) -> dict[str, Any]:
        """The recipe of PRISM (ours), which every round trains by again."""
        base = train_base(self.folder, self.world, self.settings, prm_seed)
        return ARMS["prism"].recipe(self.world.trees("annotated"), base, self.settings.arms, prm_seed)

    @cached_property
    def prism(self) -> Path:
        return train_by_recipe(self.folder, "prism", self.recipe(self.prm_seed))[0]

    def members(self) -> list[Path]:
        """PRISM (ours) with other seeds, each from a base PRM of its own; the first is `prism`."""
        seeds = [self.prm_seed + MEMBER_SEED * i for i in range(MEMBERS)]
        return [train_by_recipe(self.folder, "prism", self.recipe(seed))[0] for seed in seeds]

    def retrain(self, trees: Sequence[Path], name: str) -> Path:
        """PRISM (ours) with more trees."""
        from prism_prm.rl.rounds import retrain

        recipe = from_mapping(Recipe, self.recipe(self.prm_seed))
        out, accelerator = self.policies / name, Accelerator(cpu=True)
        return retrain(recipe, trees, out, repeat=self.rounds.repeat, accelerator=accelerator)

    @cached_property
    def problems(self) -> dict[str, list[Problem]]:
        """Disjoint problems that no model has seen: for RL, for each round, and for the FPR at the end."""
        parts = {"train": self.rl.updates * self.rl.prompts, "held_out": self.rl.held_out, "measured": MEASURED}
        parts |= {f"round-{k}": self.num_problems for k in range(1, OFF_POLICY_PARTS + 1)}
        drawn = iter(unseen_problems(self.world, sum(parts.values()), STREAM))
        return {name: [next(drawn) for _ in range(size)] for name, size in parts.items()}

    def train(
        self, name: str, prm: Path | Scorer, beta: float = 0.0, *, shape: bool = False, scale: str = "group"
    ) -> Rewarded:
        """Train a policy; `shape` clips scores at the threshold of the PRM's card and does not scale rewards."""
        from prism_prm.rl.trainer import train_with_reward

        out = self.policies / f"{name}-{beta:g}"
        scorer = load_prm(prm, device="cpu", on_too_long="skip") if isinstance(prm, Path) else prm
        train, held_out = (rows_of(self.problems[part]) for part in ("train", "held_out"))
        reward = PRMReward(scorer, "min", clip="card" if shape else None)
        train_with_reward(
            self.world.policy, reward, train=train, held_out=held_out,
            gold=OracleGold(self.world.settings.modulus), out=out,
            trainer=self.rl.trainer(beta, self.rl_seed) | {"scale_rewards": "none" if shape else scale},
            monitor=MonitorSettings(every=self.rl.every, votes=0),
            identity=content_key(scorer.identity(), shape, scale),
        )  # fmt: skip
        reward.close()
        return Rewarded(out, scorer)

    def exploits(self, name: str, part: str, policy: Path, prm: Path, settings: RoundSettings, exact: bool) -> Exploits:
        """Sample and label the steps of a policy."""
        problems = [TaskProblem(one.text, one.answer, f"{part}-{i}") for i, one in enumerate(self.problems[part])]
        with (
            Job(self.policies / name) as job,
            TaskGrader(workers=1) as grader,
            contextlib.closing(load_hf(policy, device="cpu")) as trained,
            contextlib.closing(load_hf(self.world.policy, device="cpu")) as reference,
        ):
            return find_exploits(
                job, problems, policy=trained, reference=reference, prm=load_prm(prm, device="cpu"),
                judge=by_answer(grader), settings=settings, labeler=self.label_exactly if exact else None,
            )  # fmt: skip

    def is_right(self, tree: StepTree, node: int) -> bool:
        *prefix, text = tree.texts(tree.path(node))
        return judge_step(Problem.parse(tree.problem, self.world.settings.modulus), prefix, text) == "right"

    def label_exactly(self, trees: list[StepTree]) -> tuple[list[StepTree], int]:
        """The oracle's labels, which take no tokens."""
        labeled = []
        for tree in trees:
            nodes = [
                label_step(step.text, "right" if self.is_right(tree, i) else "malformed")
                for i, step in enumerate(tree.nodes)
            ]
            labeled.append(replace(tree, nodes=tuple(nodes)))
        return labeled, 0

    def label_errors(self, trees: Sequence[StepTree]) -> dict[str, int]:
        """Labels against the oracle, for the candidates and the steps of the right solutions."""
        counts = dict.fromkeys(("right", "right_called_wrong", "wrong", "wrong_called_right"), 0)
        for tree in trees:
            for i, step in enumerate(tree.nodes):
                if step.label is not None:
                    right = self.is_right(tree, i)
                    counts["right" if right else "wrong"] += 1
                    counts["right_called_wrong"] += right and step.label == 0
                    counts["wrong_called_right"] += not right and step.label == 1
        return counts

    def fpr(self, policy: Path, scorer: Scorer) -> dict[str, float]:
        """The FPR on the policy's wrong steps after right prefixes, at the threshold of the PRM's card.

        For an ensemble, whose members' thresholds differ, it is the mean of their log-odds.
        """
        members = scorer.members if isinstance(scorer, Ensemble) else (scorer,)
        thresholds = np.array([choose_threshold(None, card_values(one)).value for one in members])
        threshold = float(sigmoid(np.log(thresholds / (1 - thresholds)).mean()))
        trees = sample_trees(*load_policy(policy), self.problems["measured"], candidates=4, seed=self.rl_seed)
        wrong, passed = 0, 0
        for tree, scores in zip(trees, scorer.score_trees(trees), strict=True):
            own = [p for step, p in zip(tree.nodes, scores.probability, strict=True) if step.label == 0]
            wrong += len(own)
            passed += sum(bool(p > threshold) for p in own)
        return {"wrong_steps": wrong, "fpr": passed / wrong if wrong else float("nan"), "threshold": threshold}


class NoisyOracle(OracleScorer):
    """The oracle with a small continuous error: a reward without false positives whose scores differ a little."""

    def __init__(self, modulus: int, spread: float = 0.01, seed: int = 0) -> None:
        super().__init__(modulus)
        self.spread, self.seed = spread, seed

    def identity(self) -> str:
        return f"{super().identity()}:noise:{self.spread:g}:{self.seed}"

    def extend(self, parent: OracleStep, text: str) -> OracleStep:
        step = super().extend(parent, text)
        words = [self.seed, *"\n".join(step.path).encode()]
        share = self.spread * float(np.random.default_rng(words).random())
        chance = 1 - self.spread + share if step.log_odds[0] > 0 else share + 1e-6
        return replace(step, log_odds=(float(np.log(chance / (1 - chance))) if chance < 1 else step.log_odds[0],))


def round_prm(study: RewardStudy, number: int, exact: bool) -> tuple[Path, dict[str, Any]]:
    """The PRM after some rounds, each of which samples from the policy of the round before it, at β = 0."""
    kind = "oracle" if exact else "rollouts"
    files: list[Path] = []
    facts: dict[str, Any] = {"tokens": 0, "rounds": []}
    prm, policy = study.prism, study.train("static", study.prism).folder
    for k in range(1, number + 1):
        name = f"{kind}-{k}"
        settings = replace(study.rounds, seed=k)
        found = study.exploits(f"{name}-exploits", f"round-{k}", policy / "policy", prm, settings, exact)
        if found.trees:
            file = study.policies / f"{name}.parquet"
            if not file.exists():
                write_trees(file, found.trees, source=name)
            files.append(file)
        facts["tokens"] += sum(found.tokens.values())
        facts["rounds"].append(
            {"tokens": found.tokens, "counts": found.counts, "pairs": sum(map(num_pairs, found.trees)),
             "noise": study.label_errors(found.trees)}
        )  # fmt: skip
        prm = study.retrain(files, f"{name}-prm") if files else study.prism  # the same PRM, if nothing was suspect
        if k < number:
            policy = study.train(name, prm).folder
    return prm, facts


Reward = Callable[[RewardStudy, float], Rewarded]


def after_rounds(number: int, *, exact: bool = False, shape: bool = False) -> Reward:
    """PRISM (ours), retrained on what earlier policies exploited."""

    def run(study: RewardStudy, beta: float) -> Rewarded:
        prm, facts = round_prm(study, number, exact)
        name = f"{'oracle' if exact else 'rollouts'}-{number}{'-shape' if shape else ''}"
        return replace(study.train(name, prm, beta, shape=shape), facts=facts)

    return run


def off_policy(study: RewardStudy, beta: float) -> Rewarded:
    """As many pairs as in the first round, from steps of the untrained policy."""
    _, facts = round_prm(study, 1, False)
    wanted = facts["rounds"][0]["pairs"]
    if not wanted:  # nothing was suspect in the first round
        return replace(study.train("off-policy", study.prism, beta), facts={"tokens": 0, "rounds": []})
    settings = replace(study.rounds, min_score=0.0, disagree="none")
    kept: list[StepTree] = []
    tokens, total = 0, 0
    for k in range(1, OFF_POLICY_PARTS + 1):
        found = study.exploits(f"off-policy-{k}", f"round-{k}", study.world.policy, study.prism, settings, False)
        tokens += sum(found.tokens.values())
        for tree in found.trees:
            if total < wanted:
                kept.append(replace(tree, tree_id=len(kept)))
                total += num_pairs(tree)
        if total >= wanted:
            break
    file = study.policies / "off-policy.parquet"
    if not file.exists():
        write_trees(file, kept, source="off-policy")
    prm = study.retrain([file], "off-policy-prm")
    facts = {"tokens": tokens, "rounds": [{"pairs": total, "wanted": wanted, "noise": study.label_errors(kept)}]}
    return replace(study.train("off-policy", prm, beta), facts=facts)


def ensemble(study: RewardStudy, beta: float) -> Rewarded:
    """PRMs with different seeds as one reward; none is retrained."""
    rule = "mean-1std"
    scorer = Ensemble([load_prm(one, device="cpu", on_too_long="skip") for one in study.members()], rule)
    return study.train(f"ensemble-{rule}", scorer, beta)


def noisy_oracle(scale: str) -> Reward:
    """The oracle with a small error, which shows what scaling rewards does by itself."""
    return lambda study, beta: study.train(
        f"noisy-oracle-{scale}", NoisyOracle(study.world.settings.modulus), beta, scale=scale
    )


REWARDS: dict[str, Reward] = {
    "static": lambda study, beta: study.train("static", study.prism, beta),
    "rollouts-1": after_rounds(1),
    "rollouts-2": after_rounds(2),
    "off-policy": off_policy,
    "oracle-1": after_rounds(1, exact=True),
    "oracle-2": after_rounds(2, exact=True),
    "shape": lambda study, beta: study.train("shape", study.prism, beta, shape=True),
    "rollouts-2-shape": after_rounds(2, shape=True),
    "ensemble": ensemble,
    "rollouts-3": after_rounds(3),
    "base": lambda study, beta: study.train("base", study.base, beta),
    "noisy-oracle-group": noisy_oracle("group"),
    "noisy-oracle-none": noisy_oracle("none"),
}
SHOWN = {
    "static": "PRISM (ours), static",
    "rollouts-1": "one round",
    "rollouts-2": "two rounds",
    "off-policy": "pairs of the untrained policy",
    "shape": "clipped, not scaled",
    "ensemble": f"ensemble of {MEMBERS}",
}
"""The rewards of `prism demo --full`, with their titles."""


def add_rewards(report: Report, study: RewardStudy) -> None:
    """Train policies with the rewards that the demo shows, and add their curves and a table."""
    found = {name: REWARDS[name](study, 0.0) for name in SHOWN}
    report.text(f"""
## Rewards under optimization
The same policy, trained without a KL penalty in world {study.world.settings.seed}. After a *round*, the PRM has been
retrained on steps that the trained policy exploits, labeled by rollouts of the untrained one; the control has as many
pairs from the untrained policy's own steps. The *ensemble* is the mean minus one standard deviation of the log-odds of
{MEMBERS} PRMs with different seeds. There is one run each, and single runs scatter by tens of points.
""")
    drawn = nested(styles(list(SHOWN.values())))
    with report.figure(
        "rewards", caption="True accuracy of policies trained with each reward.",
        alt="Share of problems solved against updates, a line per reward", panels=1,
    ) as panels:  # fmt: skip
        for name, title in SHOWN.items():
            points = found[name].trained.points
            panels[0].plot(
                [one.update for one in points], [one.mean(ANSWER) for one in points], markevery=4, **drawn[title]
            )
        panels[0].set_ylim(0, 1)
        finish(panels[0], "updates", title="True accuracy: problems solved (%)", names_at_ends=True)
    rows, metrics = [], {}
    for name, title in SHOWN.items():
        curve = [one.mean(ANSWER) for one in found[name].trained.points]
        peak = int(np.argmax(curve))
        fpr = study.fpr(found[name].folder / "policy", found[name].scorer)["fpr"]
        numbers = {"first": curve[0], "best": curve[peak], "worst after it": min(curve[peak:]), "last": curve[-1]}
        tokens = found[name].facts.get("tokens", 0)
        rows.append([title, *map(percent, numbers.values()), percent(fpr), f"{tokens:,}" if tokens else "–"])
        metrics[name] = {**numbers, "fpr": fpr, "tokens": tokens}
    headers = ["reward", "first", "best", "worst after it", "last", "FPR on its steps", "tokens of rounds"]
    report.table(headers, rows, caption="Answer right (%), and the PRM's FPR on the last policy's wrong steps (%)")
    report.metrics["rewards"] = metrics
