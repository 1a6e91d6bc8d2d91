"""One update is one update, whatever the packing: the same loss and the same new weights."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from some_pairs import random_examples
from torch import Tensor

from prism_prm import init_prm, load_prm
from prism_prm.data.pair_examples import Examples, as_one_tree, labeled_steps
from prism_prm.errors import ConfigError, PrismError
from prism_prm.losses import Objective
from prism_prm.models import packing
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.models.packing import collate, encode_tree
from prism_prm.models.prm import PRM
from prism_prm.train.batches import KeptReads, RowLimits, batch_maker, micro_batches, parts_of_update
from prism_prm.train.loop import NotFiniteError, TrainingRound, dropout_seed
from prism_prm.train.margins import fill_cache
from prism_prm.train.model import merge_adapters, prepare
from prism_prm.train.recipe import HardwareSettings, Lora, Packing, TrainSettings
from prism_prm.tree import Step, StepTree


def tiny_copy(tiny_prm: Callable[..., Any]) -> PRM:
    """A tiny PRM in 64 bits that a test may train."""
    return copy.deepcopy(tiny_prm("qwen", "qwen2"))


def a_round(
    prm: PRM, folder: Path, examples: Examples, objective: Objective | None = None, **settings: Any
) -> TrainingRound:
    defaults = {"lr": 1e-3, "pairs_per_update": 24, "max_pairs_per_tree_per_update": 8, "warmup": 0.0}
    wanted = TrainSettings(**(defaults | settings))
    return TrainingRound(
        "1_all", prm.module, prm.family, collate, RowLimits(wanted.row_tokens), examples, objective or Objective(),
        wanted, (0, 1), folder / "checkpoints",
    )  # fmt: skip


def train(
    prm: PRM, folder: Path, examples: Examples, **settings: Any
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The trained weights, and the log lines."""
    lines: list[dict[str, Any]] = []
    work = a_round(prm, folder, examples, **settings)
    work.on_update = lines.append
    work.run(Accelerator(cpu=True))
    return {name: value.detach().clone() for name, value in prm.module.state_dict().items()}, lines


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=tolerance, rtol=0)


OBJECTIVES = [
    Objective(),
    Objective(space="log-odds"),
    Objective("bce"),
    Objective("hybrid", anchor_on="chosen"),
    Objective("listwise", space="log-odds"),
    Objective("listwise+bce", space="log-odds"),
]
Tiny = Callable[..., Any]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.name}-{o.space}")
def test_packing_and_micro_batches_change_nothing(tmp_path: Path, tiny_prm: Tiny, objective: Objective) -> None:
    examples = random_examples()
    start = tiny_copy(tiny_prm).module.state_dict()
    reference, lines = train(
        tiny_copy(tiny_prm), tmp_path, examples, objective=objective, pack="none", microbatch_tokens=1
    )
    assert len(lines) > (1 if objective.in_lists else 3)
    assert all((reference[name] != start[name]).any() for name in ("score.2.weight", "model.embed_tokens.weight"))
    for pack, microbatch, row in [("tree", 10_000, 4096), ("tree", 200, 60), ("pair", 500, 4096), ("none", 300, 4096)]:
        weights, others = train(
            tiny_copy(tiny_prm), tmp_path, examples, objective=objective, pack=pack, microbatch_tokens=microbatch,
            row_tokens=row,
        )  # fmt: skip
        assert [line["loss"] for line in others] == pytest.approx([line["loss"] for line in lines], abs=1e-9)
        assert_same(weights, reference, 1e-9)


def test_tree_packing_runs_far_fewer_tokens(tmp_path: Path, tiny_prm: Tiny) -> None:
    examples = random_examples(steps=8)
    tokens = {
        pack: sum(
            line["tokens"]
            for line in train(tiny_copy(tiny_prm), tmp_path, examples, pack=pack, microbatch_tokens=300)[1]
        )
        for pack in ("tree", "pair", "none")
    }
    assert tokens["tree"] < 0.5 * tokens["pair"]
    assert tokens["pair"] < 0.6 * tokens["none"]


