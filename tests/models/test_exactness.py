"""Scores of packed trees equal those of separate sequences, for every family, layout, split and order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import separate_scores

from prism_prm.models import attention as kernels
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import batch_rows, collate, encode_tree, merge_rows, pack, read_index
from prism_prm.models.prm import batches_of
from prism_prm.tree import ROOT, Step, StepTree
from tiny import FAMILY_MODELS

TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
WORDS = ["x", "= 1", "so y = 2", "12 * 4 = 48", "then z = x + y - 3", "the answer is 3.", "Σ ü 漢", "a\nb", "(-1)"]
steps = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join).map(Step)


@st.composite
def step_trees(draw: st.DrawFn, max_nodes: int = 9) -> StepTree:
    nodes = tuple(draw(st.lists(steps, min_size=1, max_size=max_nodes)))
    parents = tuple(draw(st.integers(ROOT, i - 1)) for i in range(len(nodes)))
    return StepTree(draw(st.integers(0, 9)), "What is " + draw(st.sampled_from(WORDS)) + "?", nodes, parents, ())


COMB = StepTree(
    0,
    "Let x be 1. What is x + 2?",
    tuple(Step(text) for text in ["x = 1", "x = 2", "so y = 3", "so y = 2", "then z = 3", "done", "the answer is 3."]),
    (-1, -1, 0, 0, 2, 2, 4),
    (0, 2, 4, 6),
)
"""A trunk 0-2-4-6 with one alternative at each of its first three positions."""


@contextmanager
def budget(prm: Any, tokens: int) -> Iterator[None]:
    before, prm.token_budget = prm.token_budget, tokens
    try:
        yield
    finally:
        prm.token_budget = before


BLOCKS = [0, 3, 16, 128]
"""Queries per block of attention; 0: dense masks, as on GPUs."""


@contextmanager
def attention(block: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if block:
            patch.setattr(kernels, "BLOCK", block)
        else:
            patch.setattr(PrmModule, "in_blocks", False)
        yield


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("block", BLOCKS)
def test_tree_equals_separate_sequences(
    tiny_prm: Callable[..., Any], family: str, kind: str, dtype: str, block: int
) -> None:
    prm = tiny_prm(family, kind, dtype)
    expected = separate_scores(prm, COMB).double().numpy(force=True)
    with attention(block):
        found = prm.score_trees([COMB])[0].log_odds_NO
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(expected).max()))
    assert np.ptp(expected[:, 0]) > 0.01, "the scores must differ, or the test says nothing"


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(forest=st.lists(step_trees(), min_size=1, max_size=3), tokens=st.integers(1, 400), block=st.sampled_from(BLOCKS))
def test_any_forest_any_budget(
    tiny_prm: Callable[..., Any], family: str, kind: str, forest: list[StepTree], tokens: int, block: int
) -> None:
    if family == "skywork":  # read line by line: a line alone is not what the reference's whole text has
        forest = [t for t in forest if all("\n" not in node.text for node in t.nodes)]
    prm = tiny_prm(family, kind)
    with budget(prm, tokens), attention(block):
        scores = prm.score_trees(forest)
    for tree, found in zip(forest, scores, strict=True):
        expected = separate_scores(prm, tree).numpy(force=True)
        np.testing.assert_allclose(found.log_odds_NO, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    forest=st.lists(step_trees(max_nodes=14), min_size=1, max_size=4),
    row_tokens=st.integers(1, 300),
    batch_tokens=st.integers(1, 600),
    merged=st.booleans(),
    cost=st.sampled_from([0.0, 0.01]),
    block=st.sampled_from(BLOCKS),
    seed=st.randoms(),
)
def test_any_layout(
    tiny_prm: Callable[..., Any], forest: list[StepTree], row_tokens: int, batch_tokens: int, merged: bool, cost: float,
    block: int, seed: Any,
) -> None:  # fmt: skip
    """Rows split, merged, costed, shuffled and batched anyhow give the scores of whole trees one by one."""
    prm = tiny_prm("token-classification", "mistral")
    rows = pack([prm.encode_tree(tree) for tree in forest], row_tokens, pair_cost=cost)
    if merged:
        rows = merge_rows(rows, row_tokens)
    seed.shuffle(rows)
    found: dict[tuple[int, int], float] = {}
    with attention(block):
        for batch in map(collate, batch_rows(rows, batch_tokens)):
            found |= zip(batch.owners, prm.module(batch)[:, 0].tolist(), strict=True)
    assert len(found) == sum(len(tree.nodes) for tree in forest)
    for i, tree in enumerate(forest):
        whole = collate(pack([prm.encode_tree(tree)], 10**6))
        for (_, node), score in zip(whole.owners, prm.module(whole)[:, 0].tolist(), strict=True):
            assert found[i, node] == pytest.approx(score, abs=1e-9)


def test_a_path_beyond_the_budget_is_laid_out_once(tiny_prm: Callable[..., Any]) -> None:
    """Steps after the budget do not repeat the path before them, each in a row of its own."""
    prm = tiny_prm("token-classification", "mistral")
    trunk = [Step(f"then {i} more") for i in range(40)]
    wrong = [Step(f"then {i} less") for i in range(40)]
    tree = StepTree(0, "a long way", (*trunk, *wrong), (ROOT, *range(39), ROOT, *range(39)), tuple(range(40)))
    encoded = prm.encode_tree(tree)
    longest = max(encoded.path_tokens(node) for node in range(80))
    rows = pack([encoded], longest // 4)
    assert len(rows) <= 8  # each takes half of the positions that are left
    assert max(map(len, rows)) <= longest + 10  # up to the end of the step that is read


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
@pytest.mark.parametrize("block", [0, 16])
def test_gradients_equal_those_of_separate_sequences(tiny_prm: Callable[..., Any], kind: str, block: int) -> None:
    family = {"qwen2": "qwen", "mistral": "token-classification"}[kind]
    prm = tiny_prm(family, kind)
    pairs = [(0, 1), (2, 3), (4, 5)]

    def loss_of(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.logsigmoid(chosen - rejected)

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        prm.module.zero_grad()
        loss.backward()
        return {name: p.grad.clone() for name, p in prm.module.named_parameters() if p.grad is not None}

    separate = separate_scores(prm, COMB)[:, 0]
    expected = gradients(sum(loss_of(separate[a], separate[b]) for a, b in pairs))
    for row_tokens in (10**6, 40):  # whole, and split so that trunks are repeated
        rows = pack([encode_tree(COMB, prm.family)], row_tokens, [pairs])
        assert (len(rows) > 1) == (row_tokens == 40)
        loss = torch.zeros((), dtype=torch.float64)
        for row in rows:
            batch = collate([row])
            with attention(block):
                scores, at = prm.module(batch)[:, 0], read_index(batch)
            loss = loss + sum(loss_of(scores[at[0, a]], scores[at[0, b]]) for a, b in pairs if (0, a) in at)
        found = gradients(loss)
        assert set(found) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9)
    prm.module.zero_grad()


def test_flex_forward_equals_sdpa(tiny_prm: Callable[..., Any]) -> None:
    for family, kind in (("qwen", "qwen2-window"), ("token-classification", "mistral"), ("rlhflow", "llama")):
        prm = tiny_prm(family, kind, "float32")
        expected = prm.score_trees([COMB, COMB])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prm.module.config, "_attn_implementation", "flex_attention")
            found = prm.score_trees([COMB, COMB])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.log_odds_NO, b.log_odds_NO, atol=1e-4, rtol=1e-4)


def test_batches_have_every_read_once(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("qwen", "qwen2")
    rows = pack([prm.encode_tree(COMB)] * 3, 80)
    owners = [owner for batch in batches_of(prm.module, rows, 100) for row in batch for owner in row.owners]
    assert sorted(owners) == [(tree, node) for tree in range(3) for node in range(len(COMB.nodes))]
