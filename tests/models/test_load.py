"""Weights that a folder lacks are named, and never drawn at random; nor are weights left out without a word."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from prism_prm import PrismError, init_prm, load_prm
from prism_prm.backends.hf import load_hf
from prism_prm.console import Console, shown_on
from prism_prm.lab.world.build import load_policy
from prism_prm.models import load_lm
from prism_prm.models.load_lm import BF16_HIDDEN, pick_dtype
from prism_prm.plan.skeleton import load_skeleton
from prism_prm.rl.train_policy import load_tokenizer_of
from tiny import CORPUS, gguf_model

PROBLEM, STEPS = "What is 1 + 2?", ["x = 1", "then x + 2 = 3", "done"]
Q_PROJ = "layers.1.self_attn.q_proj.weight"
OPENERS: dict[str, Callable[[Path], Any]] = {
    "fresh head": lambda folder: init_prm(folder, family="qwen"),
    "own output layer": lambda folder: init_prm(folder, family="rlhflow"),
    "PRM": lambda folder: load_prm(folder, family="rlhflow"),
    "policy": load_hf,
    "world": load_policy,
}
"""Every way to load a language model."""


def never(*_: object, **__: object) -> Any:
    raise AssertionError("the file is read again")


def changed(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy of a folder with its weights changed in place."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture
def qwen_prm(tiny_lm: Callable[..., Path], tmp_path: Path) -> Path:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "qwen-prm")
    return tmp_path / "qwen-prm"


@pytest.mark.parametrize("opener", OPENERS)
def test_missing_weights_of_a_layer_are_named(tiny_lm: Callable[..., Path], tmp_path: Path, opener: str) -> None:
    lm = changed(tiny_lm("llama"), tmp_path / "lm", lambda weights: weights.pop(f"model.{Q_PROJ}"))
    with pytest.raises(PrismError, match=rf"lm: 1 weight is missing \((model\.)?{Q_PROJ}\)"):
        OPENERS[opener](lm)


@pytest.mark.parametrize("opener", [name for name in OPENERS if name != "fresh head"])
def test_a_missing_output_layer_is_named_where_it_is_read(
    tiny_lm: Callable[..., Path], tmp_path: Path, opener: str
) -> None:
    lm = changed(tiny_lm("llama"), tmp_path / "lm", lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(PrismError, match=r"lm_head\.weight"):
        OPENERS[opener](lm)
    init_prm(lm, family="token-classification")  # draws its own head, which is its purpose


@pytest.mark.parametrize("opener", [name for name in OPENERS if name != "fresh head"])
def test_tied_output_layers_are_not_missing(tiny_lm: Callable[..., Path], opener: str) -> None:
    OPENERS[opener](tiny_lm("llama", tie_word_embeddings=True))


@pytest.mark.parametrize("opener", OPENERS)
def test_weights_of_another_shape_are_named(tiny_lm: Callable[..., Path], tmp_path: Path, opener: str) -> None:
    def narrow(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"] = torch.ones(5)

    lm = changed(tiny_lm("llama"), tmp_path / "lm", narrow)
    with pytest.raises(PrismError, match=r"norm\.weight: 5 instead of 32"):
        OPENERS[opener](lm)


@pytest.mark.parametrize("opener", OPENERS)
def test_layers_that_the_config_does_not_have_are_named(
    tiny_lm: Callable[..., Path], tmp_path: Path, opener: str
) -> None:
    shutil.copytree(tiny_lm("llama"), tmp_path / "lm")
    config = json.loads((tmp_path / "lm/config.json").read_text())
    (tmp_path / "lm/config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(PrismError, match=r"9 weights have no place .*layers\.1\.input_layernorm\.weight.*and 6 more"):
        OPENERS[opener](tmp_path / "lm")


def test_a_prm_is_no_policy(tiny_lm: Callable[..., Path], qwen_prm: Path, tmp_path: Path) -> None:
    with pytest.raises(PrismError, match=r"missing \(lm_head\.weight\).*no place .*score\.0\.bias"):
        load_hf(qwen_prm)
    # With tied weights no output layer is missing, but the head still says what it is.
    init_prm(tiny_lm("llama", tie_word_embeddings=True), family="token-classification").save(tmp_path / "tied")
    with pytest.raises(PrismError, match=r"2 weights have no place .*score\.bias, score\.weight"):
        load_hf(tmp_path / "tied")
    init_prm(tiny_lm("llama"), family="rlhflow").save(tmp_path / "language-model")
    load_hf(tmp_path / "language-model")


def test_a_prm_has_no_head_beside_its_own(qwen_prm: Path, tmp_path: Path) -> None:
    expected = load_prm(qwen_prm).score(PROBLEM, STEPS)

    def with_output_layer(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = torch.ones_like(weights["model.embed_tokens.weight"])

    published = changed(qwen_prm, tmp_path / "published", with_output_layer)
    assert load_prm(published).score(PROBLEM, STEPS) == pytest.approx(expected, abs=1e-6)
    two = changed(qwen_prm, tmp_path / "two", lambda weights: weights.update({"v_head.weight": torch.ones(1, 32)}))
    with pytest.raises(PrismError, match=r"1 weight has no place .*v_head\.weight"):
        load_prm(two)


def test_a_fresh_head_replaces_others_and_says_so(qwen_prm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        init_prm(qwen_prm, family="token-classification")
    assert "4 weights are not used (score.0.bias, score.0.weight, score.2.bias and 1 more)" in caplog.text


def test_an_output_layer_that_is_not_the_embedding_is_not_tied(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    """Some configs say "tied" beside an output layer of its own, which then counts, as in transformers."""

    def with_output_layer(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = 0.5 * weights["model.embed_tokens.weight"]

    lm = changed(tiny_lm("llama", tie_word_embeddings=True), tmp_path / "lm", with_output_layer)
    half = [prm.score_trees([_chain()])[0].log_odds_NO for prm in _made_loaded_and_saved(lm, tmp_path / "half")]
    tied = init_prm(tiny_lm("llama", tie_word_embeddings=True), family="rlhflow").score_trees([_chain()])
    for log_odds in half:
        assert log_odds == pytest.approx(0.5 * tied[0].log_odds_NO, abs=1e-5)


def _made_loaded_and_saved(lm: Path, to: Path) -> list[Any]:
    made = init_prm(lm, family="rlhflow")
    made.save(to)
    return [made, load_prm(lm, family="rlhflow"), load_prm(to)]


def _chain() -> Any:
    from prism_prm import StepTree

    return StepTree.chain(PROBLEM, STEPS)


def test_an_output_layer_with_a_bias_is_refused(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    def with_bias(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.bias"] = torch.ones(len(weights["lm_head.weight"]))

    lm = changed(tiny_lm("llama"), tmp_path / "lm", with_bias)
    with pytest.raises(PrismError, match=r"no place .*lm_head\.bias"):
        load_prm(lm, family="rlhflow")


@pytest.mark.parametrize("with_output", [True, False])
def test_gguf_is_complete(tmp_path: Path, with_output: bool) -> None:
    family = "math-shepherd" if with_output else "qwen"
    expected = gguf_model(tmp_path / "whole")
    found = load_hf(tmp_path / "whole", dtype="float32").model.state_dict()
    assert {key: torch.equal(value, expected[key]) for key, value in found.items()} == dict.fromkeys(expected, True)
    gguf_model(tmp_path / "cut", without="blk.1.attn_q.weight")
    for opener in (load_hf, lambda folder: init_prm(folder, family=family)):
        with pytest.raises(PrismError, match=rf"1 weight is missing \((model\.)?{Q_PROJ}\)"):
            opener(tmp_path / "cut")


def no_permission(path: Path, **_: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    """Whatever loads it: a policy, a new PRM, a plan, a tokenizer. A changed file is converted again, in its place."""
    folder, users = tmp_path / "model", tmp_path / "users"
    expected = gguf_model(folder)
    converted = folder / "model.gguf.converted"
    load_tokenizer_of(str(folder))
    assert [path.name for path in converted.glob("*/*")] == ["tokenizer"], "weights are not needed yet"
    state = load_hf(folder, dtype="float32").model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    assert sum("converting its" in note for note in said) == 2
    original = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")

    with monkeypatch.context() as patch:
        patch.setattr("transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint", never)
        patch.setattr("prism_prm.models.gguf_files.hashlib.file_digest", never)
        policy, prm = load_hf(folder, dtype="float32"), init_prm(folder, family="token-classification", dtype="float64")
        texts = [*CORPUS, "<|im_start|>x<|im_end|> 12345", " a\n\n\nb  1+1=2'll", "\u4e2d"]
        for one in (policy, prm):
            assert one.tokenizer(texts)["input_ids"] == original(texts)["input_ids"]
        assert (policy.model.dtype, prm.module.backbone.dtype) == (torch.float32, torch.float64)
        assert load_hf(folder, dtype="auto").model.dtype == torch.float32, "it is tiny"
        assert load_skeleton(str(folder), fresh=True, family="token-classification").sizes.layers == 2

    (before,) = (path for path in converted.iterdir() if path.is_dir())
    os.utime(folder / "model.gguf")
    load_hf(folder)
    assert before.is_dir(), "the time alone does not count"
    (folder / "model.gguf").write_bytes((folder / "model.gguf").read_bytes() + b"\0")
    load_hf(folder)
    (after,) = (path for path in converted.iterdir() if path.is_dir())
    assert after != before

    shutil.rmtree(converted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(users))
    monkeypatch.setattr("prism_prm.models.gguf_files.os.access", lambda *_: False)
    load_hf(folder)
    assert not converted.exists()
    assert len(list(users.glob("prism-prm/gguf/*/*/model/config.json"))) == 1

    (users / "prism-prm").rename(tmp_path / "away")
    (users / "prism-prm").write_text("nothing can be written here")
    shutil.copytree(next((tmp_path / "away" / "gguf").iterdir()), converted)
    load_hf(folder)  # a conversion beside the file needs no other place
    shutil.rmtree(next(converted.glob("*/model")))
    (users / "prism-prm").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("prism_prm.files.Path.mkdir", no_permission)
        with pytest.raises(PrismError, match=r"prism-prm.*: cannot be written \(Permission denied\)"):
            load_hf(folder)
    load_hf(folder)  # its tokenizer is beside the file, and its weights are converted elsewhere
    assert [path.name for path in users.glob("prism-prm/gguf/*/*/*")] == ["model"]


def test_a_gguf_conversion_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_model(tmp_path / "model")
    real = load_lm.load_checked

    def changes(*arguments: Any, **options: Any) -> Any:
        model = real(*arguments, **options)
        os.utime(tmp_path / "model" / "model.gguf")
        with (tmp_path / "model" / "model.gguf").open("ab") as file:
            file.write(b"\0")
        return model

    with monkeypatch.context() as patch:
        patch.setattr(load_lm, "load_checked", changes)
        with pytest.raises(PrismError, match=r"model.gguf: changed while it was converted; load it again"):
            load_hf(tmp_path / "model")
    assert not list(tmp_path.rglob("*.safetensors"))
    load_hf(tmp_path / "model")


@pytest.fixture
def adapter(qwen_prm: Path, tmp_path: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["score"])
    get_peft_model(load_prm(qwen_prm).module, config).save_pretrained(tmp_path / "adapter")
    load_prm(qwen_prm, adapter=tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda key: key.replace(".model.layers", ".layers"),
            r"lacks 8 weights, .*layers\.0\.self_attn\.q_proj\.lora_A",
        ),
        (lambda key: None if "layers.1.self_attn.v_proj.lora_B" in key else key, r"lacks 1 weight.*1.*v_proj\.lora_B"),
        (lambda key: None if "score.2.bias" in key else key, r"score\.2\.bias"),
        (lambda key: key.replace("layers.1", "layers.7"), r"no place for 4 weights, .*layers\.7\.self_attn\.q_proj"),
    ],
    ids=["other names", "one is missing", "head is missing", "other layers"],
)
def test_an_adapter_must_fit(qwen_prm: Path, adapter: Path, change: Callable[[str], str | None], message: str) -> None:
    file = adapter / "adapter_model.safetensors"
    weights = {change(key): value for key, value in load_file(file).items()}
    save_file({key: value for key, value in weights.items() if key is not None}, file)
    with pytest.raises(PrismError, match=message):
        load_prm(qwen_prm, adapter=adapter)


def test_an_adapter_of_another_size_or_model_is_named(qwen_prm: Path, adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    with pytest.raises(PrismError, match=r"adapter: .*q_proj\.lora_A"):
        load_prm(qwen_prm, adapter=adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["c_attn"]}))
    with pytest.raises(PrismError, match=r"adapter: .*does not fit the model: No modules were targeted"):
        load_prm(qwen_prm, adapter=adapter)


def test_an_adapter_of_a_language_model_fits_its_prm(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    """Its task is another one, but its weights are the same backbone's."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(tiny_lm("llama"))
    wrapped = get_peft_model(lm, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    wrapped.save_pretrained(tmp_path / "adapter")
    found = load_prm(tiny_lm("llama"), family="rlhflow", adapter=tmp_path / "adapter")
    merged = wrapped.merge_and_unload().state_dict()[f"model.{Q_PROJ}"]
    assert torch.equal(found.module.state_dict()[f"model.{Q_PROJ}"], merged)


def test_an_adapter_alone_is_no_language_model(tiny_lm: Callable[..., Path], adapter: Path) -> None:
    shutil.copy(tiny_lm("qwen2") / "config.json", adapter)
    for opener in (load_hf, init_prm):
        with pytest.raises(PrismError, match="is a LoRA adapter"):
            opener(adapter)


@pytest.mark.parametrize(
    ("hidden", "has_bf16", "expected"),
    [(BF16_HIDDEN, True, "bfloat16"), (BF16_HIDDEN, False, "float32"), (BF16_HIDDEN - 1, True, "float32")],
)
def test_auto_is_bfloat16_on_cpus_that_have_it(
    hidden: int, has_bf16: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_lm, "has_bf16", lambda: has_bf16)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    said: list[str] = []
    with shown_on(Console(said.append)):
        chosen = pick_dtype("auto", torch.device("cpu"), str(tmp_path))
    assert chosen == getattr(torch, expected)
    assert said == [f"{tmp_path}: dtype auto is {expected} here"]
    assert pick_dtype(None, torch.device("cpu"), str(tmp_path)) == torch.float32, "bfloat16 only on request"
    assert pick_dtype("auto", torch.device("cuda"), str(tmp_path)) == "auto", "the checkpoint's own"


def test_auto_is_the_model_of_the_dtype_it_chose(
    tiny_lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_lm, "has_bf16", lambda: True)
    monkeypatch.setattr(load_lm, "BF16_HIDDEN", 1)
    init_prm(tiny_lm("qwen2"), family="qwen", dtype="float32").save(tmp_path / "prm")
    by_dtype = {dtype: load_prm(tmp_path / "prm", dtype=dtype) for dtype in ("auto", "bfloat16", "float32")}
    assert by_dtype["auto"].identity() == by_dtype["bfloat16"].identity() != by_dtype["float32"].identity()
    assert by_dtype["auto"].score(PROBLEM, STEPS) == pytest.approx(by_dtype["float32"].score(PROBLEM, STEPS), abs=0.05)
    assert load_hf(tiny_lm("qwen2"), dtype="auto").model.dtype == torch.bfloat16
