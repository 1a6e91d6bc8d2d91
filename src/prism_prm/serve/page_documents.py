"""The documents of results on disk, by what each place is: errors of evaluations, scores side by side, policies in
training, and the searches of `searches.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import choose_aggregator, choose_threshold, solution_score
from prism_prm.errors import DataError, PrismError
from prism_prm.evaluate.benchmarks import Item, find_benchmark, read_benchmark
from prism_prm.evaluate.benchmarks.base import REDUNDANCY_THRESHOLD
from prism_prm.evaluate.judged_steps import Steps, read_steps
from prism_prm.evaluate.report import steps_file
from prism_prm.evaluate.scores import judgement
from prism_prm.file_types import read_json, reading_parquet
from prism_prm.paths import nearest
from prism_prm.rl.alarm import GREEDY, POINTS, PROXY, SAMPLES, VOTE, first_alarm, gold_of, read_points, read_samples
from prism_prm.serve.page_document import Document, Place, Results
from prism_prm.serve.page_searches import reranked_documents, search_documents

RIGHT, NOT_REDUNDANT = "right", "not redundant"
"""What a score is the probability of: in some classes, whether a step is redundant decides."""


def find_documents(results: Results, *, show_broken: bool = False) -> dict[str, Document]:
    """All documents by their ids, which stay the same while results grow.

    Args:
        results: the places to look at.
        show_broken: make a document of what is wrong with a place, so that the others are still shown.

    Raises:
        DataError: a place does not exist, or holds nothing that can be shown.
    """
    found: dict[str, Document] = {}
    for place in results.places:
        try:
            if not place.path.exists():
                raise DataError(f"{place.path}: no such file or folder.{nearest(place.path)}", reason="no-such-file")
            documents = next((some for find in SOURCES.values() if (some := find(place, results)) is not None), None)
            if documents is None:
                raise DataError(
                    f"{place.path}: nothing to look at; expected {', or '.join(SOURCES)}", reason="wrong-format"
                )
        except (PrismError, OSError) as error:
            if not show_broken:
                raise
            # Another message is another document, since no file says when it changes.
            message = str(error)
            key = f"broken-{hashlib.sha256(message.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
            documents = [Document("broken", place.name, partial(dict, message=message), key=key)]
        for document in documents:
            found[results.id_of(place, document.key)] = document
    return found


def listing(documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """What the page lists."""
    return [
        {"id": name, "kind": one.kind, "title": one.title, "note": one.note}
        for name, one in documents.items()
        if one.listed
    ]


def evaluation_documents(place: Place, results: Results) -> list[Document] | None:
    """The errors on all benchmarks that `prism eval` measured there."""
    metrics = place.path / "metrics.json"
    if not metrics.is_file() or not any(place.path.glob("*.steps.parquet")):
        return None
    about = read_json(metrics)
    try:
        tables = [steps_file(place.path, bench) for bench in about["benchmarks"]]
        note = "; ".join(said["described"] for said in about["benchmarks"].values())
        title = f"{about['run']['name']} on {', '.join(about['benchmarks'])}"
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{metrics}: not what `prism eval` writes there; run it again", reason="wrong-format") from None
    return [Document("errors", title, partial(_errors, place.path, about, results), (metrics, *tables), note)]


def _errors(folder: Path, about: Any, results: Results) -> dict[str, Any]:
    """Each benchmark's counts and errors, and the items that have any."""
    redundancy = float(about["settings"].get("redundancy_threshold", REDUNDANCY_THRESHOLD))
    benchmarks: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for bench, said in about["benchmarks"].items():
        benchmark = find_benchmark(bench)
        steps = benchmark.in_total(read_steps(steps_file(folder, bench)))
        texts = _items(bench, said, results, steps)
        threshold = float(said["threshold"]["value"])
        good = benchmark.judge(steps, threshold, redundancy)
        right, wrong = steps.judged & steps.right, steps.judged & steps.wrong
        passed, rejected = wrong & good, right & ~good
        counts = {"right": right.sum(), "wrong": wrong.sum(), "fp": passed.sum(), "fn": rejected.sum()}
        by_redundancy = set(benchmark.by_redundancy) & set(steps.group_names) if steps.redundancy is not None else set()
        thresholds = {RIGHT: threshold}
        if by_redundancy:  # a step at the threshold is not redundant, while the page wants scores above its own
            thresholds[NOT_REDUNDANT] = float(np.nextafter(1 - redundancy, 0))
        benchmarks.append({"name": bench, "thresholds": thresholds, "counts": counts})
        known: dict[int, int] = {}
        for at in np.flatnonzero(passed | rejected).tolist():
            number = int(steps.step_item[at])
            if number not in known:
                known[number] = len(items)
                items.append(_item(steps, number, texts[steps.items[number]], by_redundancy))
            errors.append(
                {"bench": bench, "kind": "fp" if passed[at] else "fn", "item": known[number],
                 "step": int(at - steps.starts[number])}
            )  # fmt: skip
    return {"prm": about["run"]["name"], "benchmarks": benchmarks, "items": items, "errors": errors}


