"""Adversarial rounds against reward hacking: does a PRM that is retrained on its exploits survive optimization?

Every run trains a policy of the embedded world by GRPO with one kind of PRM as its reward, and writes one JSON file
into OUT/results. A stopped run resumes with the same command; `--part 1/2` and `--part 2/2` share the worlds between
two processes. The arms, worlds and rules are registered in experiments/LOG.md.

Run: python experiments/rl_rounds.py --out runs/rl-rounds
Tables of what is there: python experiments/rl_rounds.py --out runs/rl-rounds --report
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism_prm.aggregate import card_values, choose_threshold
from prism_prm.backends.hf import load_hf
from prism_prm.backends.load_prm import init_prm, load_prm
from prism_prm.backends.policy import Sampling
from prism_prm.cli.ui import Terminal
from prism_prm.config import from_mapping
from prism_prm.console import say, shown_on
from prism_prm.data.tables import write_trees
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.files import write_text
from prism_prm.job import Job, content_key
from prism_prm.lab.demo.reinforcement import ANSWER, STEPS, STREAM, OracleGold, Reinforcement
from prism_prm.lab.demo.settings import ARMS, DemoSettings, base_recipe, demo_settings
from prism_prm.lab.world.build import World, build_world, load_policy, unseen_problems
from prism_prm.lab.world.oracle import OracleScorer, OracleStep, judge_step
from prism_prm.lab.world.policy import PRM_SETTINGS, prompt_of
from prism_prm.lab.world.problems import Problem
from prism_prm.lab.world.trees import label_step, sample_trees
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.rl.alarm import MonitorSettings
from prism_prm.rl.exploits import Exploits, find_exploits
from prism_prm.rl.recipe import RoundSettings
from prism_prm.rl.reward import PRMReward
from prism_prm.rl.rounds import retrain
from prism_prm.rl.trainer import train_with_reward
from prism_prm.scorer import Scorer
from prism_prm.search.label_engine import by_answer
from prism_prm.stats import mean_interval
from prism_prm.train.recipe import Recipe
from prism_prm.train.train_prm import train_prm
from prism_prm.tree import StepTree

RL_SEEDS = (11, 12)
PRM_SEED = 5000
"""Added to the world's number: the seed of its PRMs. World, PRM and RL seeds are different numbers."""
OFF_POLICY_PARTS = 3
"""The off-policy control may use this many times the problems of a round to find as many pairs."""
MEASURED = 300
"""Problems for the FPR on the last policy's steps."""


@dataclass(frozen=True)
class Size:
    """The sizes of a run."""

    demo: DemoSettings
    rl: Reinforcement
    rounds: RoundSettings


def sizes(tiny: bool) -> Size:
    """The registered sizes, or tiny ones to check the script."""
    settings = demo_settings(quick=tiny)
    assert settings.rl is not None, "every preset has it"
    sampling = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=60)
    rounds = RoundSettings(problems=60 if tiny else 600, rollouts=8, rule="half", sampling=sampling)
    return Size(settings, settings.rl, rounds)


