"""The errors of an evaluation as a document: the judged steps of a benchmark, joined with its texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.errors import DataError, PrismError
from prism_prm.evaluation.benchmarks import Item, find_benchmark, read_benchmark
from prism_prm.evaluation.benchmarks.base import REDUNDANCY_THRESHOLD
from prism_prm.evaluation.judged_steps import Steps, read_steps
from prism_prm.evaluation.report import steps_file
from prism_prm.evaluation.scores import judgement
from prism_prm.file_types import read_json
from prism_prm.page.document import Document, Place, Results

METRICS = "metrics.json"
RIGHT, NOT_REDUNDANT = "right", "not redundant"
"""What a score is the probability of: in some classes, whether a step is redundant decides."""


def evaluation_documents(place: Place, results: Results) -> list[Document] | None:
    """The errors on all benchmarks that `prism eval` measured there."""
    metrics = place.path / METRICS
    if not metrics.is_file() or not any(place.path.glob("*.steps.parquet")):
        return None
    about = read_json(metrics)
    try:
        tables = [steps_file(place.path, bench) for bench in about["benchmarks"]]
        note = "; ".join(said["described"] for said in about["benchmarks"].values())
        title = f"{about['run']['name']} on {', '.join(about['benchmarks'])}"
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{metrics}: not what `prism eval` writes there; run it again", reason="wrong-format") from None
    return [Document("errors", title, partial(_body, place.path, about, results), (metrics, *tables), note)]


def _body(folder: Path, about: Any, results: Results) -> dict[str, Any]:
    redundancy = float(about["settings"].get("redundancy_threshold", REDUNDANCY_THRESHOLD))
    body: dict[str, Any] = {"prm": about["run"]["name"], "benchmarks": [], "items": [], "errors": []}
    for bench, said in about["benchmarks"].items():
        steps = find_benchmark(bench).in_total(read_steps(steps_file(folder, bench)))
        texts = _items(bench, said, results, steps)
        threshold = float(said["threshold"]["value"])
        _add(body, bench, steps, texts, threshold, redundancy)
    return body


def _add(
    body: dict[str, Any], bench: str, steps: Steps, texts: Mapping[str, Item], threshold: float, redundancy: float
) -> None:
    """Add a benchmark's counts and errors, and the items that have any."""
    benchmark = find_benchmark(bench)
    good = benchmark.judge(steps, threshold, redundancy)
    right, wrong = steps.judged & steps.right, steps.judged & steps.wrong
    passed, rejected = wrong & good, right & ~good
    counts = {"right": right.sum(), "wrong": wrong.sum(), "fp": passed.sum(), "fn": rejected.sum()}
    by_redundancy = set(benchmark.by_redundancy) & set(steps.group_names) if steps.redundancy is not None else set()
    thresholds = {RIGHT: threshold}
    if by_redundancy:  # a step at the threshold is not redundant, while the page wants scores above its own
        thresholds[NOT_REDUNDANT] = float(np.nextafter(1 - redundancy, 0))
    body["benchmarks"].append({"name": bench, "thresholds": thresholds, "counts": counts})
    places: dict[int, int] = {}
    for at in np.flatnonzero(passed | rejected).tolist():
        number = int(steps.step_item[at])
        group = steps.group_names[steps.item_group[number]]
        if number not in places:
            places[number] = len(body["items"])
            item = texts[steps.items[number]]
            decides = NOT_REDUNDANT if group in by_redundancy else RIGHT
            body["items"].append(_item(steps, number, item, group, decides))
        body["errors"].append(
            {"bench": bench, "kind": "fp" if passed[at] else "fn", "item": places[number],
             "step": int(at - steps.starts[number])}
        )  # fmt: skip


def _item(steps: Steps, number: int, item: Item, group: str, decides: str) -> dict[str, Any]:
    """An item with the scores that decide."""
    own = slice(int(steps.starts[number]), int(steps.starts[number] + steps.lengths[number]))
    scores = steps.probability[own]
    if decides == NOT_REDUNDANT:
        assert steps.redundancy is not None, "judged by scores that are not there"
        scores = 1 - steps.redundancy[own]
    return {
        "name": steps.items[number],
        "group": group,
        "problem": item.tree.problem,
        "contaminated": int(steps.item_contaminated[number]),
        "texts": [node.text for node in item.tree.nodes],
        "parents": list(item.tree.parents),
        "labels": steps.label[own].tolist(),
        "scores": scores.tolist(),
        "decides": decides,
    }


def _items(bench: str, said: Any, results: Results, steps: Steps) -> dict[str, Item]:
    """The benchmark's items by name; those that were measured must be there, with the same content.

    Unnamed items are numbered, so the name says little. Tables of earlier versions have no content hash: there, labels
    have to do.
    """
    data = results.data or tuple(said["files"])
    split = results.split if results.split is not None else said.get("split")
    try:
        found = {item.tree.name: item for item in read_benchmark(bench, data, split).items}
    except PrismError as error:
        if results.data:
            raise
        raise DataError(f"{error} (the texts of {bench}; say where they are now with --data)") from error
    for number, name in enumerate(steps.items):
        if name not in found or not _is_same(found[name], steps, number):
            raise DataError(
                f"{', '.join(data)}: the item {name} is not there, or says something else than what was measured; name "
                f"the data of {bench} that was measured with --data",
                reason="other-data",
            )
    return found


def _is_same(item: Item, steps: Steps, number: int) -> bool:
    if steps.item_content is not None:
        return item.tree.content_hash() == steps.item_content[number]
    own = slice(int(steps.starts[number]), int(steps.starts[number] + steps.lengths[number]))
    labels = [judgement(node.label) for node in item.tree.nodes]
    return bool(list(item.tree.parents) == steps.parent[own].tolist() and labels == steps.label[own].tolist())
