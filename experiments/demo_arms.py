"""Every arm of the demo with equal updates and equal tuning: three rates on worlds 100 to 102, then worlds 110 to 114.

python experiments/demo_arms.py tune --out FOLDER [--part 0/2]     # resumable; parts may run side by side
python experiments/demo_arms.py fresh --out FOLDER [--part 0/2]
python experiments/demo_arms.py report --out FOLDER                # tables, and the figure of docs/lab/demo.md
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.backends.load_prm import load_prm
from prism_prm.data.pools import read_pool
from prism_prm.data.tasks import TaskGrader
from prism_prm.errors import DataError
from prism_prm.files import write_text
from prism_prm.job import Job
from prism_prm.lab.demo.findings import BASE, measure_steps, title_of
from prism_prm.lab.demo.prms import train_base, train_by_recipe
from prism_prm.lab.demo.run_demo import score_test_trees
from prism_prm.lab.demo.settings import ARMS, VALIDITY_BASE, demo_settings
from prism_prm.lab.world.build import World, build_world
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.report import Report
from prism_prm.report.figures import draw_dots, finish
from prism_prm.search.curves import best_of
from prism_prm.search.grade_pool import grade_pool, scores_by_prm
from prism_prm.stats import over_seeds
from prism_prm.store import ScoreStore

UPDATES = 120
RATES = (1e-3, 2e-3, 4e-3)
TUNE, FRESH = (100, 101, 102), (110, 111, 112, 113, 114)
CONTRASTS = (
    ("exact-labels", "pointwise"), ("prism", "pointwise"), ("filter-only", "lookahead"), ("order-only", "lookahead"),
    ("curriculum", "lookahead"), ("log-odds", "prism"), ("bins-from-0.7", "paper"), ("bins-three", "paper"),
    ("reasoneval", VALIDITY_BASE),
)  # fmt: skip


def measure(world: World, prm: Path, family: str, store: Path, *, pool: bool) -> dict[str, float]:
    """FPR at TPR 90 on natural and injected errors, FNR at 0.5, and Best-of-16 by the lowest step."""
    scores = ScoreStore(store, load_prm(prm, family=family, device="cpu"))
    numbers = measure_steps(score_test_trees(scores, "", world))
    found = {"natural": numbers.natural, "injected": numbers.perturbed, "fnr": numbers.fnr, "auroc": numbers.auroc}
    if pool:
        solutions = read_pool(world.pool())
        with TaskGrader(methods=("####", "last number")) as grader:
            graded = grade_pool(solutions, grader)
        rest = iter(scores_by_prm(scores, solutions))
        values = []
        for i, entry in enumerate(graded.pool.problems):
            some = [next(rest) for _ in entry.solutions]
            of_solutions = np.array([-1e9 if one is None else log_score(one, "min") for one in some])
            values.append(best_of(graded.correct(i).astype(float), of_solutions, [16])[0])
        found["best-of-16"] = float(np.mean(values))
    return found


def run(out: Path, seeds: tuple[int, ...], rates: dict[str, tuple[float, ...]], part: int, parts: int) -> None:
    """Train and measure what is missing; results are files named by world, arm and rate."""
    settings = demo_settings()
    budget = replace(settings.arms, updates=UPDATES)
    for number, seed in enumerate(seeds):
        if number % parts != part:
            continue
        with Job(out / f"seed-{seed}") as job:
            world = build_world(replace(settings.world, seed=seed), out / "world")
            bases = {"qwen": train_base(job.out, world, settings, world.settings.seed)}
            family = ARMS["reasoneval"].family
            bases[family] = train_base(job.out, world, settings, world.settings.seed, name=VALIDITY_BASE, family=family)
            for name, key in ((BASE, "qwen"), (VALIDITY_BASE, family)):
                path = out / "results" / f"{seed} {name} 0.json"
                if not path.exists():
                    found = measure(world, bases[key], key, job.out / "scores", pool=seed in FRESH)
                    write_text(path, json.dumps(found))
            for name, arm in ARMS.items():
                for lr in rates[name]:
                    path = out / "results" / f"{seed} {name} {lr:g}.json"
                    if path.exists():
                        continue
                    recipe = replace(arm, lr=lr).recipe(world.trees(arm.trees), bases[arm.family], budget, seed)
                    try:
                        prm, _ = train_by_recipe(job.out, f"{name}-{lr:g}", recipe)
                        found = measure(world, prm, arm.family, job.out / "scores", pool=seed in FRESH)
                    except DataError as error:
                        found = {"failed": str(error)}  # type: ignore[dict-item]
                    write_text(path, json.dumps(found))
                    print(seed, name, lr, found, flush=True)


def read(out: Path, seed: int, name: str, lr: float) -> dict[str, Any]:
    path = out / "results" / f"{seed} {name} {lr:g}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def chosen_rates(out: Path) -> dict[str, float]:
    """For each arm the rate with the lowest mean FPR at TPR 90 over development worlds; a failed run counts as 1."""

    def mean(name: str, lr: float) -> float:
        return float(np.mean([read(out, seed, name, lr).get("natural", 1.0) for seed in TUNE]))

    return {name: min(RATES, key=lambda lr: mean(name, lr)) for name in ARMS}


def report(out: Path, figure: Path | None) -> None:
    """Print the tables in Markdown, and draw a dot per world."""
    rates = chosen_rates(out)
    print("| arm | " + " | ".join(f"{lr:g}" for lr in RATES) + " |\n|---|" + "---|" * len(RATES))
    for name in ARMS:
        cells = [np.mean([read(out, seed, name, lr).get("natural", np.nan) for seed in TUNE]) for lr in RATES]
        shown = [f"{100 * cell:.1f}{'*' * (lr == rates[name])}" for cell, lr in zip(cells, RATES, strict=True)]
        print(f"| {title_of(name)} | " + " | ".join(shown) + " |")
    at = {BASE: 0.0, VALIDITY_BASE: 0.0, **rates}
    rows = {name: [read(out, seed, name, lr) for seed in FRESH] for name, lr in at.items()}
    done = [i for i, _ in enumerate(FRESH) if all(rows[name][i] for name in rows)]
    print(f"\nworlds {[FRESH[i] for i in done]}\n")
    values = {
        (name, key): [100 * rows[name][i].get(key, np.nan) for i in done]
        for name in rows for key in ("natural", "injected", "fnr", "best-of-16")
    }  # fmt: skip
    print("| arm | FPR at TPR 90 by world | mean | injected | FNR at 0.5 | Best-of-16 |\n|---|---|---|---|---|---|")
    for name in rows:
        dots = ", ".join(f"{v:.1f}" for v in values[name, "natural"])
        means = " | ".join(f"{np.mean(values[name, key]):.1f}" for key in ("natural", "injected", "fnr", "best-of-16"))
        print(f"| {title_of(name)} | {dots} | {means} |")
    print("\n| difference | FPR at TPR 90 by world | mean ± | Best-of-16 by world | mean ± |\n|---|---|---|---|---|")
    for a, b in CONTRASTS:
        cells = []
        for key in ("natural", "best-of-16"):
            each = [x - y for x, y in zip(values[a, key], values[b, key], strict=True)]
            interval = over_seeds(each)
            half = (interval.high - interval.low) / 2
            cells += [", ".join(f"{v:+.1f}" for v in each), f"{interval.value:+.1f} ± {half:.1f}"]
        print(f"| {title_of(a)} − {title_of(b)} | " + " | ".join(cells) + " |")
    if figure:
        draw(values, list(rows), figure)


def draw(values: dict[tuple[str, str], list[float]], names: list[str], path: Path) -> None:
    """A row per arm, a dot per world."""
    made = Report("arms")
    alt = "FPR at TPR 90 and Best-of-16 of every arm, a dot per world"
    with made.figure("demo-arms", caption="", alt=alt, size=(4.4, 5.2), panels=2) as panels:
        labels = {"natural": "FPR at TPR 90 (%)", "best-of-16": "Best-of-16 (%)"}
        for axes, (key, label) in zip(panels, labels.items(), strict=True):
            draw_dots(axes, {title_of(name): values[name, key] for name in names})
            finish(axes, label, percent="")
    made.write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "fresh", "report"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--figure", type=Path, help="a folder for the figure")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    with quiet_transformers():
        if options.what == "tune":
            run(options.out, TUNE, dict.fromkeys(ARMS, RATES), part, parts)
        elif options.what == "fresh":
            run(options.out, FRESH, {name: (lr,) for name, lr in chosen_rates(options.out).items()}, part, parts)
        else:
            report(options.out, options.figure)


if __name__ == "__main__":
    main()