class Place:
    """One world with its PRMs, and the policies of one RL seed in it. Everything is made once and kept on disk."""

    def __init__(self, out: Path, number: int, seed: int, size: Size) -> None:
        self.out, self.number, self.seed, self.size = out, number, seed, size
        self.folder = out / f"world-{number}"
        self.prm_seed = PRM_SEED + number

    @cached_property
    def world(self) -> World:
        return build_world(replace(self.size.demo.world, seed=self.number), self.out / "world")

    @cached_property
    def base(self) -> Path:
        """The base PRM, trained on lenient labels."""
        fresh = self.folder / "fresh"
        if not fresh.exists():
            init_prm(
                self.world.backbone, family="qwen", settings=PRM_SETTINGS, seed=self.prm_seed, device="cpu"
            ).save(fresh)  # fmt: skip
        return train(
            base_recipe(self.world.trees("base"), fresh, self.size.demo.base, self.prm_seed), self.folder / "base"
        )

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of PRISM (ours), which every round trains by again."""
        trees = self.world.trees("annotated")
        return from_mapping(Recipe, ARMS["prism"].recipe(trees, self.base, self.size.demo.arms, self.prm_seed))

    @cached_property
    def prism(self) -> Path:
        return retrain(self.recipe, [], self.folder / "prism", accelerator=accelerator())

    def retrain(self, trees: Sequence[Path], name: str) -> Path:
        """PRISM (ours) with more trees."""
        out = self.folder / f"seed-{self.seed}" / name
        return retrain(self.recipe, trees, out, repeat=self.size.rounds.repeat, accelerator=accelerator())

    @cached_property
    def problems(self) -> dict[str, list[Problem]]:
        """Disjoint problems that no model has seen: for RL, for each round, and for the FPR at the end."""
        rl, count = self.size.rl, self.size.rounds.problems
        parts = {"train": rl.updates * rl.prompts, "held_out": rl.held_out, "measured": MEASURED}
        parts |= {f"round-{k}": count for k in range(1, OFF_POLICY_PARTS + 1)}
        drawn = iter(unseen_problems(self.world, sum(parts.values()), STREAM))
        return {name: [next(drawn) for _ in range(size)] for name, size in parts.items()}

    def policy(self, name: str, prm: Path | Scorer, beta: float, shape: bool = False, scale: str = "group") -> Path:
        """Train a policy; returns its folder."""
        out = self.folder / f"seed-{self.seed}" / f"{name}-{beta:g}"
        scorer = load_prm(prm, device="cpu", on_too_long="skip") if isinstance(prm, Path) else prm
        reward = PRMReward(scorer, "min", clip="card" if shape else None)
        trainer = self.size.rl.trainer(beta, self.seed) | {"scale_rewards": "none" if shape else scale}
        rows = {
            part: [{"prompt": prompt_of(one.text), "problem": one.text, "answer": one.answer} for one in problems]
            for part, problems in self.problems.items()
        }
        train_with_reward(
            self.world.policy, reward, train=rows["train"], held_out=rows["held_out"],
            gold=OracleGold(self.world.settings.modulus), out=out, trainer=trainer,
            monitor=MonitorSettings(every=self.size.rl.every, votes=0),
            identity=content_key(scorer.identity(), shape, scale),
        )  # fmt: skip
        reward.close()
        return out

    def exploits(self, name: str, part: str, policy: Path, prm: Path, settings: RoundSettings, exact: bool) -> Exploits:
        """Sample and label the steps of a policy."""
        problems = [TaskProblem(one.text, one.answer, f"{part}-{i}") for i, one in enumerate(self.problems[part])]
        with (
            Job(self.folder / f"seed-{self.seed}" / name) as job,
            TaskGrader(workers=1) as grader,
            contextlib.closing(load_hf(policy, device="cpu")) as trained,
            contextlib.closing(load_hf(self.world.policy, device="cpu")) as reference,
        ):
            return find_exploits(
                job, problems, policy=trained, reference=reference, prm=load_prm(prm, device="cpu"),
                judge=by_answer(grader), settings=settings, labeler=self.by_oracle if exact else None,
            )  # fmt: skip

    def truth(self, tree: StepTree, node: int) -> bool:
        """The oracle's verdict on a node."""
        *prefix, text = tree.texts(tree.path(node))
        return judge_step(Problem.parse(tree.problem, self.world.settings.modulus), prefix, text) == "right"

    def by_oracle(self, trees: list[StepTree]) -> tuple[list[StepTree], int]:
        """Exact labels, for nothing."""
        labeled = []
        for tree in trees:
            verdicts = ["right" if self.truth(tree, i) else "malformed" for i in range(len(tree.nodes))]
            steps = [label_step(step.text, verdict) for step, verdict in zip(tree.nodes, verdicts, strict=True)]  # type: ignore[arg-type]
            labeled.append(replace(tree, nodes=tuple(steps)))
        return labeled, 0

    def noise(self, trees: Sequence[StepTree]) -> dict[str, int]:
        """Labels against the oracle, for the candidates and the steps of the right solutions."""
        counts = dict.fromkeys(("right", "right_called_wrong", "wrong", "wrong_called_right"), 0)
        for tree in trees:
            for i, step in enumerate(tree.nodes):
                if step.label is not None:
                    right = self.truth(tree, i)
                    counts["right" if right else "wrong"] += 1
                    counts["right_called_wrong"] += right and step.label == 0
                    counts["wrong_called_right"] += not right and step.label == 1
        return counts

    def fpr(self, policy: Path, prm: Path | Scorer) -> dict[str, float]:
        """The PRM's FPR on the policy's wrong steps after right prefixes, at the threshold of its card."""
        scorer = load_prm(prm, device="cpu") if isinstance(prm, Path) else prm
        threshold = choose_threshold(None, card_values(scorer)).value
        trees = sample_trees(*load_policy(policy), self.problems["measured"], candidates=4, seed=self.seed)
        wrong, passed = 0, 0
        for tree, scores in zip(trees, scorer.score_trees(trees), strict=True):
            own = [p for step, p in zip(tree.nodes, scores.probability, strict=True) if step.label == 0]
            wrong += len(own)
            passed += sum(bool(p > threshold) for p in own)
        return {"wrong_steps": wrong, "fpr": passed / wrong if wrong else float("nan"), "threshold": threshold}


def accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def train(recipe: dict[str, Any], out: Path) -> Path:
    return Path(train_prm(from_mapping(Recipe, recipe), out, accelerator=accelerator())["best"])


def num_pairs(tree: StepTree) -> int:
    """Pairs of a right and a wrong step after the same prefix."""
    count = 0
    for _, nodes in tree.positions():
        labels = [tree.nodes[i].label for i in nodes]
        count += labels.count(1.0) * labels.count(0.0)
    return count


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


# Each arm returns the folder of its policy run, the PRM that rewarded it, and facts about its labels.
Made = tuple[Path, Path | Scorer, dict[str, Any]]


def static(at: Place, beta: float) -> Made:
    return at.policy("static", at.prism, beta), at.prism, {}


def base(at: Place, beta: float) -> Made:
    return at.policy("base", at.base, beta), at.base, {}


def shape(at: Place, beta: float) -> Made:
    return at.policy("shape", at.prism, beta, shape=True), at.prism, {}


def round_prm(at: Place, number: int, exact: bool) -> tuple[Path, dict[str, Any]]:
    """The PRM after some rounds, each of which samples from the policy of the round before it, at β = 0."""
    kind = "oracle" if exact else "rollouts"
    trees: list[Path] = []
    facts: dict[str, Any] = {"tokens": 0, "rounds": []}
    prm, policy = at.prism, at.policy("static", at.prism, 0.0)
    for k in range(1, number + 1):
        name = f"{kind}-{k}"
        path = at.folder / f"seed-{at.seed}" / f"{name}.parquet"
        settings = replace(at.size.rounds, seed=k)
        found = at.exploits(f"{name}-exploits", f"round-{k}", policy / "policy", prm, settings, exact)
        if found.trees:
            if not path.exists():
                write_trees(path, found.trees, source=name)
            trees.append(path)
        facts["tokens"] += sum(found.tokens.values())
        pairs = sum(map(num_pairs, found.trees))
        facts["rounds"].append(
            {"tokens": found.tokens, "counts": found.counts, "pairs": pairs, "noise": at.noise(found.trees)}
        )
        prm = at.retrain(trees, f"{name}-prm") if trees else at.prism  # the same PRM, if nothing was suspect
        if k < number:
            policy = at.policy(name, prm, 0.0)
    return prm, facts


def rounds(number: int, *, exact: bool = False, shaped: bool = False) -> Callable[[Place, float], Made]:
    def run(at: Place, beta: float) -> Made:
        prm, facts = round_prm(at, number, exact)
        name = f"{'oracle' if exact else 'rollouts'}-{number}{'-shape' if shaped else ''}"
        return at.policy(name, prm, beta, shape=shaped), prm, facts

    return run


