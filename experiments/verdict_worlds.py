"""A generative verdict in the embedded world: a tiny language model asked for Yes or No, next to a PRM with a head.

In each new world both families start from the same backbone: `qwen` (a new head) and `verdict` (log-odds of two of the
model's own tokens). Both get the demo's base training on labels, followed by BCE (`pointwise`) and PRISM (`prism`) on
the same pairs. The oracle judges P(right) of every test step. A stopped run resumes with the same command.

Run: python experiments/verdict_worlds.py --first-seed 40 --seeds 3 --out runs/verdict-worlds
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prism_prm import metrics
from prism_prm.backends.load_prm import init_prm, load_prm
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.files import write_text
from prism_prm.job import Job
from prism_prm.lab.demo.findings import BASE
from prism_prm.lab.demo.prms import train_by_recipe
from prism_prm.lab.demo.run_demo import score_test_trees
from prism_prm.lab.demo.settings import ARMS, DemoSettings, base_recipe, demo_settings
from prism_prm.lab.world.build import build_world
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.report import percent
from prism_prm.stats import over_seeds
from prism_prm.store import ScoreStore

FAMILIES: dict[str, dict[str, str]] = {
    "qwen": dict(PRM_SETTINGS),
    "verdict": {"instruction": "", "question": "", "yes": "1", "no": "0"},
}
"""Family → its settings; the world's tokenizer has numbers but no words, so numbers are the labels."""
ARMS_RUN = ("pointwise", "prism")
SHOWN = {"auroc": "AUROC ↑", "fpr_at_tpr_90": "FPR at TPR 90 ↓", "fpr": "FPR at 0.5 ↓", "fnr": "FNR at 0.5 ↓"}


def measure(family: str, settings: DemoSettings, seed: int, out: Path) -> dict[str, dict[str, float]]:
    """One world for one family: PRM → its metrics on the steps of all test sets, by the oracle's labels."""
    with Job(out / f"seed-{seed}" / family) as job:
        world = build_world(replace(settings.world, seed=seed), out / "world")
        fresh = job.out / f"fresh-{world.backbone.parent.name}"
        if not fresh.exists():
            init_prm(world.backbone, family=family, settings=FAMILIES[family], seed=seed, device="cpu").save(fresh)
        base, _ = train_by_recipe(job.out, BASE, base_recipe(world.trees(BASE), fresh, settings.base, seed))
        prms = {BASE: base}
        for name in ARMS_RUN:
            recipe = ARMS[name].recipe(world.trees(ARMS[name].trees), base, settings.arms, seed)
            prms[name], _ = train_by_recipe(job.out, name, recipe)
        found = {}
        for name, place in prms.items():
            store = ScoreStore(job.out / "scores", load_prm(place, device="cpu"))
            steps = score_test_trees(store, f"{family}, {name}", world)
            right, scores = steps.right[steps.judged], steps.probability[steps.judged]
            ranking = metrics.Ranking.of(right, scores).metrics()
            good = scores > 0.5
            found[name] = {
                "auroc": ranking["auroc"], "fpr_at_tpr_90": ranking["fpr_at_tpr_90"],
                "fpr": float(good[~right].mean()), "fnr": float((~good)[right].mean()),
            }  # fmt: skip
        return found


def cell(values: Sequence[float]) -> str:
    """The mean over worlds in %, with Student's 95 % interval, and every world's value."""
    found = over_seeds(values)
    return f"{percent(found)} ({', '.join(percent(value) for value in values)})"


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Markdown: one row per family and PRM, and PRISM minus BCE within each world."""
    lines = [f"| family · PRM | {' | '.join(SHOWN.values())} |", "|---" * (1 + len(SHOWN)) + "|"]
    for family in FAMILIES:
        found = [world[family] for world in results.values()]
        for name in (BASE, *ARMS_RUN):
            cells = [cell([prms[name][metric] for prms in found]) for metric in SHOWN]
            lines.append(f"| {family} · {name} | {' | '.join(cells)} |")
        less, more = ARMS_RUN
        gains = [cell([prms[more][metric] - prms[less][metric] for prms in found]) for metric in SHOWN]
        lines.append(f"| {family} · {more} − {less} | {' | '.join(gains)} |")
    worlds = ", ".join(results)
    return f"Worlds {worlds}, in %: mean [95 % interval over worlds] (each world)\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Run the worlds one after the other, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a much smaller world")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    settings = replace(demo_settings(quick=given.quick), rl=None)
    results: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    with quiet_transformers():
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            world = {}
            for family in FAMILIES:
                say(f"World {seed}, {family}")
                world[family] = measure(family, settings, seed, given.out)
            results[str(seed)] = world
            write_text(given.out / "results.json", json.dumps(results, indent=2) + "\n")
            write_text(given.out / "table.md", table(results))
    say(f"Table: {given.out / 'table.md'}")


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