def test_labelled_steps_train_too(tmp_path: Path, tiny_prm: Tiny) -> None:
    steps = labeled_steps(random_examples().trees)
    assert steps.labels is not None
    assert len(steps) == 75
    objective = Objective("bce", on="labels", negative_weight=2.0)
    packed, lines = train(tiny_copy(tiny_prm), tmp_path, steps, objective=objective, pack="tree")
    separate, _ = train(tiny_copy(tiny_prm), tmp_path, steps, objective=objective, pack="none", microbatch_tokens=50)
    assert_same(packed, separate, 1e-9)
    prm = tiny_copy(tiny_prm)
    by_hand = []
    for i in a_round(prm, tmp_path, steps, objective).updates[0]:
        tree, node = steps.trees[int(steps.tree[i])], int(steps.chosen[i])
        p, y = prm.score(tree.problem, tree.texts(tree.path(node)))[-1], steps.labels[i]
        by_hand.append(-y * math.log(p) - 2 * (1 - y) * math.log(1 - p))
    assert lines[0]["loss"] == pytest.approx(np.mean(by_hand), abs=1e-9)


def test_listwise_is_the_conditional_logit_of_every_prefix(tmp_path: Path, tiny_prm: Tiny) -> None:
    """Packed losses and gradients against one sequence per step and a sum over all choices."""
    examples = random_examples()
    # The second candidate of every first position is right, too: prefixes with several right steps.
    more = [i for i in range(len(examples)) if examples.chosen[i] == 0 and examples.rejected[i] != 1]
    also_right = examples.take(np.array([*range(len(examples)), *more]))
    also_right.chosen[len(examples) :] = 1
    also_right = also_right.take(np.flatnonzero((also_right.chosen != 0) | (also_right.rejected != 1)))
    prefixes = also_right.by_prefix()
    assert len(prefixes) == 25
    assert {tuple(row) for row in prefixes.chosen.tolist() if row[1] != -1} == {(0, 1)}
    prm = tiny_copy(tiny_prm)
    objective = Objective("listwise", space="log-odds")
    work = a_round(prm, tmp_path, also_right, objective, pairs_per_update=25, max_pairs_per_tree_per_update=25)
    assert len(work.updates) == 1
    losses = []
    for i in range(len(prefixes)):
        tree = prefixes.trees[int(prefixes.tree[i])]
        right = [node for node in prefixes.chosen[i].tolist() if node != -1]
        before = tree.texts(tree.path(right[0]))[:-1]
        texts = tree.texts(right)
        for node, other in zip(prefixes.rejected[i].tolist(), prefixes.rejected_tree[i].tolist(), strict=True):
            texts += prefixes.trees[other].texts([node]) if node != -1 else []
        scores = []
        for text in texts:
            chain = tuple(Step(one) for one in (*before, text))
            alone = StepTree(0, tree.problem, chain, tuple(range(-1, len(before))), tuple(range(len(chain))))
            batch = collate(packing.pack([encode_tree(alone, prm.family)], 4096, [[(len(before),)]]))
            scores.append(prm.module(batch)[0, 0])
        log_odds = torch.stack(scores)
        choices = itertools.combinations(range(len(texts)), len(right))
        every = torch.stack([log_odds[list(some)].sum() for some in choices]).logsumexp(0)
        losses.append(every - log_odds[: len(right)].sum())
    loss = torch.stack(losses).mean()
    loss.backward()
    expected = torch.stack([p.grad.norm() for p in prm.module.parameters() if p.grad is not None]).norm().item()
    lines: list[dict[str, Any]] = []
    work.on_update = lines.append
    prm.module.zero_grad()
    work.run(Accelerator(cpu=True))
    assert lines[0]["loss"] == pytest.approx(loss.item(), abs=1e-9)
    assert lines[0]["grad_norm"] == pytest.approx(expected, abs=1e-9)
    assert lines[0]["examples"] == 25


