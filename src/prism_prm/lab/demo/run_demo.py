"""`run_demo`: the whole pipeline in a small world, from nothing to a report, as `prism demo` runs it."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from prism_prm.console import say
from prism_prm.job import Job
from prism_prm.lab.demo.asymmetry import AsymmetryMap, MapSettings
from prism_prm.lab.demo.findings import Findings, find
from prism_prm.lab.demo.policies import SKIPPED
from prism_prm.lab.demo.presets import demo_settings
from prism_prm.lab.demo.report import make_report
from prism_prm.lab.demo.stages import SeedResult, SeedRun
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.report import Report


def run_demo(
    out: str | Path,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    full: bool = False,
    quick: bool = False,
) -> Findings:
    """Train a policy, a biased base PRM and PRISM in a world where every step's truth is known, and compare them.

    Args:
        out: the output folder; finished parts in it are reused.
        seeds: the number of worlds; several give intervals.
        first_seed: the seed of the first world.
        full: all ablations, tests out of distribution, every way to give credit in reinforcement learning, and the
            asymmetry map of the first world.
        quick: a much smaller world, in about a minute; its numbers mean nothing.

    Example:
        >>> found = run_demo("demo", quick=True)  # doctest: +SKIP
    """
    settings = demo_settings(quick=quick, full=full)
    if find_spec("trl") is None:
        say(SKIPPED)
        settings = replace(settings, rl=None)
    out = Path(out)
    with Job(out), quiet_transformers():
        results = []
        for seed in range(first_seed, first_seed + seeds):
            say(f"Seed {seed}")
            results.append(SeedRun(settings, seed, out).go())
        found = find(results)
        flags = [f"--seeds {seeds}"] * (seeds > 1) + [f"--first-seed {first_seed}"] * (first_seed > 0)
        command = " ".join(["prism demo", *["--full"] * full, *["--quick"] * quick, *flags])
        report = make_report(found, command, quick=quick)
        if full:
            _add_map(report, results[0], out, quick=quick)
        report.write(out)
        _link(out, results[0])
    return found


def _add_map(report: Report, result: SeedResult, out: Path, *, quick: bool) -> None:
    """The asymmetry map of the first world."""
    settings = MapSettings(rates=(0.0, 0.3), updates=2) if quick else MapSettings()
    asymmetry = AsymmetryMap(result.world, out / f"seed-{result.seed}" / "map", settings)
    asymmetry.measure()
    asymmetry.add_to(report)


def _link(out: Path, result: SeedResult) -> None:
    """Short names for what people use afterwards: `data`, `policy` and `prms/base` in the demo's folder."""
    targets = {"data": result.world.pool().parent, "policy": result.world.policy}
    targets |= {f"prms/{name}": folder for name, folder in result.prms.items()}
    for name, target in targets.items():
        link = out / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))
