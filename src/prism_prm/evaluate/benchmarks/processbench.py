"""ProcessBench: find the first wrong step of a solution, or that there is none.

`label` is the 0-based index of the first wrong step, −1 if there is none. A PRM's answer is the first step that scores
below the threshold; a critic's reply without a verdict matches nothing. F1 is the harmonic mean of the exact matches
among wrong and among right solutions; the overall value is the mean F1 of the four splits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prism_prm import metrics
from prism_prm.arrays import Floats
from prism_prm.data.reader import Reader
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import Benchmark, Item, ItemSet
from prism_prm.evaluate.measure import Measured, Measurer, SubsetResult, Table, Tables, shown
from prism_prm.report import Report, percent
from prism_prm.stats import cluster_sums

SPLITS = {"gsm8k": 400, "math": 1000, "olympiadbench": 1000, "omnimath": 1000}
"""The number of items of each split."""
SPLIT = "split:"
"""The prefix of the names of the splits' tables."""
MEAN = f"{SPLIT}mean"
_ID = re.compile(rf"({'|'.join(SPLITS)})-\d+")


def read_processbench(inputs: Sequence[str | Path]) -> ItemSet:
    """Read the items of files, folders or a hub dataset. An item's split comes from its id, or else its file's name."""
    reader = Reader(inputs, format="process-labels")
    items: list[Item] = []
    seen: dict[str, str] = {}
    for i, (source, draft) in enumerate(reader.drafts()):
        match = _ID.fullmatch(draft.name)
        split = match[1] if match else Path(source.name).name.split(".")[0]
        name = draft.name or f"{split}-{i}"
        if name in seen:
            raise DataError(
                f"{source.name}: id {name!r} is also in {seen[name]}; give each item once", reason="duplicate-id"
            )
        seen[name] = source.name
        items.append(Item(replace(draft.tree(i), name=name), split, draft.problem))
    files = tuple(source.name for source in reader.sources)
    sizes = Counter(item.group for item in items)
    return ItemSet(tuple(items), files, complete=sizes == SPLITS)


def measure_processbench(measurer: Measurer) -> Tables:
    """acc_error, acc_correct and F1 of each split, and the mean F1 of the splits in the data."""
    steps = measurer.steps
    gold = metrics.first_bad(steps.wrong, steps.starts)
    # In ProcessBench a step is wrong if it scores BELOW the threshold; in PRMBench it is good if it scores ABOVE.
    predicted = steps.first_judged_bad(steps.probability < measurer.threshold)
    tallies = metrics.processbench_tallies(gold, predicted)
    names = steps.group_names
    wide = np.zeros((len(steps.items), len(names), 4))
    wide[np.arange(len(steps.items)), steps.item_group] = tallies
    sums = cluster_sums(wide.reshape(len(steps.items), -1), steps.item_cluster, steps.num_clusters)

    def mean_f1(sums: Floats) -> dict[str, Floats]:
        splits = metrics.processbench_rates(sums.reshape(*sums.shape[:-1], len(names), 4))
        return {"f1": np.asarray(splits["f1"].mean(axis=-1))}

    tables = {
        f"{SPLIT}{name}": measurer.of_sums(sums[:, 4 * i : 4 * i + 4], metrics.processbench_rates)
        for i, name in enumerate(names)
    }
    return {**tables, MEAN: measurer.of_sums(sums, mean_f1)}


def _splits(tables: Tables) -> dict[str, Table]:
    """The splits' tables by split."""
    return {
        name.removeprefix(SPLIT): table for name, table in tables.items() if name.startswith(SPLIT) and name != MEAN
    }


def headlines(tables: Tables) -> dict[str, Measured]:
    """F1 of the splits, and their mean."""
    splits = {f"F1 of {name} ↑": table["f1"] for name, table in _splits(tables).items()}
    return {**splits, "Mean F1 of the splits ↑": tables[MEAN]["f1"]}


def missing_splits(names: Sequence[str]) -> list[str]:
    """The splits that are missing. If any are, the mean is not the benchmark's overall value."""
    return [name for name in SPLITS if name not in names]


def add_to_report(report: Report, subsets: Mapping[str, SubsetResult]) -> None:
    """Add exact matches and F1 of every split."""
    tables = subsets["all"].tables
    splits = _splits(tables)
    rows = [
        [name, *(shown(table[key]) for key in ("acc_error", "acc_correct", "f1"))] for name, table in splits.items()
    ]
    missing = missing_splits(list(splits))
    label = "mean of all four" if not missing else f"mean of these {len(splits)}"
    report.table(
        ["split", "error found ↑", "no error seen ↑", "F1 ↑"],
        [*rows, [label, "", "", shown(tables[MEAN]["f1"])]],
        caption="Finding the first wrong step: exact matches among solutions with an error and among those without",
    )
    if missing:
        report.text(f"Missing splits: {', '.join(missing)}. The mean is not ProcessBench's overall value.")


def add_to_comparison(report: Report, tables: Mapping[str, Tables]) -> None:
    """Add every PRM's exact matches and F1 of every split."""
    splits = list(_splits(next(iter(tables.values()))))
    keys = (("acc_error", "TPR"), ("acc_correct", "TNR"), ("f1", "F1"))
    headers = ["PRM", *(f"{split} {label}" for split in splits for _, label in keys), "mean F1"]
    rows = []
    for name, own in tables.items():
        cells = [percent(own[f"{SPLIT}{split}"][key].value) for split in splits for key, _ in keys]
        rows.append([name, *cells, shown(own[MEAN]["f1"])])
    note = f"; the mean is of these {len(splits)}, not of all four" if missing_splits(splits) else ""
    report.table(
        headers,
        rows,
        caption=f"ProcessBench: error found (TPR), no error seen (TNR), F1 of the two{note} ↑ (%)",
        best="columns",
    )


PROCESSBENCH = Benchmark(
    read_processbench,
    hub="Qwen/ProcessBench",
    threshold=0.5,
    needs_every_step=False,
    counts_unanswered=True,
    measure=measure_processbench,
    headlines=headlines,
    add_to_report=add_to_report,
    add_to_comparison=add_to_comparison,
)
