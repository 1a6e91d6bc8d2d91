"""What scoring does with order, length, memory, and input or models that cannot be scored."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from references import REFERENCES, separate_scores
from test_exactness import COMB
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import Gemma3TextConfig, Gemma3TextModel, PreTrainedTokenizerFast

from prism_prm import PrismError, Step, StepTree, init_prm
from prism_prm.calibration import sigmoid
from prism_prm.models.attention import attention_windows, dense_mask
from prism_prm.models.families.base import TextEncoder
from prism_prm.models.packing import collate, depth_first, encode_tree, pack

SOLUTIONS = [("What is 1 + 2?", ["x = 1", "so y = 2"]), ("y?", ["12 * 4 = 48"]), ("Compute.", ["a", "b", "c", "done"])]


@pytest.fixture
def prm(tiny_lm: Callable[..., Path]) -> Any:
    """A PRM of its own, that a test may change."""
    return init_prm(tiny_lm("llama"), family="token-classification")


def test_mask_by_hand() -> None:
    """prompt p; node 0 "a"; its children 1 "b" and 2 "c": each token sees its ancestors and itself."""
    tree = StepTree(0, "p", (Step("a"), Step("b"), Step("c")), (-1, 0, 0), (0, 1))

    class Letters:
        def prompt_ids(self, problem: str) -> list[int]:
            return [ord(problem)]

        def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
            return [ord(text), 46 + index], 0  # a letter that is read, then a mark that only descendants see

    batch = collate(pack([encode_tree(tree, Letters())], 100))
    assert "".join(map(chr, batch.input_ids_BL[0].tolist())) == "pa.bc"
    assert batch.position_ids_BL.tolist() == [[0, 1, 2, 3, 3]]
    assert batch.owners == ((0, 0), (0, 1), (0, 2))
    assert batch.read_col_R.tolist() == [1, 3, 4]
    assert dense_mask(batch.end_BL, batch.position_ids_BL, None)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 0, 1],
    ]
    assert dense_mask(batch.end_BL, batch.position_ids_BL, 2)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 0, 1],
    ]


def test_depth_first_puts_small_branches_first() -> None:
    assert depth_first((-1, -1, 0, 0, 2, 2, 4)) == [1, 0, 3, 2, 5, 4, 6]


def test_only_wanted_nodes_and_ancestors_are_laid_out(prm: Any) -> None:
    tree = prm.encode_tree(COMB)
    (row,) = pack([tree], 10**6, [[(3,)]])
    assert row.owners == ((0, 3),)
    assert len(row) == len(tree.prompt) + len(tree.ids[0]) + len(tree.ids[3])
    scores = prm.score_trees([COMB], [[3, 6]])[0]
    assert scores.scored == [3, 6]
    np.testing.assert_allclose(scores.probability[[3, 6]], prm.score_trees([COMB])[0].probability[[3, 6]], atol=1e-5)


def test_groups_stay_together(prm: Any) -> None:
    groups = [(0, 1), (2, 3), (4, 5)]
    rows = pack([prm.encode_tree(COMB)], 1, [groups])
    assert [{node for _, node in row.owners} for row in rows] == [{0, 1}, {2, 3}, {4, 5}]


def test_leaves_are_added_behind(prm: Any) -> None:
    tree = COMB.with_leaves([(0, COMB.nodes[4]), (-1, Step("elsewhere"))])
    assert tree.parents == (*COMB.parents, 0, -1)
    assert tree.trunk == COMB.trunk
    found = prm.score_trees([tree])[0].probability
    np.testing.assert_allclose(found[:7], prm.score_trees([COMB])[0].probability, atol=1e-5)
    assert found[7] == pytest.approx(prm.score(COMB.problem, ["x = 1", "then z = 3"])[-1], abs=1e-5)


def test_score_many_keeps_order(prm: Any) -> None:
    one_by_one = [prm.score(*solution) for solution in SOLUTIONS]
    together = prm.score_many(SOLUTIONS, progress=False)
    reverse = prm.score_many(SOLUTIONS[::-1], progress=False)[::-1]
    assert [len(scores) for scores in together] == [2, 1, 4]
    for a, b, c in zip(one_by_one, together, reverse, strict=True):
        assert a == pytest.approx(b, abs=1e-6)
        assert a == pytest.approx(c, abs=1e-6)


def test_nothing_to_score(prm: Any) -> None:
    assert prm.score_many([], progress=False) == []
    assert prm.score("What?", []) == []
    assert prm.score_trees([StepTree.chain("What?", [])])[0].log_odds_NO.shape == (0, 1)


def test_portions(prm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prm.score_many(SOLUTIONS, progress=False)
    monkeypatch.setattr("prism_prm.models.prm.TREES_AT_ONCE", 2)
    heard: list[int] = []
    chains = [StepTree.chain(*solution) for solution in SOLUTIONS]
    scores = prm.score_trees(chains, advance=heard.append)
    assert heard == [2, 1]
    for a, b in zip(whole, scores, strict=True):
        assert a == pytest.approx(b.probability.tolist(), abs=1e-6)


def test_sigmoid_at_the_ends() -> None:
    assert sigmoid(np.array([-800.0, -2.0, 0.0, 2.0, 800.0])).tolist() == pytest.approx(
        [0.0, 0.11920292202211755, 0.5, 0.8807970779778823, 1.0], abs=1e-15
    )


def test_a_path_too_long_is_an_error_that_names_it(prm: Any) -> None:
    tree = StepTree.chain("What is 1 + 2?", ["x = 1", "so y = 2", "done"], tree_id=7, name="gsm8k-7")
    prm.context = prm.encode_tree(tree).path_tokens(1)
    with pytest.raises(PrismError, match=r"tree 7 \(gsm8k-7\), node 2: .* tokens, but the model's context is"):
        prm.score_trees([tree])


def test_an_output_that_the_family_lacks(prm: Any) -> None:
    (scores,) = prm.score_trees([StepTree.chain("What is 1 + 2?", ["x = 1"])])
    assert scores.named("correct").tolist() == scores.probability.tolist()
    with pytest.raises(PrismError, match=r"no output 'redundancy'; it has: correct\."):
        scores.named("redundancy")


def test_skip_and_drop_are_counted(prm: Any, caplog: pytest.LogCaptureFixture) -> None:
    steps = ["x = 1", "so y = 2", "then z = 3", "y"]
    tree = StepTree.chain("What is 1 + 2?", steps)
    full = prm.score_trees([tree])[0]
    prm.context = prm.encode_tree(tree).path_tokens(1)

    prm.on_too_long = "skip"
    with caplog.at_level(logging.WARNING):
        (skipped,) = prm.score_trees([tree])
    assert "2 steps exceed the context" in caplog.text
    assert (skipped.scored, skipped.too_long) == ([0, 1], (2, 3))
    np.testing.assert_allclose(skipped.probability[:2], full.probability[:2], atol=1e-6)

    prm.on_too_long = "window"
    (dropped,) = prm.score_trees([tree])
    assert (dropped.scored, dropped.too_long) == ([0, 1, 2, 3], (2, 3))
    for node in (2, 3):
        ends = [steps[first : node + 1] for first in range(1, node + 1)]
        kept = next(
            e for e in ends if prm.encode_tree(StepTree.chain(tree.problem, e)).path_tokens(len(e) - 1) <= prm.context
        )
        expected = REFERENCES["token-classification"](prm, tree.problem, kept).item()
        assert dropped.log_odds_NO[node, 0] == pytest.approx(expected, abs=1e-5)

    prm.context = 3
    with pytest.raises(PrismError, match="the problem and this step alone exceed"):
        prm.score_trees([tree])


def test_a_step_without_tokens_is_an_error(prm: Any) -> None:
    with pytest.raises(PrismError, match=r"tree 0, node 1: the step '' has no tokens"):
        prm.score("What?", ["x", ""])


def test_gradient_checkpointing_changes_no_gradient(prm: Any) -> None:
    """Its second forward pass, during the backward one, must use the same attention."""
    batch = collate(pack([prm.encode_tree(COMB)], 10**6))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            prm.module.gradient_checkpointing_enable()
        prm.module.train()
        prm.module.zero_grad()
        prm.module(batch).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in prm.module.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_memory_runs_out(prm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prm.score_many(SOLUTIONS, progress=False)
    forward = type(prm.module).forward
    sizes: list[int] = []

    def small_memory(self: Any, batch: Any) -> torch.Tensor:
        sizes.append(len(batch.input_ids_BL))
        if len(batch.input_ids_BL) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch)

    monkeypatch.setattr(type(prm.module), "forward", small_memory)
    limit = 1
    found = prm.score_many(SOLUTIONS, progress=False)
    assert sizes == [3, 2, 1, 1, 1]
    for a, b in zip(expected, found, strict=True):
        assert a == pytest.approx(b, abs=1e-6)
    limit = 0
    with pytest.raises(PrismError, match=r"out of memory with a row of \d+ tokens with tree 0, node 0 alone"):
        prm.score_many(SOLUTIONS, progress=False)


def test_other_errors_of_the_model_are_not_hidden(prm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(type(prm.module), "forward", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        prm.score_many(SOLUTIONS, progress=False)


def test_a_score_that_is_not_a_number_is_an_error(prm: Any) -> None:
    with torch.no_grad():
        prm.module.head.weight[0, 0] = float("nan")
    with pytest.raises(PrismError, match=r"tree 0, node 0: the model's score is \[nan\]"):
        prm.score("What?", ["x"])
    with prm.session(["What?"]) as session, pytest.raises(PrismError, match="problem 0, step 0: the model's score is"):
        session.extend([(session.roots[0], "x")])


def test_scoring_leaves_the_training_mode_as_it_was(prm: Any) -> None:
    prm.module.train()
    prm.score("What?", ["x"])
    assert prm.module.training


def test_compat_reads_one_token_earlier(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    from prism_prm import load_prm

    init_prm(tiny_lm("mistral"), family="reasoneval", dtype="float64").save(tmp_path / "prm")
    prm = load_prm(tmp_path / "prm", compat=True, dtype="float64")
    expected = separate_scores(prm, COMB).numpy(force=True)
    np.testing.assert_allclose(prm.score_trees([COMB])[0].log_odds_NO, expected, atol=1e-6)
    assert load_prm(tmp_path / "prm").model_hash() != prm.model_hash()
    with pytest.raises(PrismError, match="'reasoneval' with compat=True needs two"):
        prm.score("What?", ["then"])


def test_numbered_steps_are_not_numbered_twice(tiny_prm: Callable[..., Any]) -> None:
    family = tiny_prm("math-shepherd", "mistral").family
    assert family.step_ids("Step 2: done", 1) == family.step_ids("done", 1)


def test_other_architectures_score(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("qwen3"), family="qwen")
    expected = separate_scores(prm, COMB).numpy(force=True)
    np.testing.assert_allclose(prm.score_trees([COMB])[0].log_odds_NO, expected, atol=1e-4)


def test_backbones_that_cannot_be_packed_are_refused(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_lm("llama"), tmp_path / "lm")
    config = json.loads((tmp_path / "lm/config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    (tmp_path / "lm/config.json").write_text(json.dumps(config))
    with pytest.raises(PrismError, match="rope type 'dynamic'"):
        init_prm(tmp_path / "lm", family="token-classification")
    # Gemma 3 has one for each kind of layer.
    mixed = Gemma3TextConfig(
        rope_parameters={"full_attention": {"rope_type": "dynamic", "factor": 2.0}, "sliding_attention": {}}
    )
    with torch.device("meta"), pytest.raises(PrismError, match="rope type 'dynamic'"):
        attention_windows(Gemma3TextModel(mixed))


def test_a_long_step_without_tokens_is_not_repeated_in_full() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"a": 0}, [])))
    with pytest.raises(PrismError, match=r"^the step 'b{79}… has no tokens, so it cannot be scored$"):
        TextEncoder(tokenizer).step("b" * 4000)
