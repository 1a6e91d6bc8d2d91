"""`look_at`: the first solutions of a file with each PRM's score of every step. `prism score --show` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from prism_prm.aggregate import card_values, choose_aggregator, choose_threshold, is_scored, solution_score
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.console import progress, say
from prism_prm.data.formats import ReadOptions
from prism_prm.data.inputs import as_places
from prism_prm.evaluate.score_files import TreesToScore, with_segmenter
from prism_prm.imports import importing
from prism_prm.scorer import Scorer
from prism_prm.tree import StepTree


@dataclass(frozen=True, slots=True)
class JudgedSolution:
    """One PRM's scores of a solution."""

    prm: str
    threshold: float
    aggregator: str
    probabilities: tuple[float | None, ...]
    """P(right) of each step; None without a score."""
    first_error: int | None
    """The first step at or below the threshold; None if there is none, or for a tree of candidates."""
    score: float | None
    """The solution's score; None if a step has none, or for a tree of candidates."""

    def is_right(self, step: int) -> bool | None:
        """Whether a step counts as right; None without a score."""
        probability = self.probabilities[step]
        return None if probability is None else probability > self.threshold


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A solution, or a tree of candidate steps, with the scores of each PRM."""

    tree: StepTree
    by_prm: tuple[JudgedSolution, ...]


def look_at(
    prms: Mapping[str, Scorer | str | Path],
    inputs: str | Path | Sequence[str | Path],
    *,
    limit: int | None = 10,
    threshold: float | None = None,
    format: str = "auto",
    options: ReadOptions | None = None,
    prm_options: PrmOptions | None = None,
) -> list[LookedAt]:
    """Score the first solutions of files step by step with each PRM; nothing is written.

    Args:
        prms: PRMs, or their folders or hub ids, by name.
        inputs: files, folders or hub datasets: problems with steps, trees, or pools of solutions.
        limit: the number of solutions, starting with the first; None for all.
        threshold: a step counts as right above this probability; by default each PRM's own.
        format: the format of the input; by default it is recognized by the fields of the records.
        options: how to read records, and what to do with bad ones.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

    Example:
        >>> [first, *_] = look_at({"mine": "my-prm"}, "solutions.jsonl", limit=2)
        >>> [judged.prm for judged in first.by_prm], len(first.by_prm[0].probabilities)
        (['mine'], 2)
    """
    source = TreesToScore(as_places(inputs), format, with_segmenter(options, prms.values(), prm_options))
    trees = list(islice(source, limit))
    if source.left_out:
        say(f"left out: {', '.join(f'{n} {reason}' for reason, n in source.left_out.items())}")
    with importing():
        from prism_prm.backends.load_prm import open_prm
    columns = []
    for name, place in prms.items():
        scorer = open_prm(place, replace(prm_options or PrmOptions(), on_too_long="skip"), name)
        with progress(f"scoring, {name}", len(trees), unit="solutions") as advance:
            scored = scorer.score_trees(trees, advance=advance)
        card = card_values(scorer)
        aggregator, cutoff = choose_aggregator(None, card).value, choose_threshold(threshold, card).value
        column = []
        for tree, scores in zip(trees, scored, strict=True):
            values = tuple(None if np.isnan(value) else float(value) for value in scores.probability)
            first_error = score = None
            if all(parent == number - 1 for number, parent in enumerate(tree.parents)):  # a single solution
                wrong = (i for i, value in enumerate(values) if value is not None and value <= cutoff)
                texts = tree.texts(range(len(values)))
                first_error = next(wrong, None)
                if is_scored(scores.probability, texts):
                    score = solution_score(scores.probability, aggregator, texts)
            column.append(JudgedSolution(name, cutoff, aggregator, values, first_error, score))
        columns.append(column)
        for note in scorer.notes():
            say(note)
    return [LookedAt(tree, tuple(column[i] for column in columns)) for i, tree in enumerate(trees)]
