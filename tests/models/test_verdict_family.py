"""The family `verdict`: labels, questions and templates as set, saved with the PRM, and trained like any family."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prism_prm import init_prm, load_prm, open_policy
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.packing import collate, pack
from prism_prm.tree import Step, StepTree

PROBLEM, STEPS = "What is 1 + 2?", ["1 + 2 = 3", "so y = 3"]


def test_the_layout_of_a_chat(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("llama"), family="verdict", settings={"question": "Right?", "instruction": "Judge."})
    ids = [*prm.family.prompt_ids(PROBLEM)]
    for i, step in enumerate(STEPS):
        own, read = prm.family.step_ids(step, i)
        assert prm.tokenizer.decode(own[: read + 1]).endswith("assistant<|end_header_id|>\n\n")
        assert own[read + 1] == prm.family.rows[0], "later steps see that this one was right"
        ids += own
    assert prm.tokenizer.decode(ids) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Judge.\n\nProblem: What is 1 + 2?\n\nStep 1: 1 + 2 = 3\n\nRight?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Step 2: so y = 3\n\nRight?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n"
    )


def test_the_layout_of_a_plain_text(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("llama"), family="verdict", settings={"template": "none", "instruction": "", "yes": "so"})
    ids = [*prm.family.prompt_ids(PROBLEM), *prm.family.step_ids(STEPS[0], 0)[0]]
    assert prm.tokenizer.decode(ids) == (
        "<|begin_of_text|>Problem: What is 1 + 2?\n\nStep 1: 1 + 2 = 3\n\n"
        "Is this step correct? Answer Yes or No.\nAnswer: so\n\n"
    )


def test_labels_are_settable_and_their_order_is_the_sign(tiny_lm: Callable[..., Path]) -> None:
    one, other = (
        init_prm(tiny_lm("llama"), family="verdict", settings={"yes": a, "no": b, "question": ""}, dtype="float64")
        for a, b in (("x", "y"), ("y", "x"))
    )
    (first,), (second,) = (prm.score_trees([StepTree.chain(PROBLEM, STEPS[:1])]) for prm in (one, other))
    assert first.log_odds_NO[0, 0] == pytest.approx(-second.log_odds_NO[0, 0], abs=1e-9)
    assert abs(first.log_odds_NO[0, 0]) > 1e-3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"yes": "same", "no": "same"}, ModelError, "'same' and 'same' begins with the other"),
        ({"yes": "x", "no": "x x"}, ModelError, "'x' and 'x x' begins with the other"),
        ({"yes": ""}, ModelError, "the label '' has no tokens of its own"),
        ({"template": "chatml"}, ConfigError, "template = 'chatml' of family 'verdict' must be auto or none"),
        ({"label": "x"}, ConfigError, r"Unknown settings \['label'\] of family 'verdict'"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tiny_lm: Callable[..., Path], settings: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        init_prm(tiny_lm("llama"), family="verdict", settings=settings)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.content }}", "TemplateSyntaxError: Unexpected end of template"),
        ("{{ raise_exception('no assistants here') }}", "TemplateError: no assistants here"),
        ("{{ messages[7].content }}", "UndefinedError: list object has no element 7"),
        ("{{ 'a' + 1 }}", "TypeError: can only concatenate str"),
    ],
)
def test_a_broken_chat_template_is_one_line(
    tiny_lm: Callable[..., Path], tmp_path: Path, template: str, reason: str
) -> None:
    shutil.copytree(tiny_lm("llama"), tmp_path / "lm")
    (tmp_path / "lm" / "chat_template.jinja").write_text(template)
    message = rf"^{tmp_path}/lm: its chat template fails \({re.escape(reason)}.*\); fix"
    with pytest.raises(ModelError, match=message):
        init_prm(tmp_path / "lm", family="verdict")
    with pytest.raises(ModelError, match="its chat template fails"):
        open_policy(f"hf:{tmp_path / 'lm'}").prompt("1 + 1?")


def test_settings_come_back_with_the_folder(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    prm = init_prm(tiny_lm("llama"), family="verdict", settings={"yes": "x", "no": "y"})
    prm.save_pretrained(tmp_path / "prm")
    again = load_prm(tmp_path / "prm")
    assert again.card.settings["yes"] == "x"
    assert again.score(PROBLEM, STEPS) == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-6)
    assert again.model_hash() == prm.model_hash()
    assert "AutoModelForCausalLM" in (tmp_path / "prm" / "README.md").read_text()


def test_a_pair_loss_teaches_the_verdict(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("llama"), family="verdict", dtype="float64")
    tree = StepTree(0, PROBLEM, (Step("1 + 2 = 3"), Step("1 + 2 = 4")), (-1, -1), ())
    batch = collate(pack([prm.encode_tree(tree)], 10**6))
    optimizer = torch.optim.Adam(prm.module.parameters(), lr=1e-2)
    for _ in range(20):
        chosen, rejected = prm.module(batch)[:, 0]
        loss = -torch.nn.functional.logsigmoid(chosen - rejected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right, wrong = prm.score_trees([tree])[0].probability
    assert right - wrong > 0.5
