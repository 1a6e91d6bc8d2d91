"""The curriculum: bins, edges, drops, and the settings it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.curriculum import PAPER_BINS, Curriculum, assign
from prism_prm.errors import ConfigError, DataError


def test_edges_belong_to_the_bin_above_and_the_topmost_bin_is_closed() -> None:
    margins = np.array([1.0, 0.5, 0.4999, 0.3, 0.2, 0.1, 0.0999, 0.0, -1e-9, -1.0])
    binned = assign(margins, Curriculum())
    assert [indices.tolist() for indices in binned.rounds] == [[0, 1], [2, 3], [4], [5]]
    assert binned.bin_sizes == {"0.5 to 1": 2, "0.3 to 0.5": 2, "0.2 to 0.3": 1, "0.1 to 0.2": 1}
    assert binned.dropped == {"negative": 2, "below-lowest-bin": 2, "above-highest-bin": 0}


def test_none_trains_the_pairs_of_all_bins_in_one_round() -> None:
    margins = np.array([0.15, 0.9, -0.2, 0.35])
    binned = assign(margins, Curriculum(mode="none"))
    assert [indices.tolist() for indices in binned.rounds] == [[0, 1, 3]]
    assert binned.bin_sizes["0.5 to 1"] == 1


def test_bins_that_reach_below_zero_keep_negative_margins() -> None:
    binned = assign(np.array([-1.0, 0.0, 1.0]), Curriculum(bins=((-1, 0.1), (0.1, 1.0))))
    assert [indices.tolist() for indices in binned.rounds] == [[2], [0, 1]]
    assert sum(binned.dropped.values()) == 0


def test_bins_may_be_written_in_any_order() -> None:
    assert Curriculum(bins=PAPER_BINS[::-1]).easy_to_hard == PAPER_BINS
    assert Curriculum().round_names() == ["1_0.5_to_1", "2_0.3_to_0.5", "3_0.2_to_0.3", "4_0.1_to_0.2"]


@pytest.mark.parametrize(
    ("bins", "message"),
    [
        ((), "empty"),
        (((0.5, 1.0), (0.2, 0.4)), "a hole between"),
        (((0.5, 1.0), (0.2, 0.6)), "an? overlap between"),
        (((0.6, 0.4),), "-1 <= lo < hi <= 1"),
        (((0.5, 1.5),), "-1 <= lo < hi <= 1"),
    ],
)
def test_impossible_bins(bins: tuple[tuple[float, float], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Curriculum(bins=bins)


def test_rescoring_needs_rounds() -> None:
    with pytest.raises(ConfigError, match="rescore"):
        Curriculum(mode="none", rescore=True)


def test_a_margin_that_is_no_number_is_an_error() -> None:
    with pytest.raises(DataError, match="margin 1 is nan"):
        assign(np.array([0.1, np.nan]), Curriculum())


@given(st.lists(st.floats(-1, 1), max_size=50))
def test_every_pair_is_in_one_round_or_dropped(margins: list[float]) -> None:
    binned = assign(np.array(margins, dtype=float), Curriculum())
    used = np.concatenate(binned.rounds)
    assert len(set(used.tolist())) == len(used)
    assert len(used) + sum(binned.dropped.values()) == len(margins)
    assert all(0.1 <= margins[i] <= 1 for i in used)
