"""Rewards under optimization: which form of a PRM survives RL without a KL penalty?

Every run trains a policy of the embedded world by GRPO with one kind of reward (`prism_prm.lab.demo.rewards`), and
writes one JSON file into OUT/results. A stopped run resumes with the same command; `--part 1/2` and `--part 2/2` share
the worlds between two processes. The arms, worlds and rules are registered in experiments/LOG.md.

Run: python experiments/rl_rounds.py --out runs/rl-rounds
Tables of what is there: python experiments/rl_rounds.py --out runs/rl-rounds --report
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.files import write_text
from prism_prm.lab.demo.reinforcement import ANSWER, STEPS
from prism_prm.lab.demo.rewards import REWARDS, RewardStudy
from prism_prm.lab.demo.settings import demo_settings
from prism_prm.lab.world.build import build_world
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.stats import over_seeds

RL_SEEDS = (11, 12)
PRM_SEED = 5000
"""Added to the world's number: the seed of its PRMs. World, PRM and RL seeds are different numbers."""
MINIMUM = 4
"""The first arms run world by world, the others arm by arm."""


def plan(worlds: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[str, int, int, float]]:
    """(arm, world, RL seed, β) in the registered order."""
    arms = list(REWARDS)
    yield from ((arm, world, seed, 0.0) for world in worlds for seed in seeds for arm in arms[:MINIMUM])
    yield from ((arm, world, seed, 0.0) for arm in arms[MINIMUM:] for world in worlds for seed in seeds)
    with_penalty = ("base", "static", "rollouts-2")
    yield from ((arm, world, seed, 0.1) for arm in with_penalty for world in worlds for seed in seeds)


def result_file(out: Path, arm: str, world: int, seed: int, beta: float) -> Path:
    return out / "results" / f"{arm}-{beta:g}-world-{world}-seed-{seed}.json"


def run_one(out: Path, arm: str, world: int, seed: int, beta: float, tiny: bool) -> None:
    """Run an arm in one world with one RL seed, and write its result."""
    started = time.monotonic()
    settings = demo_settings(quick=tiny)
    study = RewardStudy(
        build_world(replace(settings.world, seed=world), out / "world"), out / f"world-{world}", settings,
        rl_seed=seed, prm_seed=PRM_SEED + world, problems=60 if tiny else 600,
    )  # fmt: skip
    found = REWARDS[arm](study, beta)
    trained = found.trained
    accuracy = [point.mean(ANSWER) for point in trained.points]
    peak = int(np.argmax(accuracy))
    result = {
        "arm": arm, "world": world, "seed": seed, "beta": beta, "prm_seed": study.prm_seed,
        "first": accuracy[0], "peak": accuracy[peak], "worst_after_peak": min(accuracy[peak:]), "final": accuracy[-1],
        "curve": [
            {"update": point.update, ANSWER: point.mean(ANSWER), STEPS: point.mean(STEPS), "proxy": point.mean("proxy"),
             "kl": point.numbers.get("kl")} for point in trained.points
        ],
        "alarm": alarm.update if (alarm := trained.alarms[trained.gold]) else None,
        **study.fpr(found.folder / "policy", found.scorer), **found.facts, "minutes": (time.monotonic() - started) / 60,
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
        for arm in REWARDS:
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
        print("\nPairs of the rounds (median, range), and labels against the oracle:")
        for arm in REWARDS:
            rounds = [one for r in results if r["arm"] == arm and r["beta"] == beta for one in r.get("rounds", ())]
            if rounds:
                pairs = [one["pairs"] for one in rounds]
                totals = {name: sum(one["noise"][name] for one in rounds) for name in rounds[0]["noise"]}
                print(
                    f"- {arm}: {np.median(pairs):g} ({min(pairs)} to {max(pairs)}); {totals['wrong_called_right']} of "
                    f"{totals['wrong']:,} wrong steps called right, {totals['right_called_wrong']} of "
                    f"{totals['right']:,} right ones wrong"
                )
        print("\nRuns of the same world and RL seed, averaged by world: final accuracy in points, 95 % over worlds:")
        by = {arm: {} for arm in REWARDS}  # type: dict[str, dict[tuple[int, int], float]]
        for one in results:
            if one["beta"] == beta:
                by[one["arm"]][one["world"], one["seed"]] = 100 * one["final"]
        for first, second in (
            ("rollouts-1", "static"), ("rollouts-2", "static"), ("rollouts-1", "off-policy"),
            ("rollouts-2", "off-policy"), ("rollouts-2", "rollouts-1"), ("oracle-1", "rollouts-1"),
            ("oracle-2", "rollouts-2"), ("oracle-1", "static"), ("oracle-2", "static"), ("shape", "static"),
            ("rollouts-2-shape", "rollouts-2"), ("static", "base"), ("ensemble", "static"),
            ("ensemble", "rollouts-2"), ("ensemble", "off-policy"),
        ):  # fmt: skip
            common = sorted(by[first].keys() & by[second].keys())
            by_world: dict[int, list[float]] = {}
            for run in common:
                by_world.setdefault(run[0], []).append(by[first][run] - by[second][run])
            differences = [float(np.mean(own)) for own in by_world.values()]
            if len(differences) > 1:
                found = over_seeds(differences)
                interval = f"{found.value:+.1f} [{found.low:.1f}, {found.high:.1f}]"
                print(f"- {first} − {second}: {interval}, {len(differences)} worlds")


def main() -> None:
    """Run the experiment, or a part of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=list(range(121, 129)))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(RL_SEEDS))
    parser.add_argument("--arms", nargs="+", choices=list(REWARDS), help="only these")
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
    with quiet_transformers():
        for arm, world, seed, beta in plan(given.worlds[part - 1 :: parts], given.seeds):
            if given.arms and arm not in given.arms:
                continue
            if not result_file(given.out, arm, world, seed, beta).exists():
                run_one(given.out, arm, world, seed, beta, given.tiny)


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
