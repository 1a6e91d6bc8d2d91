"""The asymmetry map: what a reward's false positives and false negatives do to Best-of-N, beam search and GRPO.

The reward is the oracle, corrupted to a false positive rate α and a false negative rate β per step. The paper's thesis
is that false positives cap the accuracy, while false negatives only slow it down.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.config import Count, Natural, Share, check, from_mapping
from prism_prm.data.pools import read_pool
from prism_prm.errors import ConfigError
from prism_prm.job import content_key, once, stoppable
from prism_prm.lab.demo.findings import beam_settings, guided_search
from prism_prm.lab.demo.reinforcement import (
    ANSWER,
    SKIPPED,
    PolicyRun,
    PolicyTraining,
    Reinforcement,
    policy_trainings,
    run_in_processes,
    train_policies,
)
from prism_prm.lab.world.build import FORMAT, World, WorldSettings
from prism_prm.lab.world.oracle import KINDS, CorruptedOracle, Kind, OracleScorer, solved
from prism_prm.lab.world.problems import Problem
from prism_prm.report import Report, percent
from prism_prm.rl.alarm import read_run_file, read_trained_policy
from prism_prm.search.curves import best_of

AGGREGATOR = "min"
"""The aggregator in all cells of the map."""
BEST_OF_N, BEAM, GRPO = "best-of-n", "beam search", "GRPO"


@dataclass(frozen=True, slots=True)
class MapSettings:
    """Settings of the map."""

    rates: tuple[Share, ...] = (0.0, 0.1, 0.2, 0.3, 0.5)
    """The error rates per step: every α with every β."""
    policy_rates: tuple[Share, ...] | None = None
    """The rates for which policies are trained, which is the slowest part; None for all."""
    updates: Natural = 40
    """Updates of each policy; 0 trains none."""
    n: Count = 16
    """Solutions of Best-of-N, and candidates per round of the beam search."""
    seed: Natural = 0
    """Determines where the reward errs."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the map."""

    kind: Kind
    alpha: float
    beta: float

    @property
    def name(self) -> str:
        """The name of its file and of its reward."""
        return f"{self.kind}-{self.alpha:g}-{self.beta:g}"


@dataclass(frozen=True, slots=True)
class CellTask:
    """The measurement of Best-of-N and beam search in a cell, for a worker process."""

    scorer: CorruptedOracle
    world: World
    n: int
    file: Path

    @property
    def key(self) -> str:
        return content_key(FORMAT, self.world.data.name, self.scorer.identity(), self.n)

    def measured(self) -> dict[str, float]:
        """The results; empty if it was not measured yet."""
        if self.file.exists():
            made = json.loads(self.file.read_text(encoding="utf-8"))
            if made["key"] == self.key:
                return dict(made["result"])
        return {}


class AsymmetryMap:
    """The map of one world in a folder; measured cells are reused."""

    def __init__(self, world: World, folder: Path, settings: MapSettings) -> None:
        self.world, self.settings = world, settings
        self.rl = Reinforcement(updates=settings.updates, every=0)
        self.tasks: dict[Cell, CellTask] = {}
        self.trainings: dict[Cell, PolicyTraining] = {}
        """Only for cells in which a policy is trained."""
        rates, policy_rates = settings.rates, settings.policy_rates

        def corrupted(cell: Cell) -> CorruptedOracle:
            return CorruptedOracle(world.settings.modulus, cell.alpha, cell.beta, cell.kind, settings.seed)

        for cell in _grid(rates):
            file = folder / "cells" / f"{cell.name}.json"
            self.tasks[cell] = CellTask(corrupted(cell), world, settings.n, file)
        if settings.updates and find_spec("trl") is not None:
            cells = {cell.name: cell for cell in _grid(rates if policy_rates is None else policy_rates)}
            scorers = {name: corrupted(cell) for name, cell in cells.items()}
            trainings = policy_trainings(world, scorers, [*map(PolicyRun, cells)], self.rl, folder / "policies")
            self.trainings = dict(zip(cells.values(), trainings, strict=True))

    def measure(self) -> None:
        """Measure all cells, the quick methods first."""
        with stoppable(lambda: "the map"):
            left = [one for one in self.tasks.values() if not one.measured()]
            run_in_processes("map: Best-of-N, beam search", measure_cell, left)
            if self.trainings:
                train_policies(list(self.trainings.values()))

    def cells(self) -> dict[Cell, dict[str, float]]:
        found = {cell: one.measured() for cell, one in self.tasks.items()}
        for cell, one in self.trainings.items():
            numbers = found.setdefault(cell, {})
            if read_run_file(one.out).get("finished"):
                numbers[GRPO] = read_trained_policy(one.out).points[-1].mean(ANSWER)
        return found

    def add_to(self, report: Report) -> None:
        """Add heat maps and metrics of the results so far."""
        cells, world = self.cells(), self.world.settings
        n = min(self.settings.n, world.pool_size)
        methods = {BEST_OF_N: f"Best-of-{n}", BEAM: f"Beam search, n = {self.settings.n}"}
        if self.trainings:
            methods[GRPO] = f"GRPO, {self.settings.updates} updates"
        report.text(f"""
## The asymmetry map
The reward is the oracle, corrupted per step to a false positive rate α and a false negative rate β; a solution's score
is the lowest of its steps. The maps show the share of problems that are truly solved (%), in world {world.seed}:
{world.pool_problems} problems for selection and search, {self.rl.held_out} for GRPO. There is one seed each, so
differences of a few points mean nothing. Beam search merges equal candidates, so independent errors are drawn once for
them.
""")
        if not self.trainings and self.settings.updates:
            report.text(SKIPPED)
        for kind, about in KINDS.items():
            of_kind = {(cell.alpha, cell.beta): numbers for cell, numbers in cells.items() if cell.kind == kind}
            _draw(report, kind, about, of_kind, methods)
        missing = len(self.trainings) - sum(GRPO in numbers for numbers in cells.values())
        if missing:
            report.text(f"{missing} of {len(self.trainings)} policies are not trained yet; rerun the command.")
        report.metrics["asymmetry"] = [
            {"kind": cell.kind, "alpha": cell.alpha, "beta": cell.beta, **numbers} for cell, numbers in cells.items()
        ]