def off_policy(at: Place, beta: float) -> Made:
    """As many pairs as in the first round, from steps of the untrained policy."""
    _, facts = round_prm(at, 1, False)
    wanted = facts["rounds"][0]["pairs"]
    if not wanted:  # nothing was suspect in the first round
        return at.policy("off-policy", at.prism, beta), at.prism, {"tokens": 0, "rounds": []}
    settings = replace(at.size.rounds, min_score=0.0, disagree="none")
    kept: list[StepTree] = []
    tokens, total = 0, 0
    for k in range(1, OFF_POLICY_PARTS + 1):
        found = at.exploits(f"off-policy-{k}", f"round-{k}", at.world.policy, at.prism, settings, False)
        tokens += sum(found.tokens.values())
        for tree in found.trees:
            if total < wanted:
                kept.append(replace(tree, tree_id=len(kept)))
                total += num_pairs(tree)
        if total >= wanted:
            break
    path = at.folder / f"seed-{at.seed}" / "off-policy.parquet"
    if not path.exists():
        write_trees(path, kept, source="off-policy")
    prm = at.retrain([path], "off-policy-prm")
    facts = {"tokens": tokens, "rounds": [{"pairs": total, "wanted": wanted, "noise": at.noise(kept)}]}
    return at.policy("off-policy", prm, beta), prm, facts


def noisy_oracle(scale: str) -> Callable[[Place, float], Made]:
    def run(at: Place, beta: float) -> Made:
        oracle = NoisyOracle(at.world.settings.modulus)
        return at.policy(f"noisy-oracle-{scale}", oracle, beta, scale=scale), oracle, {}

    return run


ARMS_IN_ORDER: dict[str, Callable[[Place, float], Made]] = {
    "static": static,
    "rollouts-1": rounds(1),
    "rollouts-2": rounds(2),
    "off-policy": off_policy,
    "oracle-1": rounds(1, exact=True),
    "oracle-2": rounds(2, exact=True),
    "shape": shape,
    "rollouts-2-shape": rounds(2, shaped=True),
    "rollouts-3": rounds(3),
    "base": base,
    "noisy-oracle-group": noisy_oracle("group"),
    "noisy-oracle-none": noisy_oracle("none"),
}
MINIMUM = 4
"""The first arms run world by world, the others arm by arm."""


def plan(worlds: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[str, int, int, float]]:
    """(arm, world, RL seed, β) in the registered order."""
    arms = list(ARMS_IN_ORDER)
    yield from ((arm, world, seed, 0.0) for world in worlds for seed in seeds for arm in arms[:MINIMUM])
    yield from ((arm, world, seed, 0.0) for arm in arms[MINIMUM:] for world in worlds for seed in seeds)
    with_penalty = ("base", "static", "rollouts-2")
    yield from ((arm, world, seed, 0.1) for arm in with_penalty for world in worlds for seed in seeds)


def result_file(out: Path, arm: str, world: int, seed: int, beta: float) -> Path:
    return out / "results" / f"{arm}-{beta:g}-world-{world}-seed-{seed}.json"


def run_one(out: Path, arm: str, world: int, seed: int, beta: float, size: Size) -> None:
    """Run an arm in one world with one RL seed, and write its result."""
    from prism_prm.rl.alarm import read_trained_policy

    started = time.monotonic()
    at = Place(out, world, seed, size)
    folder, prm, facts = ARMS_IN_ORDER[arm](at, beta)
    trained = read_trained_policy(folder)
    accuracy = [point.mean(ANSWER) for point in trained.points]
    peak = int(np.argmax(accuracy))
    result = {
        "arm": arm, "world": world, "seed": seed, "beta": beta, "prm_seed": at.prm_seed,
        "first": accuracy[0], "peak": accuracy[peak], "worst_after_peak": min(accuracy[peak:]), "final": accuracy[-1],
        "curve": [
            {"update": point.update, ANSWER: point.mean(ANSWER), STEPS: point.mean(STEPS), "proxy": point.mean("proxy"),
             "kl": point.numbers.get("kl")} for point in trained.points
        ],
        "alarm": alarm.update if (alarm := trained.alarms[trained.gold]) else None,
        **at.fpr(folder / "policy", prm), **facts, "minutes": (time.monotonic() - started) / 60,
    }  # fmt: skip
    write_text(result_file(out, arm, world, seed, beta), json.dumps(result, indent=1) + "\n")
    say(
        f"{arm}, β = {beta:g}, world {world}, seed {seed}: {100 * accuracy[0]:.0f} → {100 * accuracy[peak]:.0f} → "
        f"{100 * accuracy[-1]:.0f} %, FPR {100 * result['fpr']:.0f} %, {result['minutes']:.1f} minutes"
    )


