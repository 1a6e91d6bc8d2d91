"""`run_demo`, the pipeline of `prism demo`: world → base PRM → arms → scores → policies → report."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prism_prm.aggregate import card_values, choose_aggregator
from prism_prm.backends.load_prm import load_prm
from prism_prm.console import progress, say
from prism_prm.data.pools import read_pool
from prism_prm.data.tables import iter_trees
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import Item
from prism_prm.evaluate.measure import Steps
from prism_prm.evaluate.score_files import collect_steps
from prism_prm.job import Job, stoppable
from prism_prm.lab.demo.asymmetry import AsymmetryMap, MapSettings
from prism_prm.lab.demo.findings import (
    BASE,
    GUIDED_NS,
    NATURAL,
    Findings,
    Scored,
    SeedResult,
    beam_settings,
    find,
    guided_search,
)
from prism_prm.lab.demo.prms import train_base, train_by_recipe
from prism_prm.lab.demo.reinforcement import ORACLE, SKIPPED, PolicyRun, policy_trainings, train_policies
from prism_prm.lab.demo.report import make_report
from prism_prm.lab.demo.rewards import RewardStudy, add_rewards
from prism_prm.lab.demo.settings import ARMS, VALIDITY_BASE, DemoSettings, demo_settings
from prism_prm.lab.world.build import FORMAT, World, build_world
from prism_prm.lab.world.oracle import OracleScorer
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.search.grade_pool import scores_by_prm
from prism_prm.store import Request, ScoreStore


def run_demo(
    out: str | Path, *, seeds: int = 1, first_seed: int = 0, full: bool = False, quick: bool = False
) -> Findings:
    """Train a policy, a biased base PRM and PRISM in a world where every step's truth is known, and compare them.

    Args:
        out: the output folder; finished stages in it are reused.
        seeds: the number of worlds; several give intervals.
        first_seed: the seed of the first world.
        full: all ablations, tests out of distribution, all ways to assign credit in reinforcement learning, and the
            asymmetry map and the rewards under optimization of the first world.
        quick: a much smaller world that takes about a minute; its numbers mean nothing.

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
            results.append(run_seed(settings, seed, out))
        found, first = find(results), results[0]
        flags = [f"--seeds {seeds}"] * (seeds > 1) + [f"--set first_seed={first_seed}"] * (first_seed > 0)
        command = " ".join(["prism demo", *["--full"] * full, *["--quick"] * quick, *flags])
        report = make_report(found, command, quick=quick)
        if full:
            on_map = MapSettings(rates=(0.0, 0.3), updates=2) if quick else MapSettings()
            asymmetry = AsymmetryMap(first.world, out / f"seed-{first.seed}" / "map", on_map)
            asymmetry.measure()
            asymmetry.add_to(report)
            if settings.rl is not None:
                study = RewardStudy(
                    first.world, out / f"seed-{first.seed}", settings, rl_seed=first.seed, prm_seed=first.seed,
                    problems=40 if quick else 600,
                )  # fmt: skip
                add_rewards(report, study)
        report.write(out)
        # Links with short names to the most useful folders.
        links = {"data": first.world.data, "policy": first.world.policy}
        links |= {f"prms/{name}": folder for name, folder in first.prms.items()}
        for name, target in links.items():
            link = out / name
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(target, link.parent))
    return found


def run_seed(settings: DemoSettings, seed: int, out: Path) -> SeedResult:
    """Build one world, train and measure; finished stages are reused."""
    with Job(out / f"seed-{seed}") as job, stoppable(lambda: f"seed {seed}"):
        world = build_world(replace(settings.world, seed=seed), out / "world", far=settings.far)

        base = train_base(job.out, world, settings, seed)
        prms, scored = {BASE: base}, {BASE: score(job, BASE, base, world)}
        bases = {"qwen": base}

        rounds: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        for name in settings.names:
            family = ARMS[name].family
            if family not in bases:
                bases[family] = prms[VALIDITY_BASE] = train_base(
                    job.out, world, settings, seed, name=VALIDITY_BASE, family=family
                )
                scored[VALIDITY_BASE] = score(job, VALIDITY_BASE, bases[family], world, family)
            recipe = ARMS[name].recipe(world.trees(ARMS[name].trees), bases[family], settings.arms, seed)
            try:
                prms[name], rounds[name] = train_by_recipe(job.out, name, recipe)
            except DataError as error:
                failed[name] = str(error)
                say(f"{name}: not trained. {error}")
                continue
            scored[name] = score(job, name, prms[name], world, family)

        policies = {}
        if rl := settings.rl:
            rewards = [name for name in prms if name == BASE or (name in ARMS and not ARMS[name].full)] + [ORACLE]
            runs = [PolicyRun(reward, credit, beta) for beta in rl.betas for credit in rl.credits for reward in rewards]
            scorers: dict[str, Path | OracleScorer] = {**prms, ORACLE: OracleScorer(world.settings.modulus)}
            policies = train_policies(policy_trainings(world, scorers, runs, rl, job.out / "policies"))
        return SeedResult(seed, world, prms, scored, rounds, failed, policies, settings.rl)


def score(job: Job, name: str, prm: Path, world: World, family: str = "qwen") -> Scored:
    """Score the test trees and the pools, and search with the PRM."""
    scorer = load_prm(prm, family=family, device="cpu")
    aggregator = choose_aggregator(None, card_values(scorer))
    store = ScoreStore(job.out / "scores", scorer)
    found: list[Any] = []
    for far in (False, True) if world.far_data else (False,):
        found.append(score_test_trees(store, name, world, far=far))
        pool = read_pool(world.pool(far=far))
        with progress(f"{name}: scoring solutions", len(pool.trees())) as advance:
            found.append(scores_by_prm(store, pool, advance=advance))
        solved_by_n = {}
        for n in GUIDED_NS:
            beam = beam_settings(n, aggregator.value, world.settings)
            solved_by_n[n] = job.once(
                f"guided/{'far-' * far}{name}-beam-{n}",
                partial(guided_search, world, prm, beam, family=family, far=far, name=name),
                format=FORMAT, prm=store.identity, data=world.pool(far=far).parent.name, settings=beam,
            )  # fmt: skip
        found.append(solved_by_n)
    return Scored(aggregator, *found)


def score_test_trees(store: ScoreStore, name: str, world: World, *, far: bool = False) -> Steps:
    """Score all test trees, with one group per test set."""
    items = [
        Item(tree, group, tree.problem)
        for group in (NATURAL, *PERTURBATIONS)
        for tree in iter_trees(world.trees(group, far=far))
    ]
    with progress(f"{name}: scoring steps", len(items)) as advance:
        scores = store.score([Request.all_of(item.tree) for item in items], advance=advance)
    return collect_steps(items, [found.probability for found in scores], None)
