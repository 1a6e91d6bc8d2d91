"""PRMBench: read its nine classes, score them by its own rules, and show them as the papers do.

`error_steps` are the wrong steps, counted from 1; every other step is right, even after an error. Ids are
`<classification>_<idx>`, and the first row of an id counts. Each `redundency` row (the dataset's spelling) also gives a
`correct_<idx>` item without errors, which counts in no total and only serves the similarity metric. In `redundency` and
`circular`, a model with a redundancy score is judged by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prism_prm import metrics
from prism_prm.arrays import Bools, Floats
from prism_prm.data import formats
from prism_prm.data.formats import ReadOptions
from prism_prm.data.inputs import find_sources, read_records
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import Benchmark, Item, ItemSet
from prism_prm.evaluate.measure import (
    RATES,
    Measured,
    Measurer,
    Steps,
    SubsetResult,
    Tables,
    all_rates,
    known_aurocs,
    metric_rows,
    shown,
)
from prism_prm.report import Report, draw_groups, finish, number, percent

TWINS = "correct"
"""The group of the items without errors."""
GROUPS: dict[str, tuple[str, ...]] = {
    "simplicity": ("redundency", "circular"),
    "soundness": ("counterfactual", "step_contradiction", "domain_inconsistency", "confidence"),
    "sensitivity": ("missing_condition", "deception", "multi_solutions"),
}
CLASSES = tuple(name for names in GROUPS.values() for name in names)
SHORT = dict(zip(CLASSES, ("NR", "NCL", "ES", "SC", "DC", "CI", "PS", "DR", "MS"), strict=True))
"""The columns' names in the paper's tables."""
COLUMNS = tuple(
    column
    for group, members in GROUPS.items()
    for column in (*((SHORT[name], "classes", name) for name in members), ("Avg", "groups", group))
)
"""(header, table, key) of the columns of PRMBench's table, as the papers print it."""
SIDE = {"first_error_acc": "First error judged bad ↑", "similarity": "Distance to the correct twin"}
POSITIVES_ONLY = "multi_solutions"
FULL_SIZE = {
    "redundency": 758, "circular": 758, "counterfactual": 757, "step_contradiction": 758, "domain_inconsistency": 757,
    "confidence": 757, "missing_condition": 756, "deception": 750, "multi_solutions": 160, TWINS: 758,
}  # fmt: skip


class _Row(formats.PRMBenchRecord):
    question: str = ""
    """The problem as in MATH; `original_question` is rewritten for every class."""


def read_prmbench(inputs: Sequence[str | Path]) -> ItemSet:
    """Read the items of files, folders or a hub dataset."""
    notes: Counter[str] = Counter()
    items: list[Item] = []
    seen: set[str] = set()

    def read(record: _Row) -> tuple[_Row, list[formats.Draft]]:
        if record.classification not in CLASSES:
            raise DataError(
                f"classification {record.classification!r} is not one of PRMBench's: {', '.join(CLASSES)}",
                reason="unknown-class",
            )
        return record, formats.read_prmbench(record, ReadOptions())

    for row, (record, drafts) in read_records(inputs, read, _Row):
        outside = sum(step > len(record.modified_process) for step in record.error_steps)
        notes["error steps past the last step"] += outside
        only_outside = bool(outside) and outside == len(record.error_steps)
        notes["items whose error steps are all past the last step"] += only_outside
        wordings = (record.original_question, record.modified_question)
        problem = record.question or record.original_question or record.modified_question
        for i, draft in enumerate(drafts):
            if draft.name in seen:
                notes["rows whose id was seen before"] += 1
                continue
            seen.add(draft.name)
            tree = replace(draft.tree(len(items)), where=row.where)
            items.append(Item(tree, TWINS if i else record.classification, problem, also=wordings))
    files = tuple(source.name for source in find_sources(inputs))
    sizes = Counter(item.group for item in items)
    return ItemSet(tuple(items), files, dict(notes), complete=sizes == FULL_SIZE)


def side_tallies(steps: Steps, good: Bools) -> dict[str, tuple[Floats, Floats]]:
    """The (sum, count) per item of first_error_acc, and of similarity to the `correct_` twin.

    As in the original code, similarity leaves out twins without a single good step.
    """
    first = metrics.first_bad(steps.wrong, steps.starts)
    has_error = first >= 0
    is_found = has_error & ~good[steps.starts + np.maximum(first, 0)]
    share = np.add.reduceat(good.astype(np.float64), steps.starts) / steps.lengths
    twins = {
        name.removeprefix(f"{TWINS}_"): share[i]
        for i, name in enumerate(steps.items)
        if steps.group_names[steps.item_group[i]] == TWINS
    }
    distance = np.zeros(len(steps.items))
    compared = np.zeros(len(steps.items))
    for i, name in enumerate(steps.items):
        group = steps.group_names[steps.item_group[i]]
        twin = 0.0 if group == TWINS else twins.get(name.removeprefix(f"{group}_"), 0.0)
        if twin > 0:
            distance[i], compared[i] = abs(share[i] - twin), 1
    return {
        "first_error_acc": (is_found.astype(np.float64), has_error.astype(np.float64)),
        "similarity": (distance, compared),
    }


