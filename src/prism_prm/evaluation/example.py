"""A wrong step that a PRM lets pass, shown with the steps before it and what every PRM says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from prism_prm.evaluation.judged_steps import Steps
from prism_prm.records import ROOT, StepTree
from prism_prm.report import Report, ScoredStep, most_telling

TRUTH = {1: "right", 0: "wrong"}


@dataclass(frozen=True, slots=True)
class WrongStep:
    """A wrong step and those before it, with their texts, which judged steps lack."""

    item: str
    problem: str
    nodes: tuple[int, ...]
    """Places in the item; the last is the wrong step."""
    texts: tuple[str, ...]


def find_wrong_step(trees: Iterable[StepTree], steps: Mapping[str, Steps]) -> WrongStep | None:
    """The one on which PRMs differ most, or that the only PRM scores highest; None where there is none.

    Texts are found by the items' names: where these do not tell items apart, there is no example.
    """
    first = next(iter(steps.values()))
    given = list(trees)
    known = {tree.name: tree for tree in given}
    if len(known) < len(given):
        return None
    places = np.flatnonzero(first.wrong)
    letters = np.concatenate([_letters(known[name]) for name in first.items])[places]
    found = most_telling({prm: own.probability[places] for prm, own in steps.items()}, letters.tolist())
    if found is None:
        return None
    item = int(first.step_item[places[found]])
    tree = known[first.items[item]]
    path = tree.path(int(places[found] - first.starts[item]))
    return WrongStep(tree.name, tree.problem, path, tuple(tree.texts(path)))


def _letters(tree: StepTree) -> list[int]:
    """For every node, how much there is to read up to it."""
    letters: list[int] = []
    for node, parent in zip(tree.nodes, tree.parents, strict=True):
        letters.append(len(node.text) + (0 if parent == ROOT else letters[parent]))
    return letters


def add_wrong_step(report: Report, found: WrongStep, steps: Mapping[str, Steps], *, caption: str) -> None:
    """What every PRM says of it."""
    first = next(iter(steps.values()))
    at = first.starts[first.items.index(found.item)] + np.array(found.nodes)
    scored = [
        ScoredStep(
            text, {prm: float(own.probability[i]) for prm, own in steps.items()}, TRUTH.get(int(first.label[i]), "")
        )
        for text, i in zip(found.texts, at, strict=True)
    ]
    report.example(found.problem, scored, caption=caption)


def read_wrong_step(kept: Any) -> WrongStep | None:
    """What metrics.json keeps of it; None where it keeps none, as an older run's."""
    try:
        return msgspec.convert(kept, WrongStep)
    except msgspec.ValidationError:
        return None
