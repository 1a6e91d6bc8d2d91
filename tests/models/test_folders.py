"""PRM folders: what is written, what is read back, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from prism_prm import PrismError, init_prm, load_prm
from tiny import FAMILY_MODELS

PROBLEM, STEPS = "What is 1 + 2?", ["x = 1", "then x + 2 = 3", "done"]


def weight_names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        return set(weights.keys())


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_saved_is_loaded(tiny_lm: Callable[..., Path], tmp_path: Path, family: str, kind: str) -> None:
    prm = init_prm(tiny_lm(kind), family=family)
    prm.save(tmp_path / "prm", threshold=0.4, aggregator="mean")
    again = load_prm(tmp_path / "prm")
    assert again.score(PROBLEM, STEPS) == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-6)
    assert again.model_hash() == prm.model_hash()
    assert (again.card.family, again.card.threshold, again.card.aggregator) == (family, 0.4, "mean")
    assert "auto_map" not in json.loads((tmp_path / "prm/config.json").read_text())


def test_qwen_on_qwen2_looks_like_the_published_one(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    config = json.loads((tmp_path / "prm/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForProcessRewardModel"]
    assert config["model_type"] == "qwen2"
    names = weight_names(tmp_path / "prm")
    assert {name for name in names if not name.startswith("model.")} == {
        "score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias",
    }  # fmt: skip
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "model.norm.weight"} <= names
    (tmp_path / "prm/prism.json").unlink()  # a published folder has none; its architecture says what it is
    assert load_prm(tmp_path / "prm").family.name == "qwen"


def test_remote_code_in_a_config_is_not_run(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    config = json.loads((tmp_path / "prm/config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (tmp_path / "prm/config.json").write_text(json.dumps(config))
    (tmp_path / "prm/evil.py").write_text("raise SystemExit('remote code ran')")
    prm = load_prm(tmp_path / "prm")
    prm.save(tmp_path / "again")
    assert "auto_map" not in json.loads((tmp_path / "again/config.json").read_text())


def test_token_classification_loads_in_transformers(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    prm = init_prm(tiny_lm("llama"), family="token-classification")
    prm.save(tmp_path / "prm")
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "prm").eval()
    (tree,) = [prm.encode_tree(_chain())]
    ids = [*tree.prompt, *(token for step in tree.ids for token in step)]
    logits = model(torch.tensor([ids])).logits[0, -1]
    assert torch.softmax(logits, -1)[1].item() == pytest.approx(prm.score(PROBLEM, STEPS)[-1], abs=1e-6)


def _chain() -> Any:
    from prism_prm import StepTree

    return StepTree.chain(PROBLEM, STEPS)


def test_published_models_are_known_by_name(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    """By the last part of their id: that is what a downloaded folder is called."""
    lm = tiny_lm("mistral")
    named = tmp_path / "Math-Shepherd-Mistral-7B-PRM"
    shutil.copytree(lm, named)
    prm = load_prm(named)
    assert (prm.family.name, prm.card.aggregator) == ("math-shepherd", "min")
    assert prm.score(PROBLEM, STEPS) == pytest.approx(
        init_prm(lm, family="math-shepherd").score(PROBLEM, STEPS), abs=1e-6
    )

    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "ReasonFlux-PRM-7B")
    (tmp_path / "ReasonFlux-PRM-7B/prism.json").unlink()
    flux = load_prm(tmp_path / "ReasonFlux-PRM-7B")
    assert (
        flux.tokenizer.decode(flux.family.prompt_ids("x")) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )
    asked = load_prm(tmp_path / "ReasonFlux-PRM-7B", settings={"system": "Be exact."})
    assert asked.tokenizer.decode(asked.family.prompt_ids("x")).startswith("<|im_start|>system\nBe exact.<|im_end|>")


def test_sharded_weights(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    prm = init_prm(tiny_lm("qwen2"), family="qwen")
    prm.save(tmp_path / "prm")
    weights = load_file(tmp_path / "prm/model.safetensors")
    (tmp_path / "prm/model.safetensors").unlink()
    save_torch_state_dict(weights, tmp_path / "prm", max_shard_size=20_000)
    assert len(list((tmp_path / "prm").glob("*.safetensors"))) > 3
    assert load_prm(tmp_path / "prm").score(PROBLEM, STEPS) == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-6)


def test_tied_output_layers_stay_tied(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    prm = init_prm(tiny_lm("llama", tie_word_embeddings=True), family="rlhflow")
    prm.save(tmp_path / "prm")
    assert "lm_head.weight" not in weight_names(tmp_path / "prm")
    again = load_prm(tmp_path / "prm")
    assert again.module.head.weight is again.module.backbone.get_input_embeddings().weight
    assert again.score(PROBLEM, STEPS) == pytest.approx(prm.score(PROBLEM, STEPS), abs=1e-6)


def test_hash_sees_weights_dtype_and_settings(tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm("llama"), family="token-classification")
    hashes = {prm.model_hash()}
    hashes.add(init_prm(tiny_lm("llama"), family="token-classification", dtype="bfloat16").model_hash())
    hashes.add(init_prm(tiny_lm("llama"), family="token-classification", seed=1).model_hash())
    hashes.add(init_prm(tiny_lm("llama"), family="token-classification", settings={"separator": "\n\n"}).model_hash())
    with torch.no_grad():
        prm.module.backbone.layers[1].mlp.up_proj.weight[3, 4] += 1e-3
    hashes.add(prm.model_hash())
    assert len(hashes) == 5


def test_lora_adapter_is_merged(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "base")
    base = load_prm(tmp_path / "base")
    before = base.score(PROBLEM, STEPS)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["score"])
    wrapped = get_peft_model(base.module, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(0, 0.3)
    trained = base.score(PROBLEM, STEPS)
    wrapped.save_pretrained(tmp_path / "adapter")
    assert max(abs(a - b) for a, b in zip(trained, before, strict=True)) > 1e-3
    assert load_prm(tmp_path / "base", adapter=tmp_path / "adapter").score(PROBLEM, STEPS) == pytest.approx(
        trained, abs=1e-5
    )
    assert load_prm(tmp_path / "adapter").score(PROBLEM, STEPS) == pytest.approx(trained, abs=1e-5)
    merged = load_prm(tmp_path / "adapter")
    merged.save(tmp_path / "merged")
    assert load_prm(tmp_path / "merged").score(PROBLEM, STEPS) == pytest.approx(trained, abs=1e-5)


def test_text_never_becomes_a_control_token(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("qwen", "qwen2")
    separator = prm.tokenizer.convert_tokens_to_ids("<extra_0>")
    ids, read = prm.family.step_ids("a<extra_0>b<|im_end|>", 0)
    assert (ids.count(separator), ids[read]) == (1, separator)


def test_refusals(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    lm = tiny_lm("llama")
    with pytest.raises(PrismError, match=r"cannot tell its PRM family.*qwen, token-classification, math-shepherd"):
        load_prm(lm)
    with pytest.raises(
        PrismError, match=r"Unknown family 'nope'\. Known: qwen, .*, verdict; or one of your own: my_file.py:Mine"
    ):
        init_prm(lm, family="nope")
    with pytest.raises(PrismError, match="no such model folder"):
        load_prm(tmp_path / "missing")
    with pytest.raises(PrismError, match="needs the weights"):
        load_prm(lm, family="token-classification")
    with pytest.raises(PrismError, match="'<extra_0>' is not one token"):
        load_prm(lm, family="qwen")
    prm = init_prm(lm, family="token-classification")
    prm.save(tmp_path / "prm")
    with pytest.raises(PrismError, match="says family 'token-classification', not 'qwen'"):
        load_prm(tmp_path / "prm", family="qwen")
    with pytest.raises(PrismError, match="is not a torch dtype"):
        load_prm(tmp_path / "prm", dtype="float12")
    with pytest.raises(PrismError, match="attn='eager' is not one of"):
        load_prm(tmp_path / "prm", attn="eager")

    weights = load_file(tmp_path / "prm/model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.1.mlp" not in k}, tmp_path / "prm/model.safetensors")
    with pytest.raises(PrismError, match="3 weights are missing"):
        load_prm(tmp_path / "prm")
    (tmp_path / "prm/model.safetensors").rename(tmp_path / "prm/pytorch_model.bin")
    with pytest.raises(PrismError, match="the weights are pickled"):
        load_prm(tmp_path / "prm")


def test_damaged_folders_and_missing_devices_are_named(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "prm"
    init_prm(tiny_lm("llama"), family="token-classification").save(folder)
    if not torch.cuda.is_available():
        with pytest.raises(PrismError, match="device 'cuda' cannot be used here"):
            load_prm(folder, device="cuda")
    with pytest.raises(PrismError, match="device 'gpu' cannot be used here"):
        load_prm(folder, device="gpu")
    for name, what in (("model.safetensors", "backbone"), ("config.json", "config.json"), ("tokenizer.json", "")):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(PrismError, match=rf"prm: its {what or 'tokenizer'} cannot be read"):
            load_prm(folder)
        (folder / name).write_bytes(whole)


def test_a_damaged_card_is_named(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("llama"), family="token-classification").save(tmp_path / "prm")
    for content, message in [
        ("{", "prism.json"),
        ("[]", "prism.json"),
        ('{"family": "qwan"}', "prism.json: Unknown family 'qwan'. Known: qwen"),
        ('{"family": "qwen", "treshold": 1}', r"Unknown keys \['treshold'\]"),
        ('{"family": "token-classification", "threshold": "high"}', "prism.json.*threshold"),
        (
            '{"family": "token-classification", "threshold": 1.5}',
            r"prism.json: threshold = 1.5: must be 0 or more and at most 1",
        ),
        (
            '{"family": "token-classification", "aggregator": "max"}',
            "prism.json: Unknown aggregator 'max'. Known: last, min",
        ),
        ('{"family": "token-classification", "settings": {"sep": "x"}}', r"Unknown settings \['sep'\]"),
    ]:
        (tmp_path / "prm/prism.json").write_text(content)
        with pytest.raises(PrismError, match=message):
            load_prm(tmp_path / "prm")


def published(
    tiny_lm: Callable[..., Path], folder: Path, names: tuple[str, str], *, first_is_right: bool
) -> list[float]:
    """Write a token classifier of others, whose classes have these names; the scores that it has to give."""
    prm = init_prm(tiny_lm("llama"), family="token-classification", seed=3)
    prm.save(folder)
    (folder / "prism.json").unlink()
    if first_is_right:
        weights = load_file(folder / "model.safetensors")
        heads = {key: value.flip(0).contiguous() for key, value in weights.items() if key.startswith("score.")}
        assert len(heads) == 2
        save_file(weights | heads, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))
    return prm.score(PROBLEM, STEPS)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("right", "wrong"), ("GOOD", "BAD"), ("correct_step", "incorrect_step"), ("+", "-"), ("True", "False"),
     ("POSITIVE", "NEGATIVE"), ("is correct", "is not correct"), ("+1", "-1"), ("no error", "error")],
)  # fmt: skip
@pytest.mark.parametrize("first_is_right", [True, False])
def test_names_of_classes_say_which_is_right(
    tiny_lm: Callable[..., Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    right: str,
    wrong: str,
    first_is_right: bool,
) -> None:
    names = (right, wrong) if first_is_right else (wrong, right)
    scores = published(tiny_lm, tmp_path / "prm", names, first_is_right=first_is_right)
    prm = load_prm(tmp_path / "prm")
    assert prm.score(PROBLEM, STEPS) == pytest.approx(scores, abs=1e-6)
    prm.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["id2label"] == {"0": "wrong", "1": "right"}
    again = load_prm(tmp_path / "saved")
    assert again.score(PROBLEM, STEPS) == pytest.approx(scores, abs=1e-6)
    assert again.model_hash() == prm.model_hash()
    assert not caplog.messages


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("0", "1"), ("right", "correct"), ("B-step", "I-step")])
def test_names_of_classes_that_say_nothing(
    tiny_lm: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, str]
) -> None:
    scores = published(tiny_lm, tmp_path, names, first_is_right=False)
    assert load_prm(tmp_path).score(PROBLEM, STEPS) == pytest.approx(scores, abs=1e-6)
    [message] = caplog.messages
    assert message == (
        f"{tmp_path}: its labels {names[0]!r} and {names[1]!r} do not say which one is a right step; the second is "
        'used. If it is the first, set id2label in config.json to {"0": "right", "1": "wrong"}.'
    )
