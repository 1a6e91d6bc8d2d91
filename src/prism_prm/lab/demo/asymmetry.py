"""The asymmetry map: what a reward's false positives and false negatives do to Best-of-N, beam search and GRPO.

The reward is the oracle, corrupted to a false positive rate α and a false negative rate β per step. The paper's thesis
is that false positives cap what can be reached while false negatives only slow it down.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.arrays import Floats
from prism_prm.config import Count, Natural, Share, check, from_mapping
from prism_prm.data.pools import read_pool
from prism_prm.errors import ConfigError
from prism_prm.job import content_key, once, stoppable
from prism_prm.lab.demo.guided import guided_search, settings_for
from prism_prm.lab.demo.policies import SKIPPED
from prism_prm.lab.demo.reinforcement import ANSWER, Job, Reinforcement, Run, jobs_of, side_by_side, train_policies
from prism_prm.lab.world.build import World
from prism_prm.lab.world.oracle import solved
from prism_prm.lab.world.problems import Problem
from prism_prm.lab.world.scorer import KINDS, CorruptedOracle, Kind, OracleScorer
from prism_prm.lab.world.settings import FORMAT, WorldSettings
from prism_prm.report import NO_DATA, Report, percent
from prism_prm.search.curves import best_of

HOW = "min"
"""Step scores become a solution's score by it, everywhere on the map."""
BEST_OF_N, BEAM, GRPO = "best-of-n", "beam search", "GRPO"


@dataclass(frozen=True, slots=True)
class MapSettings:
    """What is on the map."""

    rates: tuple[Share, ...] = (0.0, 0.1, 0.2, 0.3, 0.5)
    """The error rates per step: every α with every β."""
    policy_rates: tuple[Share, ...] | None = None
    """Those for which policies are trained, which takes longest; None: all."""
    updates: Natural = 40
    """Updates of each policy; 0: none is trained."""
    n: Count = 16
    """Solutions of Best-of-N, and candidates per round of the beam search."""
    seed: Natural = 0
    """Decides where the reward errs."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Cell:
    """A place on the map."""

    kind: Kind
    alpha: float
    beta: float

    @property
    def name(self) -> str:
        """The name of its file, and of its reward among others."""
        return f"{self.kind}-{self.alpha:g}-{self.beta:g}"


@dataclass(frozen=True, slots=True)
class Selecting:
    """All that the process which measures a cell needs to know."""

    scorer: CorruptedOracle
    world: World
    n: int
    file: Path

    @property
    def key(self) -> str:
        """Names what the numbers come from."""
        return content_key(FORMAT, self.world.data.name, self.scorer.identity(), self.n)


class AsymmetryMap:
    """The map of one world in a folder; cells that are there are not measured again."""

    def __init__(self, world: World, folder: Path, settings: MapSettings) -> None:
        self.world = world
        self.folder = folder
        self.settings = settings

    def measure(self) -> None:
        """Measure all cells: the quick methods first."""
        with stoppable(lambda: "the map"):
            todo = [job for job in self._selecting.values() if _made(job) is None]
            side_by_side("map: Best-of-N, beam search", measure_selection, todo)
            if self._training:
                train_policies(list(self._training.values()))

    def cells(self) -> dict[Cell, dict[str, float]]:
        """What was measured so far."""
        found = {cell: dict(_made(job) or {}) for cell, job in self._selecting.items()}
        for cell, job in self._training.items():
            found.setdefault(cell, {}).update(_trained(job))
        return found

    def add_to(self, report: Report) -> None:
        """Heat maps and metrics of what was measured so far."""
        cells = self.cells()
        n = min(self.settings.n, self.world.settings.pool_size)
        methods = {BEST_OF_N: f"Best-of-{n}", BEAM: f"Beam search, n = {self.settings.n}"}
        if self._training:
            methods[GRPO] = f"GRPO, {self.settings.updates} updates"
        report.text(f"""
