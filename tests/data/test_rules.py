from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from prism_prm import annotated_pairs, lookahead_pairs, read_trees
from prism_prm.data.pair_rules import PairSettings
from prism_prm.errors import ConfigError
from prism_prm.tree import ROOT, Step, StepPair, StepTree

OFF = PairSettings(audit="off")

TREE = StepTree(
    3,
    "1+1?",
    (
        Step("right", 1.0),  # 0, the first trunk step
        Step("also right", 1.0),
        Step("wrong", 0.0),
        Step("wrong", 0.0),  # the same text again: one candidate
        Step("right", 0.0),  # rated both ways: no pair with itself
        Step("unrated"),
        Step("second", 1.0, None, "human"),  # 6, under 0
        Step("bad second", 0.0),
        Step("third", 0.0),  # 8, under 6
    ),
    (ROOT, ROOT, ROOT, ROOT, ROOT, ROOT, 0, 0, 6),
    (0, 6, 8),
)


def ids(pairs: list[StepPair]) -> list[tuple[int, int, int]]:
    return [(pair.position, pair.chosen, pair.rejected) for pair in pairs]


def test_annotated_pairs_are_all_combinations_of_different_texts() -> None:
    drops: Counter[str] = Counter()
    pairs = annotated_pairs(TREE, drops=drops)
    assert ids(pairs) == [(0, 0, 2), (0, 1, 2), (0, 1, 4), (1, 6, 7)]
    assert pairs[0] == StepPair(0, 3, 0, 0, 2, 3, "annotated")
    assert +drops == {"repeated_text": 1, "same_text": 1}


def test_annotated_pairs_can_be_limited_by_the_seed() -> None:
    drops: Counter[str] = Counter()
    kept = ids(annotated_pairs(TREE, PairSettings(max_per_position=1), drops=drops))
    assert len(kept) == 2
    assert kept[1] == (1, 6, 7)
    assert drops["over_limit"] == 2
    seeds = {ids(annotated_pairs(TREE, PairSettings(max_per_position=1, seed=seed)))[0] for seed in range(20)}
    assert seeds == {(0, 0, 2), (0, 1, 2), (0, 1, 4)}


def test_lookahead_starts_at_right_steps_only() -> None:
    assert ids(lookahead_pairs(TREE, OFF)) == [(0, 0, 6), (0, 0, 8), (1, 6, 8)]
    wrong_first = StepTree.chain("p", [Step("a", 0.0), Step("b", 1.0), Step("c"), Step("d", 1.0)])
    assert ids(lookahead_pairs(wrong_first, OFF)) == [(1, 1, 2), (1, 1, 3)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PairSettings(audit="off", lookahead="none"), []),
        (PairSettings(audit="off", min_gap=2), [(0, 0, 8)]),
        (PairSettings(audit="off", max_gap=1), [(0, 0, 6), (1, 6, 8)]),
    ],
)
def test_lookahead_gaps(settings: PairSettings, expected: list[tuple[int, int, int]]) -> None:
    assert ids(lookahead_pairs(TREE, settings)) == expected


def test_lookahead_takes_n_per_position() -> None:
    solution = StepTree.chain("p", [Step(f"step {i}", 1.0) for i in range(10)])
    pairs = ids(lookahead_pairs(solution, PairSettings(audit="off", lookahead=2)))
    assert Counter(position for position, _, _ in pairs) == {**dict.fromkeys(range(8), 2), 8: 1}


def test_equal_texts_never_become_negatives() -> None:
    tree = StepTree.chain("p", [Step("So x = 1", 1.0), Step("so  X = 1", 1.0), Step("So x = 1", 1.0)])
    assert ids(lookahead_pairs(tree, OFF)) == [(0, 0, 1), (1, 1, 2)]
    for audit in ("keep", "drop"):
        drops: Counter[str] = Counter()
        assert lookahead_pairs(tree, PairSettings(audit=audit), drops=drops) == []
        assert +drops == {"same_text": 1, "same_normalized_text": 2}


def test_soft_labels_have_thresholds() -> None:
    tree = StepTree(0, "p", (Step("a", 0.8), Step("b", 0.6), Step("c", 0.5), Step("d", 0.1)), (ROOT,) * 4, (0,))
    assert ids(annotated_pairs(tree)) == [(0, 0, 3), (0, 1, 3)]
    strict = PairSettings(positive_above=0.7, negative_below=0.3)
    assert ids(annotated_pairs(tree, strict)) == [(0, 0, 3)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lookahead": 0}, {"min_gap": 0}, {"max_gap": 1, "min_gap": 2}, {"max_per_position": 0}, {"random": -1},
        {"perturbed": -1}, {"negative_below": 0.6}, {"positive_above": 2.0},
    ],
)  # fmt: skip
def test_settings_that_contradict_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).split("_")[0]):
        PairSettings(**wrong)


def test_counts_on_prm800k(real_data: Path) -> None:
    drops: Counter[str] = Counter()
    annotated = lookahead = 0
    for tree in read_trees(real_data / "prm800k" / "phase1_train.jsonl"):
        annotated += len(annotated_pairs(tree, drops=drops))
        lookahead += len(lookahead_pairs(tree, OFF))
    assert (annotated, lookahead, drops["same_text"]) == (26621, 209749, 16)
