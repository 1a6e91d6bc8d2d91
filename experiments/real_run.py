"""The real run of docs/lab/results.md: SmolLM2-135M on PRM800K phase 1, from the labels to the tables.

A base PRM is trained on labels. From it, each arm is trained on pairs with the same budget; learning rates are chosen
on validation problems. Then every PRM is evaluated on held-out problems, PRMBench, ProcessBench and a pool of
solutions. Subsets are fixed by the seeds below. Every stage is a `prism` command that is printed before it runs. A
stopped run resumes with the same command.

Run: python experiments/real_run.py --data DATA --backbone HuggingFaceTB/SmolLM2-135M-Instruct --out runs/real
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from prism_prm.files import JsonLines
from real_report import make_report

RECIPES = Path(__file__).parent.parent / "recipes"
ARMS = {
    "lookahead-pointwise": "lookahead-pointwise",
    "log-odds": "log-odds",
    "pairs": "log-odds",
    "lookahead": "log-odds",
    "prism": "log-odds",
    "fresh-lookahead-pointwise": "lookahead-pointwise",
    "fresh-log-odds": "log-odds",
}
"""Arm → the arm whose learning rate it uses. `fresh-` trains on problems that the base PRM has not seen."""
FRESH = "data.split={base=0.11,test=0.06,validation=0.04,train=0.11,unused=0.68}"
"""The recipes' splits, with as many other problems to train on as the base PRM had."""
MAIN = ("lookahead-pointwise", "log-odds")
"""The arms of the main comparison: their learning rates are tuned, and they are trained with every seed."""
LEARNING_RATES = (3e-5, 1e-4)
"""Tried with seed 0; the best AUROC on validation problems is chosen."""
SEEDS = (0, 1, 2)
CACHE = "cache"
LIMITS = {"prmbench": 12, "processbench": 80}
"""Items of each class or split, chosen by `prism eval --limit` with seed 0."""
POOL_PROBLEMS, POOL_SOLUTIONS = 30, 8
"""Of 100 problems with 40 solutions each, drawn with seed 0."""


class Work:
    """The folders of the run, and its commands."""

    def __init__(self, data: Path, backbone: str, out: Path) -> None:
        self.data, self.backbone, self.out = data, backbone, out

    def prism(self, *words: object) -> None:
        """Run a `prism` command and record its time."""
        line = [str(word) for word in words]
        print("prism", *line, flush=True)
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "prism_prm", *line], check=True, env=os.environ)
        with contextlib.closing(JsonLines(self.out / "seconds.jsonl")) as log:
            log.append({"command": line, "seconds": time.monotonic() - started})

    def train(self, recipe: str, name: str, *settings: str) -> Path:
        """Train a recipe; returns the folder of its best round."""
        folder = self.out / name
        if not (folder / "run.json").exists():
            common = [
                f'data.inputs=["{self.data}/prm800k/phase1_train.jsonl"]',
                f'data.exclude=["{self.data}/math500/test.jsonl"]',
                f"hardware.cache={self.out / CACHE}",
            ]
            words = [word for setting in (*common, *settings) for word in ("--set", setting)]
            self.prism("train", RECIPES / f"{recipe}.toml", "--out", folder, *words)
        best: str = json.loads((folder / "run.json").read_text())["best"]
        return folder / best

    def pool(self) -> Path:
        """The part of the pool that is re-ranked."""
        path = self.out / "pool.jsonl"
        if not path.exists():
            source = self.data / "best_of_n" / "math500_pool_100.jsonl"
            rng = random.Random(0)
            records = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
            chosen = sorted(rng.sample(range(len(records)), POOL_PROBLEMS))
            for i in chosen:
                records[i]["samples"] = rng.sample(records[i]["samples"], POOL_SOLUTIONS)
            path.write_text("".join(json.dumps(records[i]) + "\n" for i in chosen), encoding="utf-8")
        return path


