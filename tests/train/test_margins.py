"""Margins are made of scores from the store, and an old score is never met by another text, model or setting."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from some_pairs import random_examples

from prism_prm.calibration import sigmoid
from prism_prm.data.pair_examples import Examples, labeled_steps
from prism_prm.models.prm import PRM
from prism_prm.store import ScoreStore
from prism_prm.train.margins import margins_of, score_examples, write_margins

Tiny = Callable[..., Any]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trees each call of a PRM scored."""
    calls: list[int] = []
    score_trees = PRM.score_trees

    def counting(self: PRM, trees: Any, *more: Any, **options: Any) -> Any:
        calls.append(len(trees))
        return score_trees(self, trees, *more, **options)

    monkeypatch.setattr(PRM, "score_trees", counting)
    return calls


def with_texts(examples: Examples, change: Callable[[str], str]) -> Examples:
    """The same examples by their ids, with another text of tree 0's last step."""
    tree = examples.trees[0]
    nodes = (*tree.nodes[:-1], replace(tree.nodes[-1], text=change(tree.nodes[-1].text)))
    return replace(examples, trees={**examples.trees, 0: replace(tree, nodes=nodes)})


def with_problem(examples: Examples) -> Examples:
    return replace(examples, trees={**examples.trees, 1: replace(examples.trees[1], problem="another problem")})


def configured(prm: PRM, **settings: Any) -> PRM:
    other = copy.copy(prm)
    for name, value in settings.items():
        setattr(other, name, value)
    return other


@pytest.mark.parametrize("kind", ["pairs", "steps"])
def test_scores_are_taken_over_only_if_all_that_decides_them_is_the_same(
    tmp_path: Path, tiny_prm: Tiny, scored: list[int], kind: str
) -> None:
    prm = tiny_prm("qwen", "qwen2")
    pairs = random_examples()
    examples = pairs if kind == "pairs" else labeled_steps(pairs.trees)

    def scores(prm: PRM, examples: Examples, folder: str = "store") -> np.ndarray:
        scored.clear()
        return score_examples(ScoreStore(tmp_path / folder, prm), examples)

    first = scores(prm, examples)
    assert scored
    assert np.array_equal(scores(prm, examples), first)
    assert not scored, "the same again: nothing is scored"
    assert np.array_equal(scores(prm, examples.take(np.arange(3))), first[:3])
    assert not scored, "fewer of them"
    others: dict[str, tuple[PRM, Examples]] = {
        "a text": (prm, with_texts(examples, lambda text: text + " more")),
        "a problem": (prm, with_problem(examples)),
        "context": (configured(prm, context=prm.context - 1), examples),
        "on_too_long": (configured(prm, on_too_long="window"), examples),
        "dtype": (tiny_prm("qwen", "qwen2", "float32"), examples),
        "family": (tiny_prm("skywork", "qwen2"), examples),
    }
    for what, (other_prm, other) in others.items():
        found = scores(other_prm, other)
        assert scored, what
        # A step that is the same keeps its score, which was rounded beside other steps; a wrong one would be far off.
        np.testing.assert_allclose(found, scores(other_prm, other, f"fresh {what}"), rtol=1e-12, err_msg=what)


def test_margins_follow_their_pairs(tmp_path: Path, tiny_prm: Tiny) -> None:
    """A row per pair in the order of the pairs, whatever the order of the trees."""
    prm = tiny_prm("qwen", "qwen2")
    pairs = random_examples()
    shuffled = pairs.take(np.random.default_rng(0).permutation(len(pairs)))
    log_odds_N2 = score_examples(ScoreStore(tmp_path, prm), shuffled)
    write_margins(tmp_path / "m.parquet", shuffled, log_odds_N2, "a hash")
    table = pq.read_table(tmp_path / "m.parquet")
    assert table["pair_id"].to_pylist() == shuffled.ids.tolist()
    i = 3
    tree, chosen = shuffled.trees[int(shuffled.tree[i])], int(shuffled.chosen[i])
    path = tree.path(chosen)
    rejected = shuffled.trees[int(shuffled.rejected_tree[i])].nodes[int(shuffled.rejected[i])].text
    right = prm.score(tree.problem, tree.texts(path))[-1]
    wrong = prm.score(tree.problem, [*tree.texts(path[:-1]), rejected])[-1]
    assert table["margin"].to_pylist()[i] == pytest.approx(right - wrong, abs=1e-9)
    assert margins_of(log_odds_N2) == pytest.approx(sigmoid(log_odds_N2[:, 0]) - sigmoid(log_odds_N2[:, 1]))