def report(out: Path) -> None:
    """Print tables of all results that are there."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "results").glob("*.json"))]
    for beta in sorted({one["beta"] for one in results}):
        print(f"\nβ = {beta:g}; final accuracy of each run (worst after its peak), RL seeds side by side")
        worlds = sorted({one["world"] for one in results if one["beta"] == beta})
        print("| arm | " + " | ".join(map(str, worlds)) + " | mean final | worst | largest fall | tokens | FPR |")
        print("|---" * (len(worlds) + 6) + "|")
        for arm in ARMS_IN_ORDER:
            own = [one for one in results if one["arm"] == arm and one["beta"] == beta]
            if not own:
                continue
            cells = []
            for world in worlds:
                some = sorted((one for one in own if one["world"] == world), key=lambda one: int(one["seed"]))
                cells.append(", ".join(f"{100 * o['final']:.0f} ({100 * o['worst_after_peak']:.0f})" for o in some))
            finals = [100 * one["final"] for one in own]
            fall = max(100 * (one["peak"] - one["worst_after_peak"]) for one in own)
            tokens = [one["tokens"] for one in own if "tokens" in one]
            cells += [f"{np.mean(finals):.1f}", f"{min(finals):.0f}", f"{fall:.0f}"]
            cells += [
                f"{np.mean(tokens) / 1e6:.2f}M" if tokens else "",
                f"{100 * np.nanmean([o['fpr'] for o in own]):.0f}",
            ]
            print(f"| {arm} | " + " | ".join(cells) + " |")
        print("\nPaired by world (mean of its RL seeds), final accuracy in points, 95 % over worlds:")
        by = {arm: {} for arm in ARMS_IN_ORDER}  # type: dict[str, dict[int, list[float]]]
        for one in results:
            if one["beta"] == beta:
                by[one["arm"]].setdefault(one["world"], []).append(100 * one["final"])
        for first, second in (
            ("rollouts-1", "static"), ("rollouts-2", "static"), ("rollouts-1", "off-policy"),
            ("rollouts-2", "off-policy"), ("rollouts-2", "rollouts-1"), ("oracle-1", "rollouts-1"),
            ("oracle-2", "rollouts-2"), ("shape", "static"), ("rollouts-2-shape", "rollouts-2"), ("static", "base"),
        ):  # fmt: skip
            common = sorted(set(by[first]) & set(by[second]))
            differences = [float(np.mean(by[first][w]) - np.mean(by[second][w])) for w in common]
            if len(differences) > 1:
                found = mean_interval(differences)
                interval = f"{found.value:+.1f} [{found.low:.1f}, {found.high:.1f}]"
                print(f"- {first} − {second}: {interval}, {len(common)} worlds")


def main() -> None:
    """Run the experiment, or a part of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=list(range(121, 129)))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(RL_SEEDS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS_IN_ORDER), help="only these")
    parser.add_argument("--part", default="1/1", help="this part of the worlds, as i/n")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to check the script")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.report:
        report(given.out)
        return
    torch.set_num_threads(1)
    part, parts = map(int, given.part.split("/"))
    size = sizes(given.tiny)
    with quiet_transformers():
        for arm, world, seed, beta in plan(given.worlds[part - 1 :: parts], given.seeds):
            if given.arms and arm not in given.arms:
                continue
            if not result_file(given.out, arm, world, seed, beta).exists():
                run_one(given.out, arm, world, seed, beta, size)


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