def test_a_number_of_updates_instead_of_epochs(tmp_path: Path, tiny_prm: Tiny) -> None:
    examples, prm = random_examples(), tiny_copy(tiny_prm)
    by_epochs = a_round(prm, tmp_path, examples, epochs=2).updates
    work = a_round(prm, tmp_path, examples)
    work.num_updates = len(by_epochs) - 1
    work.__post_init__()
    assert [update.tolist() for update in work.updates] == [update.tolist() for update in by_epochs[:-1]]
    assert TrainSettings(updates=10).updates_of_rounds([60, 30, 1]) == [7, 3, 1]
    assert TrainSettings().updates_of_rounds([60, 30]) == [None, None]
    with pytest.raises(ConfigError, match="updates = 0: must be 1 or more"):
        TrainSettings(updates=0)


def test_as_one_tree_reads_in_place_or_adds_one_leaf() -> None:
    examples = random_examples(num_trees=2, steps=3)
    tree = examples.trees[0]
    mine = np.flatnonzero(examples.tree == 0)
    expanded, groups = as_one_tree(examples, mine)
    for i, (chosen, rejected) in zip(mine, groups, strict=True):
        assert chosen == examples.chosen[i]
        assert expanded.parents[chosen] == expanded.parents[rejected]
        source = examples.trees[int(examples.rejected_tree[i])]
        assert expanded.nodes[rejected] == source.nodes[int(examples.rejected[i])]
    # 3 lookaheads and 3 random negatives are leaves; the 6 annotated negatives stand in their places
    assert len(expanded.nodes) == len(tree.nodes) + 6


