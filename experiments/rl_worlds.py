"""Reinforcement learning in new worlds: every PRM of the demo as reward, with and without a KL penalty.

It runs the demo's stages with β = 0 and 0.1 and credit `outcome`. The report has tables with intervals over worlds, and
the alarms of each. A stopped run resumes with the same command.

Run: python experiments/rl_worlds.py --first-seed 20 --seeds 5 --out runs/rl-worlds
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.lab.demo.findings import find
from prism_prm.lab.demo.report import make_report
from prism_prm.lab.demo.run_demo import run_seed
from prism_prm.lab.demo.settings import demo_settings
from prism_prm.models.load_lm import quiet_transformers


def main() -> None:
    """Run the worlds one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--betas", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--credits", nargs="+", default=["outcome"])
    parser.add_argument("--quick", action="store_true", help="a much smaller world")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    settings = demo_settings(quick=given.quick)
    assert settings.rl is not None, "every preset has it"
    rl = replace(settings.rl, betas=tuple(given.betas), credits=tuple(given.credits))
    settings = replace(settings, rl=rl)
    results = []
    with quiet_transformers():
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            say(f"World {seed}")
            results.append(run_seed(settings, seed, given.out))
            make_report(find(results), f"experiments/rl_worlds.py, {len(results)} worlds").write(given.out)
    say(f"Report: {given.out / 'report.html'}")


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
