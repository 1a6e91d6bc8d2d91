"""`[objective] name = "implicit"`: a language model learns from outcomes, and scores steps against its reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from prism_prm import init_prm
from prism_prm.backends.load_prm import open_prm
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.config import from_mapping
from prism_prm.data.pair_examples import outcomes
from prism_prm.errors import ConfigError
from prism_prm.losses import Objective
from prism_prm.models.packing import encode_tree
from prism_prm.store import ScoreStore
from prism_prm.train.batches import RowLimits, batch_maker, micro_batches, parts_of_update
from prism_prm.train.loop import TrainingRound
from prism_prm.train.margins import score_examples
from prism_prm.train.recipe import Recipe, TrainSettings
from prism_prm.train.train_prm import train_prm
from prism_prm.tree import Step, StepTree
from tiny import exact_norms

TREES = {
    i: StepTree.chain(f"What is {i} + 2?", [*map(Step, before), Step(f"So it is {i + 2}.", label)], tree_id=i)
    for i, (before, label) in enumerate(
        [((), 1.0), (("Let x be 1.", "We add."), 0.0), (("Add.",), 1.0), (("A.",), None)]
    )
}


def test_which_solutions_are_right_or_wrong() -> None:
    found = outcomes(TREES)
    assert found.tree.tolist() == [0, 1, 2]
    assert found.labels is not None
    assert found.labels.tolist() == [1.0, 0.0, 1.0]
    assert found.chosen.tolist() == [[0, -1, -1], [0, 1, 2], [0, 1, -1]]
    early = StepTree.chain("p", [Step("a", 0.0), Step("b", 1.0)])
    unfinished = StepTree.chain("p", [Step("a", 1.0)], ended=False)
    assert outcomes({0: early}).labels.tolist() == [0.0]  # type: ignore[union-attr]
    assert len(outcomes({0: unfinished})) == 0


@pytest.mark.parametrize("pack", ["tree", "none"])
def test_the_loss_and_its_gradient_are_those_of_plain_sequences(
    tiny_lm: Callable[..., Path], tmp_path: Path, pack: Any
) -> None:
    places = [tiny_lm("qwen2"), tiny_lm("qwen2", initializer_range=0.2)]
    model, reference = (init_prm(place, family="implicit", dtype="float64") for place in places)
    exact_norms(model.module)
    exact_norms(reference.module)
    examples = outcomes(TREES)
    objective = Objective(name="implicit", beta=0.3, negative_weight=2.0)
    work = TrainingRound(
        "all", model.module, model.family, batch_maker(model.module, 4096), RowLimits(4096), examples, objective,
        TrainSettings(pack=pack), (0,), tmp_path / "checkpoints",
        reference_N=score_examples(ScoreStore(tmp_path / "scores", reference), examples)[:, 0],
    )  # fmt: skip
    parts = parts_of_update(examples, np.arange(3), model.family, pack, RowLimits(4096))
    losses = {}
    for micro in micro_batches(parts, work.make_batch, 4096):
        loss_N = work._losses(micro.examples, model.module(micro.batch)[:, 0][micro.reads_NK])
        loss_N.sum().backward()
        losses.update(zip(micro.examples.tolist(), loss_N.tolist(), strict=True))

    plain = [AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64).eval() for place in places]
    for one in plain:
        exact_norms(one)
    for i, (tree_id, label) in enumerate([(0, 1.0), (1, 0.0), (2, 1.0)]):
        encoded = encode_tree(TREES[tree_id], model.family)
        ids = [*encoded.prompt, *(token for step in encoded.ids for token in step)]
        sums = [
            sum(log_p_TV[at - 1, ids[at]] for at in range(len(encoded.prompt), len(ids)))
            for log_p_TV in (one(torch.tensor([ids])).logits[0].log_softmax(1) for one in plain)
        ]
        p = torch.sigmoid(0.3 * (sums[0] - sums[1].detach()))
        expected = -(label * p.log() + 2.0 * (1 - label) * (1 - p).log())
        expected.backward()
        assert losses[i] == pytest.approx(expected.item(), abs=1e-9)
    gradients = dict(plain[0].named_parameters())
    for name, parameter in model.module.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name].grad, rtol=0, atol=1e-9), name


def recipe(folder: Path, backbone: Path, **sections: Any) -> Recipe:
    settings = {
        "report_to": [],
        "data": {"inputs": [str(folder / "data.jsonl")], "split": {"train": 0.6, "validation": 0.4}},
        "base": {"backbone": str(backbone)},
        "objective": {"name": "implicit"},
        "curriculum": {"mode": "none"},
        "train": {"lr": 3e-3, "pairs_per_update": 8, "epochs": 6},
        "validation": {"criterion": "auroc"},
    }
    return from_mapping(Recipe, settings | sections)


def test_a_run_learns_from_outcomes_alone(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    lines = [
        {"prompt": f"What is {i} + {i}?", "completions": ["We add.", f"x = {x}"], "labels": [True, x == 8]}
        for i in range(40)
        for x in (8, 3)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "run"
    run = train_prm(recipe(tmp_path, tiny_lm("qwen2")), out, accelerator=Accelerator(cpu=True))
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in logged if "loss" in line]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)  # π is its own reference at first
    assert losses[-1] < 0.5
    assert run["rounds"]["0_base"]["auroc"] == pytest.approx(0.5)
    assert run["rounds"]["1_all"]["auroc"] > 0.95
    scorer = open_prm(f"implicit:{out}+{out / 'base'}")
    right, wrong = scorer.score_many([("What is 4 + 4?", ["We add.", f"x = {x}"]) for x in "83"])
    assert right[1] > 0.5 > wrong[1]
    # The trained model is a language model that others can load.
    assert type(AutoModelForCausalLM.from_pretrained(run["best"])).__name__ == "Qwen2ForCausalLM"
    with pytest.raises(ConfigError, match="half of an implicit PRM"):
        open_prm(out, PrmOptions())


def test_what_it_needs(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'implicit' has no margins"):
        recipe(tmp_path, tiny_lm("qwen2"), curriculum={})
    with pytest.raises(ConfigError, match=r"set base\.backbone"):
        recipe(tmp_path, tiny_lm("qwen2"), base={"prm": "some/prm"})