## The asymmetry map
The reward is the oracle, corrupted per step to a false positive rate α and a false negative rate β; a solution's score
is the lowest of its steps. Shown is the share of problems that are truly solved (%), in world
{self.world.settings.seed}: {self.world.settings.pool_problems} problems for selection and search,
{self._rl.held_out} for GRPO. One seed each, so differences of a few points mean nothing. Beam search takes equal
candidates for one, so that there independent errors are drawn once for them.
""")
        if not self._training and self.settings.updates:
            report.text(SKIPPED)
        for kind, about in KINDS.items():
            of_kind = {cell: numbers for cell, numbers in cells.items() if cell.kind == kind}
            _draw(report, kind, about, of_kind, methods)
        missing = len(self._training) - sum(GRPO in numbers for numbers in cells.values())
        if missing:
            report.text(f"{missing} of {len(self._training)} policies are not trained yet: rerun the command.")
        report.metrics["asymmetry"] = [
            {"kind": cell.kind, "alpha": cell.alpha, "beta": cell.beta, **numbers} for cell, numbers in cells.items()
        ]

    @property
    def _rl(self) -> Reinforcement:
        return Reinforcement(updates=self.settings.updates, every=0)

    def _scorer(self, cell: Cell) -> CorruptedOracle:
        return CorruptedOracle(self.world.settings.modulus, cell.alpha, cell.beta, cell.kind, self.settings.seed)

    @cached_property
    def _selecting(self) -> dict[Cell, Selecting]:
        return {
            cell: Selecting(
                self._scorer(cell), self.world, self.settings.n, self.folder / "cells" / f"{cell.name}.json"
            )
            for cell in _grid(self.settings.rates)
        }

    @cached_property
    def _training(self) -> dict[Cell, Job]:
        if not self.settings.updates or find_spec("trl") is None:
            return {}
        rates = self.settings.policy_rates
        cells = _grid(self.settings.rates if rates is None else rates)
        scorers = {cell.name: self._scorer(cell) for cell in cells}
        jobs = jobs_of(self.world, scorers, [Run(name) for name in scorers], self._rl, self.folder / "policies")
        return dict(zip(cells, jobs, strict=True))


def demo_world(folder: Path) -> World:
    """The world of a finished demo, where `prism demo` has left it."""
    policy, data = (folder / "policy").resolve(), (folder / "data").resolve()
    file = data / "settings.json"
    if not policy.is_dir() or not file.is_file():
        raise ConfigError(f"{folder}: not the folder of a finished demo. Name one, or leave out --world to build one.")
    settings = from_mapping(WorldSettings, json.loads(file.read_text(encoding="utf-8")))
    return World(settings, policy, policy.parent / "backbone", data)


def measure_selection(job: Selecting) -> None:
    """Best-of-N and beam search of one cell, in whatever process."""
    import torch

    torch.set_num_threads(1)
    once(job.file, job.key, lambda: {**_best_of_n(job), **_beam(job)})


def _best_of_n(job: Selecting) -> dict[str, float]:
    """The expected accuracy of Best-of-N on the world's pool, and the error rates on the steps of the pool."""
    modulus = job.world.settings.modulus
    pool = read_pool(job.world.pool())
    trees = pool.trees()
    said = {tree.tree_id: one.probability for tree, one in zip(trees, job.scorer.score_trees(trees), strict=True)}
    solutions = itertools.count()  # those without steps have a number, too, and no score
    accuracies = []
    for entry in pool.problems:
        problem = Problem.parse(entry.problem.text, modulus)
        correct = np.array([solved(problem, solution.steps) for solution in entry.solutions])
        found = [said.get(next(solutions)) for _ in entry.solutions]
        scores = np.array([-np.inf if steps is None else log_score(steps, HOW) for steps in found])
        accuracies.append(best_of(correct, scores, [min(job.n, len(scores))])[0])
    called = np.concatenate(list(said.values())) > 0.5
    right = np.concatenate([one.probability for one in OracleScorer(modulus).score_trees(trees)]) > 0.5
    return {
        BEST_OF_N: float(np.mean(accuracies)),
        "measured alpha": float(called[~right].mean()),
        "measured beta": float((~called)[right].mean()),
    }


def _beam(job: Selecting) -> dict[str, float]:
    settings = settings_for(job.n, HOW, job.world.settings.temperature, job.world.settings.seed)
    outcome = guided_search(job.world.policy, job.scorer, job.world.pool(), job.world.settings.modulus, settings)
    return {BEAM: float(np.mean(outcome))}


def _made(job: Selecting) -> dict[str, float] | None:
    """What was measured of a cell; None if nothing was."""
    try:
        made = json.loads(job.file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return dict(made["result"]) if made["key"] == job.key else None


def _trained(job: Job) -> dict[str, float]:
    """The true accuracy of a trained policy; nothing if it is not trained."""
    from prism_prm.rl.alarm import read_run_file, read_trained_policy

    return (
        {GRPO: read_trained_policy(job.out).points[-1].mean(ANSWER)} if read_run_file(job.out).get("finished") else {}
    )


def _grid(rates: Sequence[float]) -> list[Cell]:
    return [Cell(kind, alpha, beta) for kind in KINDS for alpha in rates for beta in rates]


def _draw(report: Report, kind: Kind, about: str, cells: dict[Cell, dict[str, float]], methods: dict[str, str]) -> None:
    """A heat map per method."""
    caption = f"Problems solved (%) when errors are {kind}: {about}."
    alt = f"Heat maps of accuracy by false positive rate and false negative rate, {kind} errors: " + ", ".join(
        methods.values()
    )
    with report.figure(f"asymmetry-{kind}", caption=caption, alt=alt, size=(2.5, 2.6), panels=len(methods)) as panels:
        for axes, (method, title) in zip(panels, methods.items(), strict=True):
            have = {(cell.alpha, cell.beta): numbers[method] for cell, numbers in cells.items() if method in numbers}
            wanted = have or {(cell.alpha, cell.beta): np.nan for cell in cells}
            alphas, betas = (sorted({pair[i] for pair in wanted}) for i in (0, 1))
            values = np.array([[have.get((alpha, beta), np.nan) for alpha in alphas] for beta in betas])
            _heat(axes, values, [percent(alpha, digits=0) for alpha in alphas], [percent(b, digits=0) for b in betas])
            axes.set_title(title)


def _heat(axes: Any, values: Floats, across: Sequence[str], up: Sequence[str]) -> None:
    """Cells in color, with their numbers: α to the right, β upwards."""
    axes.grid(False)
    axes.pcolormesh(np.ma.masked_invalid(values), cmap="viridis", vmin=0, vmax=1)
    for (i, j), value in np.ndenumerate(values):
        color = {} if np.isnan(value) else {"color": "white" if value < 0.6 else "black"}
        text = NO_DATA if np.isnan(value) else percent(value, digits=0)
        axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", **color)
    axes.set_xticks(np.arange(len(across)) + 0.5, across)
    axes.set_yticks(np.arange(len(up)) + 0.5, up)
    axes.set_xlabel("false positives α (%)")
    axes.set_ylabel("false negatives β (%)")
