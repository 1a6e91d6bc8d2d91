"""The negatives that the paper argues against, for ablations: perturbed steps, and steps of other problems."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prism_prm.arrays import Ints
from prism_prm.data.draft import Draft
from prism_prm.pairs.same_problem import normalise_problem
from prism_prm.pairs.settings import PairSettings, priority
from prism_prm.pairs.vectorised import NO_PAIRS, PairColumns

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIGN = re.compile(r"(?<=\s)[+\-−<>](?=\s)|(?<=[\d)}])[+\-−](?=[\w(\\])")
_OTHER_SIGN = {"+": "-", "-": "+", "−": "+", "<": ">", ">": "<"}
_ATTEMPTS = 64
"""How often a draw from another problem is repeated before giving up."""


def perturb(text: str, rng: random.Random) -> str | None:
    """The text with one number or sign changed; None if it has neither."""
    places = [match.span() for pattern in (_NUMBER, _SIGN) for match in pattern.finditer(text)]
    if not places:
        return None
    start, end = rng.choice(places)
    found = text[start:end]
    return text[:start] + (_OTHER_SIGN.get(found) or _other_number(found, rng)) + text[end:]


def _other_number(found: str, rng: random.Random) -> str:
    """A number near the one found, with as many digits after the point."""
    digits = len(found.partition(".")[2])
    units = int(found.replace(".", ""))
    changed = units + rng.choice([-10, -2, -1, 1, 2, 10])
    if changed < 0:
        changed = units + 1
    text = str(changed).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text


def add_perturbed(drafts: Sequence[Draft], first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """Add perturbed copies of right trunk steps to the trees, as further nodes, and pair them with their originals."""
    if not settings.perturbed:
        return NO_PAIRS
    found: list[tuple[int, int, int, int]] = []
    for index, draft in enumerate(drafts):
        rng = random.Random(f"{settings.seed}:{first_id + index}")
        siblings: dict[int, set[str]] = {}
        for parent, text in zip(draft.parents, draft.texts, strict=True):
            siblings.setdefault(parent, set()).add(text)
        for position, node in enumerate(draft.trunk):
            if not settings.is_positive(draft.labels[node]):
                continue
            taken = siblings[draft.parents[node]]
            made = [perturb(draft.texts[node], rng) for _ in range(4 * settings.perturbed)]
            new = [text for text in dict.fromkeys(made) if text is not None and text not in taken]
            new = new[: settings.perturbed]
            drops["nothing_to_change"] += settings.perturbed - len(new)
            for text in new:
                found.append((index, position, node, len(draft.texts)))
                draft.texts.append(text)
                draft.parents.append(draft.parents[node])
                draft.labels.append(None)
                draft.ratings.append(None)
                draft.origins.append("perturbed")
                if draft.estimates is not None:
                    draft.estimates.append(None)
    columns = np.array(found, dtype=np.int64).reshape(-1, 4)
    return PairColumns.of(*columns.T)


_TRUNK_STEP = np.dtype(
    [
        ("tree", np.int64),
        ("position", np.int64),
        ("node", np.int64),
        ("text", np.int64),
        ("problem", np.int64),
        ("split", np.int64),
        ("positive", np.bool_),
    ]
)
"""What is kept of a trunk step; texts and problems as hashes, which are only compared."""

TrunkSteps = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class OtherProblems:
    """All trunk steps that were read, small enough to keep, to draw negatives from once everything is read."""

    settings: PairSettings
    drops: Counter[str]
    kept: list[TrunkSteps] = field(default_factory=list)

    def add(self, tree_id: int, draft: Draft, split: int) -> None:
        """Keep the trunk of a tree; `split` is any number for its split."""
        steps = np.zeros(len(draft.trunk), dtype=_TRUNK_STEP)
        steps["tree"] = tree_id
        steps["position"] = np.arange(len(steps))
        steps["node"] = draft.trunk
        steps["text"] = [hash(draft.texts[node]) for node in draft.trunk]
        steps["problem"] = hash(normalise_problem(draft.problem))
        steps["split"] = split
        steps["positive"] = [self.settings.is_positive(draft.labels[node]) for node in draft.trunk]
        self.kept.append(steps)

    def draw(self) -> tuple[TrunkSteps, TrunkSteps]:
        """Right steps, and for each a step of another problem in the same split; by tree, position and draw."""
        steps = np.concatenate([np.zeros(0, dtype=_TRUNK_STEP), *self.kept])
        anchors, offers = [steps[:0]], [steps[:0]]
        for split in np.unique(steps["split"]):
            pool = steps[steps["split"] == split]
            right = pool[pool["positive"]]
            earlier: list[Ints] = []
            for number in range(self.settings.random):
                drawn = self._draw_once(right, pool, number, earlier)
                self.drops["no_other_problem"] += int(np.count_nonzero(drawn < 0))
                anchors.append(right[drawn >= 0])
                offers.append(pool[drawn[drawn >= 0]])
                earlier.append(drawn)
        anchor, offer = np.concatenate(anchors), np.concatenate(offers)
        order = np.lexsort((anchor["position"], anchor["tree"]))
        return anchor[order], offer[order]

    def _draw_once(self, right: TrunkSteps, pool: TrunkSteps, number: int, earlier: list[Ints]) -> Ints:
        """For each right step the index in the pool of another problem's step, or -1 where none was met."""
        drawn = np.full(len(right), -1)
        for attempt in range(_ATTEMPTS):
            open_ = np.flatnonzero(drawn < 0)
            if not len(open_):
                break
            anchor = right[open_]
            keys = (anchor["tree"].astype(np.uint64), anchor["position"].astype(np.uint64))
            rank = priority(self.settings.seed, *keys, number * _ATTEMPTS + attempt)
            offer = (rank % np.uint64(len(pool))).astype(np.int64)
            good = (pool["problem"][offer] != anchor["problem"]) & (pool["text"][offer] != anchor["text"])
            for before in earlier:
                good &= offer != before[open_]
            drawn[open_[good]] = offer[good]
        return drawn
