"""Roles and windows of a PRM: packed, in sessions and on the server, against plain sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_prm import ConfigError, load_prm
from prism_prm.evaluate.score_files import read_scores, scores_of_trees, write_scores
from prism_prm.models.card import Card, read_card
from prism_prm.models.prm import PRM
from prism_prm.segments import without_tags
from prism_prm.serve.models import served_model
from prism_prm.tree import Step, StepTree
from tiny import FAMILY_MODELS

STEPS = ["<think>x = 1", "so y = 2", "Wait, y = 3\n</think>", "then z = 3", "the answer is 3."]
PROBLEM = "Let x be 1. What is x + 2?"


def copied(prm: PRM, **changes: Any) -> PRM:
    card = replace(prm.card, **{key: value for key, value in changes.items() if key in ("thinking", "segmenter")})
    options = {key: value for key, value in changes.items() if key in ("context", "on_too_long")}
    return PRM(prm.module, prm.family, card, **options)


def everywhere(prm: PRM, steps: list[str]) -> list[float]:
    """The scores of a solution, which are the same packed with a branch, in a session and on the server."""
    whole = prm.score(PROBLEM, steps)
    nodes = tuple(map(Step, [*steps, "another end"]))
    tree = StepTree(0, PROBLEM, nodes, (*range(-1, len(steps) - 1), len(steps) - 2), ())
    (packed,) = prm.score_trees([tree])
    assert packed.probability[:-1] == pytest.approx(whole, abs=1e-9, nan_ok=True)
    with prm.session([PROBLEM]) as session:
        node, grown = session.roots[0], []
        for step in steps:
            (node,) = session.extend([(node, step)])
            grown.append(node.probability)
    assert grown == pytest.approx(whole, abs=1e-9, nan_ok=True)
    for cache in (0, 10**8):
        model = served_model("m", prm, cache)
        (served,) = model.score([("k", model.item(StepTree.chain(PROBLEM, steps)))])
        probability = 1 / (1 + np.exp(-served.log_odds_NO[:, 0]))
        assert probability.tolist() == pytest.approx(whole, abs=1e-7, nan_ok=True)
    return whole


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_what_becomes_of_thinking(tiny_prm: Callable[..., Any], family: str, kind: str) -> None:
    prm = tiny_prm(family, kind)
    plain = [without_tags(step) for step in STEPS]
    assert everywhere(prm, STEPS) == pytest.approx(prm.score(PROBLEM, plain), abs=1e-9)
    nan = float("nan")
    context = everywhere(copied(prm, thinking="context"), STEPS)
    assert context == pytest.approx([nan] * 3 + prm.score(PROBLEM, plain)[3:], abs=1e-9, nan_ok=True)
    dropped = everywhere(copied(prm, thinking="dropped"), STEPS)
    assert dropped == pytest.approx([nan] * 3 + prm.score(PROBLEM, plain[3:]), abs=1e-9, nan_ok=True)
    room = len(prm.family.step_ids(plain[2], 0)[0])
    tail = everywhere(copied(prm, thinking=f"last-{room}"), STEPS)
    assert tail == pytest.approx([nan] * 3 + prm.score(PROBLEM, plain[2:])[1:], abs=1e-9, nan_ok=True)
    assert len({copied(prm, thinking=one).identity() for one in ("scored", "context", "dropped", "last-9")}) == 4


def test_tables_of_scores_leave_thinking_out(tiny_prm: Callable[..., Any], tmp_path: Path) -> None:
    prm, trees = copied(tiny_prm("qwen", "qwen2"), thinking="context"), [StepTree.chain(PROBLEM, STEPS)]
    report = write_scores(prm, trees, tmp_path / "scores.parquet")
    assert (report.steps, report.unjudged, report.too_long) == (2, 3, 0)
    (found,) = scores_of_trees(read_scores(tmp_path / "scores.parquet"), trees)
    assert found.scored == [3, 4]
    assert found.probability[3:].tolist() == prm.score(PROBLEM, STEPS)[3:]


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_windows_are_exact_where_the_text_fits(tiny_prm: Callable[..., Any], family: str, kind: str) -> None:
    prm = tiny_prm(family, kind)
    steps = [f"x = {i}" for i in range(12)]
    whole = prm.score(PROBLEM, steps)
    tree = StepTree.chain(PROBLEM, steps)
    encoded = prm.encode_tree(tree)
    context = encoded.path_tokens(7)
    cut = copied(prm, context=context, on_too_long="window")
    windowed = everywhere(cut, steps)
    assert windowed[:8] == pytest.approx(whole[:8], abs=1e-9)
    (scores,) = cut.score_trees([tree])
    assert scores.too_long == (8, 9, 10, 11)
    assert all(0 <= score <= 1 for score in windowed)
    # The first step of the second window follows the last steps that take up half of the room.
    room, used, first = (context - len(encoded.prompt)) / 2, 0, 8
    while (used := used + len(encoded.ids[first - 1])) <= room:
        first -= 1
    assert windowed[8] == pytest.approx(prm.score(PROBLEM, steps[first:9])[-1], abs=1e-9)
    fits = copied(prm, context=encoded.path_tokens(11), on_too_long="window")
    assert fits.score(PROBLEM, steps) == pytest.approx(whole, abs=1e-9)


def test_the_card_keeps_the_segmenter(tiny_prm: Callable[..., Any], tmp_path: Path) -> None:
    prm = tiny_prm("qwen", "qwen2")
    prm.save(tmp_path / "plain")
    assert "segmenter" not in (tmp_path / "plain" / "prism.json").read_text()
    copied(prm, segmenter="thinking:99", thinking="last-512").save(tmp_path / "prm")
    card = read_card(tmp_path / "prm")
    assert card is not None
    assert (card.segmenter, card.thinking) == ("thinking:99", "last-512")
    assert "cut by the segmenter `thinking:99`" in (tmp_path / "prm" / "README.md").read_text()
    again = load_prm(tmp_path / "prm", segmenter="sentence")
    assert (again.card.segmenter, again.card.thinking) == ("sentence", "last-512")  # type: ignore[union-attr]
    for wrong in ({"segmenter": "lines"}, {"thinking": "hidden"}):
        with pytest.raises(ConfigError, match=r"lines|hidden"):
            Card("qwen", **wrong)  # type: ignore[arg-type]


def test_the_old_spelling_names_the_new_one(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("qwen", "qwen2")
    with pytest.raises(ConfigError, match="is now called window"):
        copied(prm, on_too_long="drop-left-steps")
