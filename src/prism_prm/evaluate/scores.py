"""Attach scores to a benchmark's items: from a PRM (and keep them), a scores table, or predictions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from prism_prm.arrays import Floats
from prism_prm.console import Advance, ignore
from prism_prm.data.inputs import decode, find_sources, rows
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import Item, ItemSet, find_benchmark
from prism_prm.evaluate.judged_steps import NOT_JUDGED, Steps
from prism_prm.stats import number_clusters

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer, TreeScores

SHOWN = 3
"""Names shown in a message about many."""


def judgement(label: float | None) -> int:
    """A label as metrics use it: 1 right, 0 wrong, −1 not judged."""
    if label is None or label == 0.5:
        return NOT_JUDGED
    return int(label > 0.5)


def collect_steps(
    items: Sequence[Item],
    probability: Sequence[Floats],
    redundancy: Sequence[Floats] | None,
    *,
    hard: bool = False,
    with_gaps: bool = False,
) -> Steps:
    """The columns of some items and their scores, one array per item; every score must be there and finite.

    Only `with_gaps` may scores be NaN: a critic did not judge the step.
    """
    for item, scores in [*zip(items, probability, strict=True), *zip(items, redundancy or (), strict=False)]:
        expected = len(item.tree.nodes)
        if len(scores) != expected:
            raise DataError(f"item {item.tree.name}: {len(scores)} scores for {expected} steps; every step needs one")
        valid = (scores >= 0) & (scores <= 1) | (np.isnan(scores) & with_gaps)
        if not valid.all():
            at = int(np.argmin(valid))
            raise DataError(
                f"item {item.tree.name}, step {at + 1}: the score is {scores[at]}, not a probability in [0, 1]"
            )
    clusters, num_clusters = number_clusters(item.problem_key for item in items)
    groups, _ = number_clusters(item.group for item in items)
    lengths = [len(item.tree.nodes) for item in items]
    return Steps(
        items=tuple(item.tree.name for item in items),
        group_names=tuple(dict.fromkeys(item.group for item in items)),
        item_group=groups,
        item_cluster=clusters,
        num_clusters=num_clusters,
        item_contaminated=np.array([-1 if i.contaminated is None else i.contaminated for i in items], np.int8),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
        parent=np.array([parent for item in items for parent in item.tree.parents], np.int64),
        label=np.array([judgement(node.label) for item in items for node in item.tree.nodes], np.int8),
        probability=np.concatenate(probability),
        redundancy=None if redundancy is None else np.concatenate(redundancy),
        hard=hard,
        item_content=tuple(item.tree.content_hash() for item in items),
    )


class Prediction(msgspec.Struct):
    """One line of a predictions file."""

    id: str
    scores: list[float] | None = None
    """P(right) of every step."""
    labels: list[bool] | None = None
    """Verdicts instead of scores."""
    redundancy: list[float] | None = None
    """P(redundant) of every step, for PRMBench's two redundancy classes."""


def steps_from_predictions(items: ItemSet, path: str | Path) -> tuple[Steps, dict[str, int]]:
    """The judged steps, and notes on items without predictions and predictions without an item.

    Args:
        items: the benchmark, from `read_benchmark`.
        path: JSON lines {"id": "…", "scores": [0.9, …]} or {"id": "…", "labels": [true, …]}.

    Example:
        >>> items = read_benchmark("labelled", "labelled.jsonl")
        >>> steps, notes = steps_from_predictions(items, "predictions.jsonl")
        >>> len(steps.label), notes
        (12, {})
    """
    found: dict[str, Prediction] = {}
    for row in (row for source in find_sources([path]) for row in rows(source)):
        try:
            prediction = decode(row, Prediction)
            if (prediction.scores is None) == (prediction.labels is None):
                raise DataError(f"item {prediction.id}: give either scores or labels")
            if prediction.id in found:
                raise DataError(f"item {prediction.id} occurs twice; give each item once")
        except DataError as error:
            raise DataError(f"{row.where}: {error}", reason=error.reason) from error
        found[prediction.id] = prediction
    matched, notes = _matched(items, found.keys(), path)
    kinds = {found[item.tree.name].scores is None for item in matched}
    if len(kinds) == 2:
        raise DataError(f"{path}: some items have scores and some labels; give one or the other for all")
    chosen = [found[item.tree.name] for item in matched]
    probability = [np.array(p.labels if p.scores is None else p.scores, np.float64) for p in chosen]
    redundancy = [np.array(p.redundancy, np.float64) for p in chosen if p.redundancy is not None]
    if redundancy and len(redundancy) != len(chosen):
        raise DataError(f"{path}: redundancy is given for {len(redundancy)} of {len(chosen)} items; give all or none")
    try:
        return collect_steps(matched, probability, redundancy or None, hard=kinds == {True}), notes
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _matched(items: ItemSet, known: Collection[str], where: str | Path) -> tuple[list[Item], dict[str, int]]:
    """The items that have scores: all of them, save the groups that are in no total and have no score at all."""
    chosen, notes = list(items.items), {}
    for group, called in items.aside.items():
        own = [item for item in chosen if item.group == group]
        if own and all(item.tree.name not in known for item in own):
            notes[f"{called} without predictions"] = len(own)
            chosen = [item for item in chosen if item.group != group]
    without = [item for item in chosen if item.tree.name not in known]
    if without:
        shown = ", ".join(item.tree.name for item in without[:SHOWN])
        raise DataError(
            f"{where}: no scores for {len(without):,} of {len(chosen):,} items ({shown}, …). Score them too, or "
            "measure a part of the benchmark by giving only its files to --data",
            reason="missing-scores",
        )
    names = {item.tree.name for item in items.items}
    if extra := sum(name not in names for name in known):
        notes["predictions for items that are not in the data"] = extra
    return chosen, notes