def demo_world(folder: Path) -> World:
    """The world of a finished `prism demo`."""
    policy, data = (folder / "policy").resolve(), (folder / "data").resolve()
    file = data / "settings.json"
    if not policy.is_dir() or not file.is_file():
        raise ConfigError(f"{folder}: not the folder of a finished demo. Name one, or omit --world to build one.")
    settings = from_mapping(WorldSettings, json.loads(file.read_text(encoding="utf-8")))
    return World(settings, policy, policy.parent / "backbone", data)


def measure_cell(one: CellTask) -> None:
    """Measure Best-of-N and beam search in one cell; runs in a worker process."""
    import torch

    torch.set_num_threads(1)
    once(one.file, one.key, lambda: _measure(one))


def _measure(one: CellTask) -> dict[str, float]:
    """The expected accuracy of Best-of-N on the pool, the error rates on its steps, and the accuracy of search."""
    world = one.world.settings
    pool = read_pool(one.world.pool())
    trees = pool.trees()
    scored = {tree.tree_id: found.probability for tree, found in zip(trees, one.scorer.score_trees(trees), strict=True)}
    solutions = itertools.count()  # solutions without steps are counted but have no score
    accuracies = []
    for entry in pool.problems:
        problem = Problem.parse(entry.problem.text, world.modulus)
        correct = np.array([solved(problem, solution.steps) for solution in entry.solutions])
        found = [scored.get(next(solutions)) for _ in entry.solutions]
        scores = np.array([-np.inf if steps is None else log_score(steps, AGGREGATOR) for steps in found])
        accuracies.append(best_of(correct, scores, [min(one.n, len(scores))])[0])
    called = np.concatenate(list(scored.values())) > 0.5
    right = np.concatenate([found.probability for found in OracleScorer(world.modulus).score_trees(trees)]) > 0.5
    return {
        BEST_OF_N: float(np.mean(accuracies)),
        "measured alpha": float(called[~right].mean()),
        "measured beta": float((~called)[right].mean()),
        BEAM: float(np.mean(guided_search(one.world, one.scorer, beam_settings(one.n, AGGREGATOR, world)))),
    }


def _grid(rates: Sequence[float]) -> list[Cell]:
    return [Cell(kind, alpha, beta) for kind in KINDS for alpha in rates for beta in rates]


def _draw(
    report: Report, kind: Kind, about: str, cells: dict[tuple[float, float], dict[str, float]], methods: dict[str, str]
) -> None:
    """Draw a heat map per method: α on the x axis, β on the y axis."""
    caption = f"Problems solved (%) when errors are {kind}: {about}."
    alt = f"Heat maps of accuracy by false positive rate and false negative rate, {kind} errors: " + ", ".join(
        methods.values()
    )
    with report.figure(f"asymmetry-{kind}", caption=caption, alt=alt, size=(2.5, 2.6), panels=len(methods)) as panels:
        for axes, (method, title) in zip(panels, methods.items(), strict=True):
            have = {rates: numbers[method] for rates, numbers in cells.items() if method in numbers}
            alphas, betas = (sorted({rates[i] for rates in have or cells}) for i in (0, 1))
            values = np.array([[have.get((alpha, beta), np.nan) for alpha in alphas] for beta in betas])
            axes.grid(False)
            axes.pcolormesh(np.ma.masked_invalid(values), cmap="viridis", vmin=0, vmax=1)
            for (i, j), value in np.ndenumerate(values):
                color = {} if np.isnan(value) else {"color": "white" if value < 0.6 else "black"}
                axes.text(j + 0.5, i + 0.5, percent(value, digits=0), ha="center", va="center", **color)
            axes.set_xticks(np.arange(len(alphas)) + 0.5, [percent(alpha, digits=0) for alpha in alphas])
            axes.set_yticks(np.arange(len(betas)) + 0.5, [percent(beta, digits=0) for beta in betas])
            axes.set(title=title, xlabel="false positives α (%)", ylabel="false negatives β (%)")