def _item(steps: Steps, number: int, item: Item, by_redundancy: Container[str]) -> dict[str, Any]:
    """An item with the scores that decide."""
    own = slice(int(steps.starts[number]), int(steps.starts[number] + steps.lengths[number]))
    group = steps.group_names[steps.item_group[number]]
    scores, decides = steps.probability[own], RIGHT
    if group in by_redundancy and steps.redundancy is not None:
        scores, decides = 1 - steps.redundancy[own], NOT_REDUNDANT
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

    Unnamed items are numbered, so their names say little. Tables of earlier versions have no content hash, so labels
    are compared instead.
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


def scored_documents(place: Place, results: Results) -> list[Document] | None:
    """One document for all tables of scores; the first of them has it."""
    if not _is_table(place):
        return None
    tables = [one for one in results.places if _is_table(one)]
    if place is not tables[0]:
        return []
    title = " and ".join(table.name for table in tables)
    files = tuple(table.path for table in tables)
    return [Document("scores", title, partial(_scored, tables, results), files, key="scores")]


def _is_table(place: Place) -> bool:
    if not place.path.is_file() or place.path.suffix != ".parquet":
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {"log_odds", "content_hash", "model_hash"} <= set(pq.read_schema(place.path).names)
    except (OSError, pa.ArrowException):
        return False


def _scored(tables: list[Place], results: Results) -> dict[str, Any]:
    from prism_prm.evaluate.score_files import (
        TreesToScore,
        card_of_scores,
        inputs_of_scores,
        read_scores,
        scores_of_trees,
    )

    data = results.data or tuple(dict.fromkeys(name for table in tables for name in inputs_of_scores(table.path)))
    if not data:
        raise DataError(f"{tables[0].path}: does not say what was scored; name the solutions with --data")
    trees = [tree for tree in TreesToScore(data) if tree.nodes]
    prms, columns = [], []
    for table in tables:
        card = card_of_scores(table.path)
        aggregator, threshold = choose_aggregator(None, card).value, choose_threshold(None, card).value
        found = scores_of_trees(read_scores(table.path), trees)
        prms.append({"name": table.name, "aggregator": aggregator, "threshold": threshold})
        column = []
        for tree, one in zip(trees, found, strict=True):
            missing = np.isnan(one.probability)
            # A tree of candidates has no score as a whole.
            is_whole = len(tree.trunk) == len(tree.nodes) and not missing.any()
            column.append(
                {"probabilities": None if missing.all() else one.probability.tolist(),
                 "score": solution_score(one.probability, aggregator) if is_whole else None}
            )  # fmt: skip
        columns.append(column)
    if all(one["probabilities"] is None for column in columns for one in column):
        raise DataError(
            f"{', '.join(data)}: none of these solutions is in {tables[0].path}; name those that were scored",
            reason="other-data",
        )
    solutions = [
        {"name": tree.name, "problem": tree.problem, "texts": [node.text for node in tree.nodes],
         "parents": list(tree.parents), "labels": [node.label for node in tree.nodes],
         "prms": [column[i] for column in columns]}
        for i, tree in enumerate(trees)
    ]  # fmt: skip
    return {"prms": prms, "solutions": solutions}


def run_documents(place: Place, _results: Results) -> list[Document] | None:
    """The run of a folder of `prism grpo`, which may still be running."""
    looks = place.path / POINTS
    if not looks.is_file():
        return None
    return [Document("grpo", place.name, partial(_run, place.path), (looks, place.path / SAMPLES))]


def _run(folder: Path) -> dict[str, Any]:
    with reading_parquet(folder / POINTS, "run `prism grpo` again"):
        looks = read_points(folder / POINTS)
    gold = gold_of(looks[0])
    lines = []
    for name, title in {PROXY: "mean reward", gold: "solved, sampled", f"{GREEDY}/{gold}": "solved, greedy"}.items():
        if all(name in look.by_problem for look in looks):
            points = [look.interval(name) for look in looks]
            lines.append({"name": name, "title": title, "points": [[at.value, at.low, at.high] for at in points]})
    samples = read_samples(folder)
    alarms = {name: first_alarm(looks, name) for name in (gold, VOTE) if name in looks[0].by_problem}
    return {
        "updates": [look.update for look in looks],
        "lines": lines,
        "numbers": {name: [look.numbers.get(name) for look in looks] for name in looks[-1].numbers},
        "num_problems": len(looks[0].by_problem[gold]),
        "alarms": [
            {"by": "true answers" if name == gold else "votes of the untrained policy", "raised": alarm is not None,
             "update": alarm and alarm.update, "text": str(alarm) if alarm else ""}
            for name, alarm in alarms.items()
        ],
        "problems": samples.problems,
        "samples": samples.points,
    }  # fmt: skip


Find = Callable[[Place, Results], Sequence[Document] | None]

SOURCES: dict[str, Find] = {
    "an evaluation (`prism eval`)": evaluation_documents,
    "a table of scores (`prism score`)": scored_documents,
    "a search (`prism search`)": search_documents,
    "a policy in training (`prism grpo`)": run_documents,
    "re-ranked programs (`prism rerank` on a code task)": reranked_documents,
}
"""What a place may be → its documents; None where it is something else."""