def measure_prmbench(measurer: Measurer) -> Tables:
    """PRMScore by class, by group, and overall on the pooled counts; and side metrics."""
    steps = measurer.steps
    names = [name for name in CLASSES if name in steps.group_names]
    columns = [4 * steps.group_names.index(name) + i for name in names for i in range(4)]
    sums = measurer.group_counts()[:, columns]

    def classes(sums: Floats) -> dict[str, Floats]:
        return {
            name: metrics.prmbench_score(sums[..., 4 * i : 4 * i + 4], positives_only=name == POSITIVES_ONLY)
            for i, name in enumerate(names)
        }

    def groups(sums: Floats) -> dict[str, Floats]:
        # A group with a missing class has no mean, so that a part is never mistaken for the whole.
        scores, no_data = classes(sums), np.full(sums.shape[:-1], np.nan)
        return {
            group: np.asarray(np.mean([scores.get(name, no_data) for name in members], axis=0))
            for group, members in GROUPS.items()
        }

    def overall(sums: Floats) -> dict[str, Floats]:
        return all_rates(np.asarray(sums.reshape(*sums.shape[:-1], len(names), 4).sum(axis=-2)))

    in_total = np.isin(np.array(steps.group_names), names)[steps.item_group]
    return {
        "classes": measurer.of_sums(sums, classes),
        "groups": measurer.of_sums(sums, groups),
        "overall": measurer.of_sums(sums, overall),
        "side": measurer.item_means(side_tallies(steps, measurer.good), in_total),
    }


def _cells(tables: Tables) -> list[str]:
    """PRMScore overall, by class and by group."""
    cells: list[Measured | None] = [tables["overall"]["prm_score"]]
    cells += [tables[table].get(key) for _, table, key in COLUMNS]
    return [percent(None if measured is None else measured.value) for measured in cells]


def add_to_report(report: Report, subsets: Mapping[str, SubsetResult]) -> None:
    """Add PRMScore by class and group, the classes with intervals, and side metrics."""
    headers = ["items", "Overall", *(header for header, _, _ in COLUMNS)]
    whole = subsets["all"]
    present = len(whole.tables["classes"])
    pooled = "" if present == len(CLASSES) else f"; overall pools the {present} of {len(CLASSES)} available classes"
    rows = [[name, *_cells(subset.tables)] for name, subset in subsets.items()]
    report.table(headers, rows, caption=f"PRMScore by class and group, as the papers print it (%){pooled}")
    columns = {key: RATES[key] for key in ("fpr", "fnr")} | known_aurocs(whole.groups.values())
    rows = [
        [
            f"{name} ({SHORT[name]})",
            shown(whole.tables["classes"][name]),
            *(shown(whole.groups[name].get(metric)) for metric in columns),
            number(sum(whole.group_counts[name].values())),
        ]
        for name in whole.tables["classes"]
    ]
    report.table(["class", "PRMScore ↑", *columns.values(), "steps"], rows, caption="Classes with intervals (%)")
    side = [subset.tables["side"] for subset in subsets.values()]
    report.table(["side metric", *subsets], metric_rows(SIDE, side), caption="Side metrics (%)")


def add_to_comparison(report: Report, tables: Mapping[str, Tables]) -> None:
    """Add every PRM's PRMScore by class and group."""
    headers = ["PRM", "Overall", *(header for header, _, _ in COLUMNS)]
    rows = [[name, *_cells(own)] for name, own in tables.items()]
    report.table(headers, rows, caption="PRMScore by class and group (%) ↑", best="columns")
    series = {name: [score.interval() for score in own["classes"].values()] for name, own in tables.items()}
    classes = next(iter(tables.values()))["classes"]
    caption = "PRMScore by class with 95 % intervals."
    with report.figure("prmbench-classes", caption=caption, alt="PRMScore of every PRM by class") as axes:
        draw_groups(axes, [SHORT[name] for name in classes], series)
        finish(axes, "", "PRMScore (%)")


PRMBENCH = Benchmark(
    read_prmbench,
    hub="hitsmy/PRMBench_Preview",
    aside={TWINS: "correct twins"},
    threshold=0.5,
    by_redundancy=GROUPS["simplicity"],
    positives_only=(POSITIVES_ONLY,),
    measure=measure_prmbench,
    shows_groups=False,
    add_to_report=add_to_report,
    add_to_comparison=add_to_comparison,
)