def arms(work: Work, base: Path, seeds: tuple[int, ...]) -> Iterator[tuple[str, Path]]:
    """Every arm that is measured, and the folder of its best round."""
    tuned = {arm: best_rate(work, arm, base) for arm in MAIN}
    for seed in seeds:
        for arm in ARMS if seed == 0 else MAIN:
            yield (arm if seed == 0 else f"{arm}-seed{seed}"), train_arm(work, arm, base, seed, tuned[ARMS[arm]])


def best_rate(work: Work, arm: str, base: Path) -> float:
    """The learning rate with the best AUROC on validation problems."""

    def auroc(rate: float) -> float:
        best = train_arm(work, arm, base, 0, rate)
        run = json.loads((best.parent.parent / "run.json").read_text())
        return float(run["rounds"][best.name]["auroc"])

    return max(LEARNING_RATES, key=auroc)


def train_arm(work: Work, arm: str, base: Path, seed: int, rate: float) -> Path:
    kind = arm.removeprefix("fresh-")
    recipe = "smollm2-135m" if kind == "prism" else f"smollm2-135m-{kind}"
    name = f"{arm}-{rate:g}" + (f"-seed{seed}" if seed else "")
    settings = [f"base.prm={base}", f"seed={seed}", f"train.lr={rate:g}", *([FRESH] if arm != kind else [])]
    return work.train(recipe, name, *settings)


def run_all(work: Work, seeds: tuple[int, ...]) -> None:
    """Run all stages in order."""
    base = work.train("smollm2-135m-base", "base", f"base.backbone={work.backbone}")
    prms = {"base": base, **dict(arms(work, base, seeds))}
    first_seed = {name: prm for name, prm in prms.items() if name in ("base", *ARMS)}
    for what in ("held-out", *LIMITS):
        measured = prms if what == "held-out" else first_seed
        for name, prm in measured.items():
            measure(work, what, name, prm)
        for reference in ("base", MAIN[0]):
            names = [reference, *(name for name in measured if name != reference)]
            runs = [f"{name}={work.out / 'eval' / what / name}" for name in names]
            work.prism("compare", *runs, "--out", work.out / "compare" / f"{what}-from-{reference}")
    rerank(work, first_seed)
    report = make_report(work.out, list(prms), list(first_seed), prms["prism"].parent.parent)
    print(report.write(work.out / "report"))


def measure(work: Work, what: str, name: str, prm: Path) -> None:
    """One PRM on held-out problems or on a benchmark."""
    if what == "held-out":
        data = work.out / f"{MAIN[0]}-{LEARNING_RATES[0]:g}" / "data"  # the same for all arms
        words = ["--bench", "labeled,pairs", "--data", data, "--split", "test"]
    else:
        words = ["--bench", what, "--data", work.data, "--limit", LIMITS[what]]
    out = work.out / "eval" / what / name
    if not (out / "metrics.json").exists():
        work.prism("eval", *words, "--prm", prm, "--threshold", 0.5, "--set", f"load.cache={work.out / CACHE}",
                   "--set", "load.on_too_long=window", "--out", out)  # fmt: skip


def rerank(work: Work, prms: dict[str, Path]) -> None:
    """Best-of-N and votes on the pool."""
    words = [word for name, place in prms.items() for word in ("--prm", f"{name}={place}")]
    work.prism("rerank", work.pool(), *words, "--set", f"load.cache={work.out / CACHE}",
               "--set", "load.on_too_long=skip", "-n", "1,2,4,8", "--out", work.out / "rerank")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backbone", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="hub id, folder, or GGUF folder"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("PRISM_DATA"),
        required="PRISM_DATA" not in os.environ,
        help="folder with prm800k/, math500/, prmbench/, processbench/ and best_of_n/; default: $PRISM_DATA",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="seeds of the main comparison")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run_all(Work(arguments.data, arguments.backbone, arguments.out), SEEDS[: arguments.seeds])


if __name__ == "__main__":
    main()
