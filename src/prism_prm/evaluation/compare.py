"""Several evaluated PRMs side by side, on the same steps and the same bootstrap draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluation.eval_report import steps_file
from prism_prm.evaluation.evaluate import without_twins
from prism_prm.evaluation.measure import Measurer, Table, measure_prmbench, measure_processbench
from prism_prm.evaluation.steps import Steps, read_steps
from prism_prm.names import split_name
from prism_prm.statistics import NUM_DRAWS, SEED

SHOWN = 3


@dataclass(frozen=True)
class Run:
    """The folder of one `prism eval`."""

    name: str
    folder: Path
    metrics: dict[str, Any]

    @property
    def benches(self) -> list[str]:
        """The benchmarks it was evaluated on."""
        return list(self.metrics["benchmarks"])

    def threshold(self, bench: str) -> float:
        """The threshold it was judged at."""
        return float(self.metrics["benchmarks"][bench]["threshold"]["value"])


def load_run(given: str) -> Run:
    """A run from `FOLDER` or `NAME=FOLDER`."""
    name, place = split_name(given)
    folder = Path(place)
    path = folder / "metrics.json"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        benches = metrics["benchmarks"]
        own_name = metrics["run"]["name"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file; give folders that `prism eval --out` wrote") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not the metrics of a `prism eval` ({type(error).__name__}: {error})") from error
    if not benches:
        raise DataError(f"{path}: holds no benchmark")
    return Run(name or own_name, folder, metrics)


def load_runs(given: Sequence[str]) -> list[Run]:
    """Two or more runs, with names that tell them apart."""
    if len(given) < 2:
        raise ConfigError("give at least two runs to compare")
    runs = [load_run(one) for one in given]
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return runs
    # Two runs of one PRM: the folder tells them apart.
    runs = [Run(run.folder.name if names.count(run.name) > 1 else run.name, run.folder, run.metrics) for run in runs]
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError(f"runs have the same name ({', '.join(names)}); name them: NAME=FOLDER")
    return runs


def shared_benches(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The benchmarks that all runs have, and those that only some have."""
    every = list(dict.fromkeys(bench for run in runs for bench in run.benches))
    shared = [bench for bench in every if all(bench in run.benches for run in runs)]
    if not shared:
        found = "; ".join(f"{run.name}: {', '.join(run.benches)}" for run in runs)
        raise DataError(f"no benchmark is in all runs ({found}); evaluate them on the same one")
    return shared, [bench for bench in every if bench not in shared]


def load_steps(runs: Sequence[Run], bench: str) -> dict[str, Steps]:
    """The judged steps of every run, which must be the same steps with the same labels."""
    steps = {run.name: read_steps(steps_file(run.folder, bench)) for run in runs}
    first = runs[0].name
    for run in runs[1:]:
        _require_same(bench, first, steps[first], run.name, steps[run.name])
    return steps


def _require_same(bench: str, name_a: str, a: Steps, name_b: str, b: Steps) -> None:
    for name, mine, theirs in ((name_a, a, b), (name_b, b, a)):
        others = set(theirs.items)
        if extra := [item for item in mine.items if item not in others]:
            raise DataError(
                f"{bench}: {name} has {len(extra):,} of {len(mine.items):,} items that the other run lacks "
                f"({', '.join(extra[:SHOWN])}, …). Only runs on the same items can be compared: evaluate both on the "
                "same --data, with the same --limit, threshold rule and seed"
            )
    same = a.items == b.items and np.array_equal(a.starts, b.starts) and np.array_equal(a.parent, b.parent)
    if not same or not np.array_equal(a.label, b.label):
        raise DataError(
            f"{bench}: {name_a} and {name_b} have items of the same names but other steps or labels; evaluate both on "
            "the same files"
        )


@dataclass(frozen=True)
class Compared:
    """One benchmark: per PRM its tables, all measured on the same draws."""

    bench: str
    runs: tuple[str, ...]
    thresholds: dict[str, float]
    steps: dict[str, Steps]
    tables: dict[str, dict[str, Table]]
    """PRM → table name → metrics."""


def compare_bench(runs: Sequence[Run], bench: str, *, num_draws: int = NUM_DRAWS, seed: int = SEED) -> Compared:
    """Measure all runs alike."""
    steps = load_steps(runs, bench)
    tables: dict[str, dict[str, Table]] = {}
    for run in runs:
        own = steps[run.name]
        total = without_twins(own)
        redundancy = float(run.metrics["settings"]["redundancy_threshold"])
        threshold = run.threshold(bench)
        whole = Measurer(total, threshold, num_draws, seed, redundancy)
        tables[run.name] = {"steps": {**whole.rates(), **whole.rankings(), **whole.calibration()}}
        if bench == "prmbench":
            tables[run.name] |= measure_prmbench(Measurer(own, threshold, num_draws, seed, redundancy))
        elif bench == "processbench":
            tables[run.name] |= {f"split:{name}": table for name, table in measure_processbench(whole).items()}
    names = tuple(run.name for run in runs)
    return Compared(bench, names, {run.name: run.threshold(bench) for run in runs}, steps, tables)
