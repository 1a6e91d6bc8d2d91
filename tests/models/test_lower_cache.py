"""With what the frozen layers make of texts kept on disc, every score is the one of the whole model."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from test_exactness import COMB

from prism_prm import load_prm
from prism_prm.cli import app
from prism_prm.errors import ConfigError, DataError
from prism_prm.models.lower_cache import CacheSettings, LowerCache, hash_lower
from prism_prm.models.prm import PRM
from prism_prm.tree import Step, StepTree
from tiny import FAMILY_MODELS

Tiny = Callable[..., Any]


def cached(prm: PRM, folder: Path, gigabytes: float = 1.0, *, layers: int = 1, bf16: bool = False) -> PRM:
    """A PRM of the same weights that caches what its lowest layer, or all of them, make of texts."""
    other = copy.deepcopy(prm)
    other.cache = LowerCache(other.module, CacheSettings(folder, layers, gigabytes, bf16))
    return other


def never(*_: object) -> Any:
    raise AssertionError("the frozen layers run again")


def assert_same_scores(one: PRM, other: PRM, *trees: Any) -> None:
    for a, b in zip(one.score_trees(trees), other.score_trees(trees), strict=True):
        np.testing.assert_allclose(a.log_odds_NO, b.log_odds_NO, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_scores_are_those_of_the_whole_model(
    tmp_path: Path, tiny_prm: Tiny, family: str, kind: str, layers: int
) -> None:
    prm = tiny_prm(family, kind)
    other = cached(prm, tmp_path, layers=layers)
    more = COMB.with_leaves([(2, Step("done")), (-1, Step("x = 12"))])
    for tree in (COMB, more):
        assert_same_scores(prm, other, tree)
    other.module.lower = never  # type: ignore[method-assign]
    assert_same_scores(prm, other, more, COMB)
    again = cached(prm, tmp_path, layers=layers)
    again.module.lower = never  # type: ignore[method-assign]
    if layers == 2:
        again.module.backbone.forward = never
    assert_same_scores(prm, again, COMB)


@pytest.mark.parametrize(
    ("dtype", "bf16", "tolerance"), [("float64", False, 1e-9), ("float32", False, 1e-5), ("float32", True, 0.05)]
)
def test_states_of_all_layers_are_kept_only_where_they_are_read(
    tmp_path: Path, tiny_prm: Tiny, dtype: str, bf16: bool, tolerance: float
) -> None:
    """The storage is one state per step; with bf16 it has 16 bits, and scores differ by what they round."""
    prm = tiny_prm("qwen", "qwen2", dtype)
    expected = prm.score_trees([COMB])[0].log_odds_NO
    for layers in (1, 2):
        other = cached(prm, tmp_path, layers=layers, bf16=bf16)
        for _ in range(2):  # computed, then read from the cache
            found = other.score_trees([COMB])[0].log_odds_NO
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))
    assert other.cache is not None
    (states,) = other.cache._shards
    assert states.shape == (len(COMB.nodes), prm.module.config.hidden_size)
    assert states.dtype == (torch.bfloat16 if bf16 else getattr(torch, dtype))
    assert not states.untyped_storage().resizable(), "memory-mapped"


def test_the_last_norm_counts_if_all_layers_are_frozen(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = copy.deepcopy(prm)
    with torch.no_grad():
        other.module.get_parameter("model.norm.weight").mul_(2)
    folders = {cached(one, tmp_path, layers=layers).cache.folder for one in (prm, other) for layers in (1, 2)}  # type: ignore[union-attr]
    assert len(folders) == 3


def test_what_a_killed_process_left_is_removed(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path)
    other.fill_cache([COMB], [range(len(COMB.nodes))])
    assert other.cache is not None
    (shard,) = other.cache.folder.iterdir()
    shard.with_name(f".{shard.name}.0123abcd.part").write_bytes(b"half a shard")
    assert_same_scores(prm, cached(prm, tmp_path), COMB)
    assert list(other.cache.folder.iterdir()) == [shard]


def test_a_shard_that_a_live_process_writes_is_left_alone(
    tmp_path: Path, tiny_prm: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path)

    def opened_meanwhile(_: int) -> None:
        cached(prm, tmp_path)

    monkeypatch.setattr("prism_prm.files.os.fsync", opened_meanwhile)  # the last step before the shard gets its name
    other.fill_cache([COMB], [range(len(COMB.nodes))])
    assert other.cache is not None
    assert not other.cache.is_full
    assert [path.suffix for path in other.cache.folder.iterdir()] == [".safetensors"]


def test_every_kind_of_layer_has_its_own_half(tmp_path: Path, tiny_prm: Tiny) -> None:
    for kind in ("qwen2-window", "mistral", "llama", "qwen3"):
        prm = tiny_prm("token-classification", kind)
        assert_same_scores(prm, cached(prm, tmp_path / kind), COMB)


@pytest.mark.parametrize(("family", "kind"), FAMILY_MODELS)
def test_one_text_cut_into_other_steps(tmp_path: Path, tiny_prm: Tiny, family: str, kind: str) -> None:
    """The same tokens, but what is read after a step or kept of it is another stretch of them."""
    prm = tiny_prm(family, kind)
    other = cached(prm, tmp_path)
    for steps in (["then z", "3"], ["then z 3"], ["x = 1", "y = 2"], ["x = 1\ny = 2"], ["x = 1\n\ny", "= 2"]):
        assert_same_scores(prm, other, StepTree.chain("p", [Step(text) for text in steps]))


def test_filling_first_is_the_same(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path)
    other.fill_cache([COMB], [range(len(COMB.nodes))])
    assert len(list(other.cache.folder.iterdir())) == 1  # type: ignore[union-attr]
    other.module.lower = never  # type: ignore[method-assign]
    assert_same_scores(prm, other, COMB)


def test_a_full_cache_computes_the_rest(tmp_path: Path, tiny_prm: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path, gigabytes=10_000 / 1e9)
    for _ in range(2):
        assert_same_scores(prm, other, COMB)
    assert other.cache is not None
    assert other.cache.is_full
    assert "is full" in caplog.text
    assert 0 < sum(path.stat().st_size for path in other.cache.folder.iterdir()) < 12_000


def test_two_processes_share_what_they_keep_and_its_bound(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    first, second = cached(prm, tmp_path), cached(prm, tmp_path)
    for one in (first, second):
        one.fill_cache([COMB], [range(len(COMB.nodes))])
    assert first.cache is not None
    (shard,) = first.cache.folder.iterdir()
    size = shard.stat().st_size
    more = [COMB.with_leaves([(2, Step(f"then {i}"))]) for i in range(40)]
    bounded = [cached(prm, tmp_path, gigabytes=1.5 * size / 1e9) for _ in range(2)]
    for tree in more:
        for one in bounded:
            one.fill_cache([tree], [range(len(tree.nodes))])
    assert size < sum(path.stat().st_size for path in first.cache.folder.iterdir()) < 1.6 * size


def test_scores_go_on_where_nothing_can_be_kept(
    tmp_path: Path, tiny_prm: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way of the folder")
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path / "file")
    for _ in range(2):
        assert_same_scores(prm, other, COMB)
        other.fill_cache([COMB], [range(len(COMB.nodes))])
    assert caplog.text.count("cannot cache more activations") == 1


def test_another_kind_of_lower_layer_has_another_folder(tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2-window")
    folders = set()
    for kinds in (["full_attention", "sliding_attention"], ["sliding_attention"] * 2, ["full_attention"] * 2):
        other = copy.deepcopy(prm)
        other.module.config.layer_types = kinds
        folders.add(hash_lower(other.module, 1))
    assert len(folders) == 2, "only the lower layer counts"


def test_other_lower_weights_have_another_folder_and_upper_ones_share_it(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    changed = {}
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        other = copy.deepcopy(prm)
        with torch.no_grad():
            other.module.get_parameter(name).mul_(2)
        changed[name] = cached(other, tmp_path)
        assert_same_scores(other, changed[name], COMB)
    same = cached(prm, tmp_path).cache.folder  # type: ignore[union-attr]
    assert [one.cache.folder == same for one in changed.values()] == [False, True, True]  # type: ignore[union-attr]


def num_calls(run: Callable[[], object]) -> int:
    """How many functions are called, of Python or of C."""
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_does_not_grow_with_the_number_of_shards(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    other = cached(prm, tmp_path)

    def keep_one_more(i: int) -> None:
        other.fill_cache([StepTree.chain(f"What is {i:04d}?", [Step("x = 1")])], [[0]])

    first = [num_calls(lambda i=i: keep_one_more(i)) for i in range(4)][-1]  # type: ignore[misc]
    for i in range(10, 90):
        keep_one_more(i)
    assert other.cache is not None
    assert len(list(other.cache.folder.iterdir())) == 84
    assert num_calls(lambda: keep_one_more(90)) < first + 20
    again = cached(prm, tmp_path)
    again.module.lower = never  # type: ignore[method-assign]
    assert_same_scores(prm, again, *(StepTree.chain(f"What is {i:04d}?", [Step("x = 1")]) for i in range(10, 90)))


def test_shards_of_other_processes_and_other_models_are_seen_while_working(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    first, second = cached(prm, tmp_path), cached(prm, tmp_path)
    changed = copy.deepcopy(prm)
    with torch.no_grad():
        changed.module.get_parameter("model.layers.0.mlp.up_proj.weight").mul_(2)
    foreign = cached(changed, tmp_path)
    chains = [StepTree.chain(f"What is {i:04d}?", [Step("x = 1")]) for i in range(3)]
    foreign.score_trees([chains[0]])
    first.score_trees([chains[0]])
    second.score_trees([chains[1]])
    second.module.lower = never  # type: ignore[method-assign]
    assert_same_scores(prm, second, chains[0])
    for one in (first, second, foreign):
        assert one.cache is not None
        one.cache.find_new_shards()
        assert one.cache._bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))


def test_a_cache_that_was_tampered_with(tmp_path: Path, tiny_prm: Tiny) -> None:
    """The list of shards only brings news: a torn, foreign or missing one costs nothing but time."""
    prm = tiny_prm("qwen", "qwen2")
    first, second = cached(prm, tmp_path), cached(prm, tmp_path)
    first.score_trees([COMB])
    (news,) = tmp_path.glob("shards.txt")
    with news.open("a") as file:
        file.write("1-layers-dead/none.safetensors\n17\n../../etc x\n1-layers-dea")
    assert_same_scores(prm, second, COMB)
    news.unlink()
    more = COMB.with_leaves([(2, Step("done"))])
    assert_same_scores(prm, second, more)
    assert_same_scores(prm, cached(prm, tmp_path), more)


def test_a_broken_shard_is_named(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    first = cached(prm, tmp_path)
    first.score_trees([COMB])
    (shard,) = first.cache.folder.iterdir()  # type: ignore[union-attr]
    shard.write_bytes(shard.read_bytes()[:40])
    with pytest.raises(DataError, match=f"{shard.name}: not a shard of cached activations.*remove it"):
        cached(prm, tmp_path)


def test_commands_bound_it(tmp_path: Path, tiny_prm: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    prm = copy.deepcopy(tiny_prm("qwen", "qwen2"))
    prm.card = replace(prm.card, frozen_layers=1)
    prm.save(tmp_path / "prm")
    (tmp_path / "steps.jsonl").write_text('{"problem": "What is 1 + 1?", "steps": ["x = 1"]}')
    words = ["score", tmp_path / "steps.jsonl", "--prm", tmp_path / "prm", "--out", tmp_path / "scores.parquet"]
    cache = ["--set", f"load.cache={tmp_path / 'cache'}", "--set", "cache_gb=0.000001"]
    assert CliRunner().invoke(app, [*map(str, words), *cache]).exit_code == 0
    assert "is full (0.0 GB)" in caplog.text


def test_what_cannot_be_kept(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = copy.deepcopy(tiny_prm("qwen", "qwen2"))
    with pytest.raises(ConfigError, match="3 frozen layers: the model has 2 layers, so between 1 and 2 can be frozen"):
        LowerCache(prm.module, CacheSettings(tmp_path, 3))
    language_model = tiny_prm("implicit", "qwen2").module
    with pytest.raises(ConfigError, match=r"2 frozen layers: the scores of a language model need.*; freeze fewer"):
        LowerCache(language_model, CacheSettings(tmp_path, 2))
    prm.save(tmp_path / "prm")
    with pytest.raises(ConfigError, match=r"prism.json names no frozen_layers"):
        load_prm(tmp_path / "prm", cache=tmp_path / "cache")


def test_states_are_kept_without_dropout(tmp_path: Path, tiny_prm: Tiny) -> None:
    """Also those of a model that is being trained."""
    prm = copy.deepcopy(tiny_prm("qwen", "qwen2"))
    expected = prm.score_trees([COMB])[0].log_odds_NO
    for layer in prm.module.backbone.layers:
        layer.self_attn.attention_dropout = 0.5
    found = cached(prm, tmp_path)
    found.module.train()
    found.module.backbone.layers[0].eval()
    found.fill_cache([COMB], [range(len(COMB.nodes))])
    modes = [found.module.training, *(layer.training for layer in found.module.backbone.layers)]
    assert modes == [True, False, True], "as they were"
    np.testing.assert_allclose(found.score_trees([COMB])[0].log_odds_NO, expected, rtol=0, atol=1e-9)
