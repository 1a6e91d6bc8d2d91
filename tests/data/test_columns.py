from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.data.formats import Draft
from prism_prm.data.pair_arrays import PairColumns, annotated_columns, lookahead_columns
from prism_prm.data.pair_rules import PairSettings, annotated_pairs, lookahead_pairs, priority
from prism_prm.data.tables import Forest
from prism_prm.tree import StepTree
from strategies import forests

pair_settings = st.builds(
    PairSettings,
    lookahead=st.sampled_from(["all", "none", 1, 2]),
    min_gap=st.integers(1, 3),
    max_gap=st.sampled_from([None, 3, 4]),
    audit=st.sampled_from(["drop", "keep", "off"]),
    origin=st.sampled_from(["any", "model"]),
    max_per_position=st.sampled_from([None, 1, 2]),
    positive_above=st.sampled_from([0.5, 0.7]),
    negative_below=st.sampled_from([0.3, 0.5]),
    seed=st.integers(0, 5),
)


def as_rows(pairs: PairColumns, first_id: int) -> list[tuple[int, ...]]:
    columns = (pairs.tree + first_id, pairs.position, pairs.chosen, pairs.rejected)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=300, deadline=None)
@given(forests(), pair_settings, st.integers(0, 3))
def test_columns_say_what_the_rules_say(trees: list[StepTree], rules: PairSettings, first_id: int) -> None:
    trees = [Draft.of(tree).tree(tree.tree_id + first_id) for tree in trees]
    forest = Forest.of([Draft.of(tree) for tree in trees])
    for slow, fast in ((annotated_pairs, annotated_columns), (lookahead_pairs, lookahead_columns)):
        expected_drops: Counter[str] = Counter()
        drops: Counter[str] = Counter()
        expected = [pair for tree in trees for pair in slow(tree, rules, drops=expected_drops)]
        found = fast(forest, first_id, rules, drops)
        assert as_rows(found, first_id) == [(p.tree_id, p.position, p.chosen, p.rejected) for p in expected]
        assert +drops == +expected_drops


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**31), min_size=1, max_size=3))
def test_priority_is_the_same_for_arrays(seed: int, parts: list[int]) -> None:
    arrays: list[Any] = [np.array([part], dtype=np.uint64) for part in parts]
    assert int(priority(seed, *arrays)[0]) == priority(seed, *parts)


def test_priority_looks_random() -> None:
    drawn = np.array([priority(0, i) / 2**64 for i in range(4000)])
    assert abs(drawn.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("trees", [[], [StepTree(0, "p", (), (), ())]])
def test_no_nodes_no_pairs(trees: list[StepTree]) -> None:
    forest = Forest.of([Draft.of(tree) for tree in trees])
    assert len(annotated_columns(forest, 0, PairSettings(), Counter())) == 0
    assert len(lookahead_columns(forest, 0, PairSettings(), Counter())) == 0