def steps_from_table(items: ItemSet, path: str | Path) -> tuple[Steps, dict[str, Any]]:
    """The judged steps from a `scores.parquet` of the same data, found by content; and who made the scores, with notes
    on what a critic left unjudged.
    """
    from prism_prm.evaluate.score_files import read_scores, scores_of_trees, unjudged_in_scores

    table = read_scores(path)
    unjudged, stops_at_error = unjudged_in_scores(path)
    if not table.num_rows and not unjudged:
        raise DataError(f"{path}: holds no scores; score this data with `prism score`", reason="missing-scores")
    found = scores_of_trees(table, [item.tree for item in items.items])
    notes: dict[str, int] = {}
    chosen = list(zip(items.items, found, strict=True))
    lacking = sum(len(scores.log_odds_NO) - len(scores.scored) for scores in found)
    if lacking > unjudged or (table.num_rows and not any(scores.scored for scores in found)):
        for item, scores in chosen:
            if not scores.scored:
                raise DataError(
                    f"{path}: no scores for item {item.tree.name}; they were made from other data. Score this data "
                    "with `prism score`, or give the data that was scored",
                    reason="missing-scores",
                )
            if missing := sorted(set(range(len(item.tree.nodes))) - set(scores.scored)):
                raise DataError(
                    f"{path}: item {item.tree.name} has no score for step {missing[0] + 1} ({len(missing)} of "
                    f"{len(item.tree.nodes)} steps lack one); score it again, with a longer context if steps were "
                    "skipped",
                    reason="missing-scores",
                )
    if unjudged:
        counts_unanswered = find_benchmark(items.name).counts_unanswered
        chosen, notes = _judged_items(chosen, stops_at_error, counts_unanswered, path)
    outputs = found[0].outputs
    redundancy = [scores.named("redundancy") for _, scores in chosen] if "redundancy" in outputs else None
    kept, probability = [item for item, _ in chosen], [scores.probability for _, scores in chosen]
    steps = collect_steps(kept, probability, redundancy, with_gaps=bool(unjudged))
    model_hash = table["model_hash"][0].as_py() if table.num_rows else ""
    return steps, {"model_hash": model_hash, "outputs": list(outputs), "notes": notes}


def _judged_items(
    found: list[tuple[Item, TreeScores]], stops_at_error: bool, counts_unanswered: bool, path: str | Path
) -> tuple[list[tuple[Item, TreeScores]], dict[str, int]]:
    """The items that a critic judged as far as it judges any, or all that count; and notes on what it left out."""

    def is_judged(scores: TreeScores) -> bool:
        last = len(scores.scored) - 1
        if last + 1 == len(scores.log_odds_NO):
            return True
        # Nothing is missing before the first wrong step, where such a critic stops.
        return stops_at_error and scores.scored == list(range(last + 1)) and bool(scores.log_odds_NO[last, 0] < 0)

    judged = [(item, scores) for item, scores in found if is_judged(scores)]
    if not judged and not counts_unanswered:
        raise DataError(
            f"{path}: the critic gave no verdict on a single item; see its replies, or choose another --critic",
            reason="missing-scores",
        )
    without = (
        "items without a verdict of the critic, which match nothing"
        if counts_unanswered
        else "items left out because the critic gave no verdict"
    )
    notes = {
        without: len(found) - len(judged),
        "steps after a wrong one, which the critic does not judge": sum(
            len(scores.log_odds_NO) - len(scores.scored) for _, scores in judged
        ),
    }
    return found if counts_unanswered else judged, {name: count for name, count in notes.items() if count}


def score_benchmark(
    prm: Scorer,
    items: ItemSet,
    folder: str | Path,
    *,
    store: str | Path | None = None,
    advance: Advance = ignore,
) -> Path:
    """Write the scores table of a benchmark, or find it done; work that was stopped is resumed."""
    from prism_prm.evaluate.score_files import write_scores

    path = Path(folder) / f"{items.name}.scores.parquet"
    trees = [item.tree for item in items.items]
    if not prm.judges_every_step and find_benchmark(items.name).needs_every_step:
        raise ConfigError(
            f"{items.name} needs a verdict on every step, but this critic judges none after the first wrong one; "
            "choose another --critic"
        )
    report = write_scores(prm, trees, path, store=store, advance=advance)
    if unscored := sum(len(tree.nodes) for tree in trees) - report.steps - report.unjudged:
        raise DataError(
            f"{items.name}: {unscored:,} steps exceed the context of {prm.context:,} tokens and have no "
            "score; raise --context, or score them without their earliest steps: --on-too-long drop-left-steps"
        )
    return path