@pytest.mark.parametrize("pack", ["tree", "pair", "none"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_processes_share_an_update_and_keep_step(tiny_prm: Tiny, pack: Packing, ranks: int) -> None:
    examples = random_examples(num_trees=2)
    family = tiny_prm("qwen", "qwen2").family
    parts = parts_of_update(examples, np.arange(len(examples)), family, pack, RowLimits(4096))
    shares = [micro_batches(parts, collate, 400, rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    seen = [i for share in shares for micro in share if micro.weight for i in micro.examples]
    assert sorted(seen) == list(range(len(examples)))


def test_a_loss_that_is_no_number_stops_before_the_weights_change(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_copy(tiny_prm)
    with torch.no_grad():
        prm.module.get_parameter("score.2.bias")[0] = float("nan")
    before = {name: value.clone() for name, value in prm.module.state_dict().items()}
    message = r"round 1_all, update 0: loss nan, from the pairs \[10\d\d.*This round has no checkpoint yet"
    with pytest.raises(NotFiniteError, match=message):
        train(prm, tmp_path, random_examples())
    for name, value in prm.module.state_dict().items():
        torch.testing.assert_close(value, before[name], equal_nan=True, rtol=0, atol=0)


def test_resume_gives_bitwise_the_same_weights(tmp_path: Path, tiny_prm: Tiny) -> None:
    examples = random_examples()
    whole, lines = train(tiny_copy(tiny_prm), tmp_path / "whole", examples, checkpoint_every=2)
    assert len(lines) == 6
    for stop in (3, 4):
        folder = tmp_path / f"stopped-{stop}"
        stopped = a_round(tiny_copy(tiny_prm), folder, examples, checkpoint_every=2)

        def interrupt(line: dict[str, Any], stop: int = stop) -> None:
            if line["update"] == stop:
                raise InterruptedError

        stopped.on_update = interrupt
        with pytest.raises(InterruptedError):
            stopped.run(Accelerator(cpu=True))
        resumed, rest = train(tiny_copy(tiny_prm), folder, examples, checkpoint_every=2)
        assert [line["update"] for line in rest] == list(range(2 if stop == 3 else 4, 6))
        assert_same(resumed, whole, 0.0)


def test_a_checkpoint_in_many_files_is_read_again(
    tmp_path: Path, tiny_prm: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = random_examples()
    whole, _ = train(tiny_copy(tiny_prm), tmp_path, examples, checkpoint_every=4)
    monkeypatch.setattr("prism_prm.train.loop.FILE_BYTES", 20_000)
    train(tiny_copy(tiny_prm), tmp_path / "many", examples, checkpoint_every=4)
    (checkpoint,) = (tmp_path / "many" / "checkpoints").iterdir()
    num_files = len(list(checkpoint.glob("state-*.safetensors")))
    assert num_files > 3
    resumed, lines = train(tiny_copy(tiny_prm), tmp_path / "many", examples, checkpoint_every=4)
    assert [line["update"] for line in lines] == [4, 5]
    assert_same(resumed, whole, 0.0)
    next(checkpoint.glob("state-*.safetensors")).unlink()
    message = rf"update-000004: not a checkpoint .* damaged \({num_files - 1} of {num_files} files\)\. Remove"
    with pytest.raises(PrismError, match=message):
        train(tiny_copy(tiny_prm), tmp_path / "many", examples, checkpoint_every=4)


DROPOUT = {
    "attention": HardwareSettings(),
    "adapters": HardwareSettings(lora=Lora(r=2, dropout=0.3)),
    "upper layers": HardwareSettings(frozen_layers=1),
    "recomputed": HardwareSettings(gradient_checkpointing=True),
}


@pytest.mark.parametrize("hardware", DROPOUT.values(), ids=DROPOUT)
def test_dropout_is_the_same_each_time_and_after_a_resume(
    tmp_path: Path, tiny_lm: Callable[..., Path], hardware: HardwareSettings
) -> None:
    examples = random_examples()

    def train_it(folder: Path, dropout: float = 0.2, stop: int | None = None) -> tuple[dict[str, Tensor], list[float]]:
        prm = init_prm(tiny_lm("qwen2", attention_dropout=dropout), family="qwen", dtype="float64")
        work = a_round(prm, folder, examples, checkpoint_every=2)
        work.model = prepare(prm.module, hardware, seed=0)
        losses: list[float] = []

        def on_update(line: dict[str, Any]) -> None:
            losses.append(line["loss"])
            if line["update"] == stop:
                raise InterruptedError

        work.on_update = on_update
        torch.manual_seed(len(str(folder)))  # whatever chance the process had before
        before = torch.get_rng_state()
        work.run(Accelerator(cpu=True))
        assert torch.equal(torch.get_rng_state(), before), "chance elsewhere is not touched"
        return {name: value.detach().clone() for name, value in prm.module.state_dict().items()}, losses

    whole, losses = train_it(tmp_path / "whole")
    again, losses_again = train_it(tmp_path / "once-more")
    assert losses_again == losses
    assert_same(again, whole, 0.0)
    with pytest.raises(InterruptedError):
        train_it(tmp_path / "stopped", stop=3)
    resumed, rest = train_it(tmp_path / "stopped")
    assert rest == losses[2:]
    assert_same(resumed, whole, 0.0)
    assert losses != train_it(tmp_path / "without", dropout=0.0)[1], "there is dropout"


def test_flex_attention_with_dropout_is_refused_before_training(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("qwen2", attention_dropout=0.2), family="qwen")
    with pytest.raises(ConfigError, match=r"attention_dropout = 0.2: set that to 0, or train with"):
        prepare(prm.module, HardwareSettings(attn="flex"), seed=0)


def test_every_update_and_process_has_dropout_of_its_own() -> None:
    seeds = {dropout_seed((1, 0), update, process) for update in range(20) for process in range(8)}
    assert len(seeds) == 160
    assert dropout_seed((1, 0), 3, 2) == dropout_seed((1, 0), 3, 2) != dropout_seed((2, 0), 3, 2)


def test_a_checkpoint_of_other_pairs_is_refused(tmp_path: Path, tiny_prm: Tiny) -> None:
    train(tiny_copy(tiny_prm), tmp_path, random_examples(), checkpoint_every=2)
    with pytest.raises(PrismError, match="made for other pairs or settings"):
        train(tiny_copy(tiny_prm), tmp_path, random_examples(steps=6), checkpoint_every=2)


def test_learning_rate_is_a_formula() -> None:
    linear = TrainSettings(lr=1.0, warmup=0.2)
    assert [linear.lr_at(i, 10) for i in range(10)] == pytest.approx([0.5, 1, *(1 - i / 8 for i in range(8))])
    assert TrainSettings(lr=1.0, warmup=0.0, schedule="cosine").lr_at(5, 10) == pytest.approx(0.5)
    assert TrainSettings(lr=1.0, warmup=0.0, schedule="constant").lr_at(9, 10) == 1.0


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="pairs_per_update = 0: must be 1 or more"):
        TrainSettings(pairs_per_update=0)
    with pytest.raises(ConfigError, match="warmup"):
        TrainSettings(warmup=1.0)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "hardware",
    [
        HardwareSettings(frozen_layers=1), HardwareSettings(frozen_layers=1, lora=Lora(r=2)),
        HardwareSettings(frozen_layers=2),
    ],
    ids=["layers", "adapters", "head"],
)  # fmt: skip
@pytest.mark.parametrize("objective", [Objective(), Objective("listwise", space="log-odds")], ids=["pairs", "prefixes"])
def test_kept_states_train_the_same(
    tmp_path: Path, tiny_prm: Tiny, hardware: HardwareSettings, objective: Objective, dropout: float
) -> None:
    """What frozen layers make of texts may be computed each time or kept: the same losses and weights."""
    examples = random_examples()
    results = []
    for is_kept in (False, True):
        prm = tiny_copy(tiny_prm)
        for layer in prm.module.backbone.layers:
            layer.self_attn.attention_dropout = dropout
        if is_kept:
            prm.cache = LowerCache(prm.module, CacheSettings(tmp_path / "cache", hardware.frozen_layers))
            fill_cache(prm, examples)
        work = a_round(prm, tmp_path, examples, objective, epochs=2)
        work.model = prepare(prm.module, hardware, seed=0)
        work.make_batch = batch_maker(prm.module, 10_000, prm.cache)
        if prm.cache is not None:
            work.kept_reads = KeptReads.of(prm.cache, work.examples, prm.family, work.limits)
            assert (work.kept_reads is not None) == (hardware.frozen_layers == 2)
        lines: list[dict[str, Any]] = []
        work.on_update = lines.append
        start = {name: value.clone() for name, value in prm.module.state_dict().items()}
        with pytest.MonkeyPatch.context() as patch:
            if is_kept:
                patch.setattr(type(prm.module), "lower", lambda *_: pytest.fail("the frozen layers run again"))
            if is_kept and hardware.frozen_layers == 2:
                patch.setattr(type(prm.module), "hidden", lambda *_: pytest.fail("the backbone runs"))
                patch.setattr("prism_prm.train.loop.parts_of_update", lambda *_: pytest.fail("trees are packed"))
            work.run(Accelerator(cpu=True))
        trained = dict(prm.module.state_dict())
        part = "layers.1" if hardware.frozen_layers == 1 else "score."
        changed = {name for name in start if not torch.equal(trained[name], start[name])}
        assert any(part in name for name in changed)
        assert hardware.frozen_layers == 1 or all(name.startswith("score.") for name in changed)
        results.append(([line["loss"] for line in lines], trained))
    (plain, reference), (kept, weights) = results
    assert kept == pytest.approx(plain, abs=1e-9)
    assert_same(weights, reference, 1e-9)


def test_heads_train_the_same_with_a_full_cache(tmp_path: Path, tiny_prm: Tiny) -> None:
    """Trees are packed again, and states that are not cached are computed each time."""
    examples, losses = random_examples(), []
    for gigabytes in (1.0, 3e-6):
        prm = tiny_copy(tiny_prm)
        prm.cache = LowerCache(prm.module, CacheSettings(tmp_path / str(gigabytes), 2, gigabytes))
        fill_cache(prm, examples)
        assert prm.cache.is_full == (gigabytes < 1)
        work = a_round(prm, tmp_path, examples)
        work.model = prepare(prm.module, HardwareSettings(frozen_layers=2), seed=0)
        work.make_batch = batch_maker(prm.module, 10_000, prm.cache)
        work.kept_reads = KeptReads.of(prm.cache, work.examples, prm.family, work.limits)
        assert (work.kept_reads is None) == prm.cache.is_full
        lines: list[dict[str, Any]] = []
        work.on_update = lines.append
        work.run(Accelerator(cpu=True))
        losses.append([line["loss"] for line in lines])
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)


def test_states_may_be_in_a_table(tmp_path: Path, tiny_prm: Tiny) -> None:
    """Heads train on states in memory as on those of a cache, whatever the places are."""
    examples, losses = random_examples(), []
    for is_table in (False, True):
        prm = tiny_copy(tiny_prm)
        prm.cache = LowerCache(prm.module, CacheSettings(tmp_path / "cache", 2))
        fill_cache(prm, examples)
        work = a_round(prm, tmp_path, examples)
        work.model = prepare(prm.module, HardwareSettings(frozen_layers=2), seed=0)
        kept = KeptReads.of(prm.cache, work.examples, prm.family, work.limits)
        assert kept is not None
        if is_table:
            states_RH = kept.take(kept.places_R2)
            reads = np.arange(len(states_RH))
            kept = KeptReads(lambda places_R, table=states_RH: table[places_R], reads, kept.reads_NK)
        work.kept_reads = kept
        lines: list[dict[str, Any]] = []
        work.on_update = lines.append
        work.run(Accelerator(cpu=True))
        losses.append([line["loss"] for line in lines])
    assert losses[1] == losses[0]


def test_adapters_need_a_layer_that_is_not_frozen(tiny_prm: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"frozen_layers = 2 freezes all layers, so none can have adapters; freeze"):
        prepare(tiny_copy(tiny_prm).module, HardwareSettings(frozen_layers=2, lora=Lora(r=2)), seed=0)


def test_adapters_for_layers_that_the_model_does_not_have_are_refused(tiny_prm: Tiny) -> None:
    hardware = HardwareSettings(lora=Lora(targets=("query", "value")))
    with pytest.raises(ConfigError, match=r"hardware\.lora\.targets = \['query', 'value'\]"):
        prepare(tiny_copy(tiny_prm).module, hardware, seed=0)


@pytest.mark.parametrize("hardware", [HardwareSettings(frozen_layers=1), HardwareSettings(lora=Lora(r=2))])
def test_a_head_that_is_the_embedding_too_is_trained_and_saved(
    tmp_path: Path, tiny_lm: Callable[..., Path], hardware: HardwareSettings
) -> None:
    prm = init_prm(tiny_lm("llama", tie_word_embeddings=True), family="rlhflow", dtype="float64")
    embedding = prm.module.backbone.get_input_embeddings().weight
    assert prm.module.head.weight is embedding
    before = embedding.detach().clone()
    work = a_round(prm, tmp_path, random_examples())
    work.model = prepare(prm.module, hardware, seed=0)
    work.run(Accelerator(cpu=True))
    prm.module = merge_adapters(work.model)
    scores = prm.score("p", ["x = 1", "y = 2"])
    prm.save(tmp_path / "saved")
    found = load_prm(tmp_path / "saved", dtype="float64")
    assert found.score("p", ["x = 1", "y = 2"]) == pytest.approx(scores, abs=1e-9)
    assert torch.equal(found.module.backbone.get_input_embeddings().weight, before)
    assert not torch.equal(found.module.head.weight, before)


def test_uneven_rows_are_joined_and_score_the_same(tiny_prm: Tiny) -> None:
    prm = tiny_copy(tiny_prm)
    examples = random_examples()
    parts = parts_of_update(examples, np.arange(len(examples)), prm.family, "none", RowLimits(4096))
    rows = [row for part in parts for row in part.rows]
    joined, padded = batch_maker(prm.module, 300)(rows), collate(rows)
    assert joined.input_ids_BL.numel() < 0.8 * padded.input_ids_BL.numel()
    assert sorted(joined.owners) == sorted(padded.owners)
    scores = [dict(zip(batch.owners, prm.module(batch)[:, 0].tolist(), strict=True)) for batch in (joined, padded)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)
