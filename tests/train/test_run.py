"""A whole run of the tiny recipe: what it leaves, what it refuses, and that it can be killed anywhere."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from some_pairs import write_sums

import prism_process
from killing import run_killed
from launching import together
from prism_prm.backends.load_prm import init_prm, load_prm
from prism_prm.config import from_mapping
from prism_prm.data.tables import write_trees
from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.job import Job, locked
from prism_prm.models.card import read_card
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.train.recipe import Recipe, load_recipe
from prism_prm.train.train_prm import data_segmenter, make_data, train_prm
from prism_prm.tree import Step, StepTree

GOLDEN = Path(__file__).parent.parent / "golden" / "tiny_recipe.json"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    """The tiny recipe on disc, with its data and base PRM."""
    folder = tmp_path_factory.mktemp("recipe")
    write_sums(folder / "sums.jsonl")
    init_prm(tiny_lm("qwen2"), family="qwen", seed=3).save(folder / "base")
    (folder / "tiny.toml").write_text(
        f"""
report_to = []
[data]
inputs = ["{folder}/sums.jsonl"]
split = {{ train = 0.7, validation = 0.3 }}
[data.pairs]
audit = "off"
[base]
prm = "{folder}/base"
[curriculum]
bins = [[0.0, 1.0], [-1.0, 0.0]]
[train]
lr = 1e-3
pairs_per_update = 32
checkpoint_every = 2
"""
    )
    return folder / "tiny.toml"


@pytest.fixture(scope="module")
def finished(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("run") / "finished"
    command(recipe_file, folder)
    return folder


def command(recipe: Path, out: Path, *more: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = prism_process.run("train", recipe, "--out", out, *more)
    assert not check or result.returncode == 0, result.stderr
    return result


def run(recipe_file: Path, folder: Path, *assignments: str) -> dict[str, Any]:
    return train_prm(load_recipe(recipe_file, assignments), folder, accelerator=Accelerator(cpu=True))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_what_a_run_leaves(finished: Path) -> None:
    result = json.loads((finished / "run.json").read_text())
    assert list(result["rounds"]) == ["0_base", "1_0_to_1", "2_-1_to_0"]
    best = min(("1_0_to_1", "2_-1_to_0"), key=lambda name: result["rounds"][name]["fpr_at_tpr_90"])
    assert result["best"] == f"rounds/{best}", "a run's folder may be moved"
    criterion = {name: metrics["fpr_at_tpr_90"] for name, metrics in result["rounds"].items()}
    assert result["beats_base"] == (criterion[best] < criterion["0_base"])
    for name in ("1_0_to_1", "2_-1_to_0"):
        prm = load_prm(finished / "rounds" / name)
        card = read_card(finished / "rounds" / name)
        assert card is not None
        assert card.threshold == result["rounds"][name]["threshold"] != 0.5
        assert (
            f"| a step counts as right | above {card.threshold} |"
            in (finished / "rounds" / name / "README.md").read_text()
        )
        assert len(prm.score("problem 1: start with 3", ["then 3 + 4 = 7"])) == 1
    margins = json.loads((finished / "margins.json").read_text())
    assert margins["pairs"] == sum(margins["bins"].values()) + sum(margins["dropped"].values())
    assert margins["pairs"] == sum(map(sum, margins["histogram"]["counts"].values()))
    assert result["examples"] == {"fitting": margins["pairs"], "too_long": 0}
    assert {result["rounds"][name]["too_long_steps"] for name in result["rounds"]} == {0}
    assert load_recipe(finished / "recipe.toml").train.lr == 1e-3
    assert not (finished / "checkpoints").exists()


def test_losses_are_the_golden_ones(finished: Path) -> None:
    assert losses(finished) == pytest.approx(json.loads(GOLDEN.read_text()), abs=1e-5)


def test_a_finished_run_does_nothing_and_says_so(recipe_file: Path, finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    again = command(recipe_file, finished)
    assert "already finished; nothing to do" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"} == before


def test_a_folder_belongs_to_one_recipe(recipe_file: Path, finished: Path) -> None:
    other = command(recipe_file, finished, "--set", "train.lr=0.5", check=False)
    assert other.returncode == 2
    assert "was started with other settings" in other.stderr
    assert "lr = 0.5" in other.stderr


def test_a_start_that_fails_claims_nothing(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    """Mistakes of every stage before training, mended one after the other in the same folder."""
    for wanted, message in [
        (['data.inputs=["/nowhere/typo.jsonl"]'], "no such file or folder"),
        (["data.pairs.lookahead=none", "validation.split=dev"], "no tree is in the split 'dev'"),
        (["base.prm=/nowhere/typo"], "/nowhere/typo"),
        (["curriculum.bins=[[0.9, 1.0], [0.8, 0.9]]"], "have no pairs"),
    ]:
        with pytest.raises(PrismError, match=message):
            run(recipe_file, tmp_path, *wanted)
    run(recipe_file, tmp_path)
    assert load_recipe(tmp_path / "recipe.toml") == load_recipe(recipe_file)
    assert losses(tmp_path) == losses(finished)


def test_an_update_that_fails_first_claims_nothing(recipe_file: Path, tmp_path: Path) -> None:
    """A loss that is no number may be mended by other settings, as the message says."""
    base = tmp_path / "broken"
    prm = load_prm(recipe_file.parent / "base")
    with torch.no_grad():
        prm.module.get_parameter("score.2.bias")[:] = 1e38
        prm.module.get_parameter("score.2.weight")[:] = 1e38
    prm.save(base)
    everything = ["curriculum.mode=none", "curriculum.bins=[[-1.0, 1.0]]", "validation.split="]
    with pytest.raises(PrismError, match=r"update 0: .*another --out"):
        run(recipe_file, tmp_path / "run", f"base.prm={base}", "objective.space=log-odds", *everything)
    run(recipe_file, tmp_path / "run", *everything)


@pytest.mark.parametrize("what", ["training data", "validation data", "base PRM"])
def test_a_run_whose_data_or_base_prm_changed_is_not_gone_on_with(
    recipe_file: Path, finished: Path, tmp_path: Path, what: str
) -> None:
    """Same paths, same ids, other content: rounds of two kinds must not follow each other."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "run.json").unlink()
    run(recipe_file, out)  # nothing has changed: it finishes what is left
    (out / "run.json").unlink()
    base = recipe_file.parent / "base"
    kept = tmp_path / "kept"
    shutil.copytree(base, kept)
    if what == "base PRM":
        prm = load_prm(base)
        with torch.no_grad():
            prm.module.get_parameter("score.2.bias")[0] += 0.5
        shutil.rmtree(base)
        prm.save(base)
    else:
        split = what.split()[0].removesuffix("ing")
        table = pq.read_table(out / "data" / "trees.parquet")
        rows = table.to_pylist()
        next(row for row in rows if row["split"] == split)["problem"] += " (changed)"
        pq.write_table(pa.Table.from_pylist(rows, table.schema), out / "data" / "trees.parquet")
    try:
        with pytest.raises(PrismError, match=f"the {what} changed since .*Name another --out"):
            run(recipe_file, out)
    finally:
        shutil.rmtree(base)
        shutil.copytree(kept, base)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_whose_input_changed_is_refused(
    recipe_file: Path, finished: Path, tmp_path: Path, is_finished: bool
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    if not is_finished:
        (out / "run.json").unlink()
    sums = recipe_file.parent / "sums.jsonl"
    before = sums.read_text()
    try:
        sums.write_text(before.replace("problem 1:", "problem one:"))
        with pytest.raises(PrismError, match=rf"^{out}: {sums} changed since this run read it\. Name another --out"):
            run(recipe_file, out)
        sums.unlink()
        run(recipe_file, out)  # what is gone is not other data
    finally:
        sums.write_text(before)
    run(recipe_file, out)


def test_data_are_made_anew_if_their_input_changed(tmp_path: Path) -> None:
    write_sums(tmp_path / "sums.jsonl", num_problems=5)
    (tmp_path / "no.jsonl").write_text('{"problem": "problem 0: start with 7", "answer": "1"}\n')
    recipe = from_mapping(
        Recipe,
        {
            "data": {"inputs": [str(tmp_path / "sums.jsonl")], "exclude": [str(tmp_path / "no.jsonl")]},
            "base": {"prm": "x"},
        },
    )

    def made() -> tuple[int, int]:
        make_data(recipe, Job(tmp_path))
        summary = tmp_path / "data" / "summary.json"
        return json.loads(summary.read_text())["trees"], summary.stat().st_mtime_ns

    trees, when = made()
    assert made() == (trees, when), "nothing to do"
    write_sums(tmp_path / "sums.jsonl", num_problems=6)
    assert made()[0] == trees + 1
    (tmp_path / "no.jsonl").write_text('{"problem": "problem 5: start with 1"}\n' * 1)
    before = made()[1]
    assert before != when
    recipe = replace(recipe, data=replace(recipe.data, pairs=replace(recipe.data.pairs, lookahead="none")))
    assert made()[1] != before


def test_killed_anywhere_it_ends_with_the_same_weights(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    update = "prism_prm.train.loop:TrainingRound._update"
    moments: list[tuple[Any, ...]] = [
        ("os:replace", 2, f"{out}/scores/"),
        ("os:replace", 1, f"{out}/checkpoints/1_0_to_1/"),
        (update, 5),
        ("os:replace", 1, f"{out}/rounds/1_0_to_1"),
        ("os:replace", 2, f"{out}/checkpoints/2_-1_to_0/"),
    ]
    for moment in moments:
        run = run_killed(["train", recipe_file, "--out", out], *moment)
        assert run.returncode == -signal.SIGKILL, f"{moment}: {run.stderr}"
    command(recipe_file, out)
    for name in ("1_0_to_1", "2_-1_to_0"):
        whole, resumed = weights(finished / "rounds" / name), weights(out / "rounds" / name)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert losses(out) == losses(finished)


def test_two_processes_do_the_same(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    result = together("train", recipe_file, "--out", tmp_path / "two")
    assert result.returncode == 0, result.stderr
    assert "processes: 2" in result.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(finished), abs=1e-4)
    for name in ("1_0_to_1", "2_-1_to_0"):
        one, two = weights(finished / "rounds" / name), weights(tmp_path / "two" / "rounds" / name)
        for key in one:
            torch.testing.assert_close(two[key], one[key], atol=1e-4, rtol=0)


def test_a_full_disc_says_so_and_loses_nothing(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a disc without room: writing fails in the same place."""
    out = tmp_path / "full"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY)); "
    result = prism_process.run("train", recipe_file, "--out", out, code=limit + prism_process.PRISM)
    assert result.returncode == 2, result.stderr
    assert "update-000002: cannot be written (File too large); no partial file is left." in result.stderr
    assert "free some space there and rerun the same command" in result.stderr
    command(recipe_file, out)
    assert losses(out) == losses(finished)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ('data.inputs=["/nowhere/x.jsonl"]', "/nowhere/x.jsonl"),
        ("curriculum.bins=[[0.9, 1.0], [0.8, 0.9]]", r"rounds .* have no pairs \(bins"),
        ("data.split={validation=1.0}", r"no tree is in the split 'train'.* in a recipe with \[data\] split"),
        ("validation.split=dev", "no tree is in the split 'dev'"),
    ],
)
def test_bad_input(recipe_file: Path, tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(recipe_file, tmp_path / "run", assignment)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_no_pairs_left(recipe_file: Path, tmp_path: Path) -> None:
    labels = tmp_path / "right.jsonl"
    labels.write_text('{"prompt": "p", "completions": ["a", "b"], "labels": [true, true]}\n' * 3)
    wanted = [f'data.inputs=["{labels}"]', "data.pairs.lookahead=none", "validation.split=", "data.split={train=1.0}"]
    with pytest.raises(DataError, match="has no pairs left"):
        run(recipe_file, tmp_path / "run", *wanted)


def test_a_criterion_that_nothing_can_be_measured_by_is_refused_before_training(
    recipe_file: Path, tmp_path: Path
) -> None:
    """Without alternatives there are labels, but no pairs."""
    trees = [
        StepTree.chain(f"problem {i}", [Step(f"{i} + 1", label=1.0), Step("2", label=float(i % 2))], tree_id=i)
        for i in range(20)
    ]
    write_trees(tmp_path / "chains.parquet", trees, source="test")
    settings = (
        f'data.inputs=["{tmp_path}/chains.parquet"]', "data.pairs.lookahead=none", "objective.on=labels",
        "objective.name=bce", "curriculum.mode=none", "validation.criterion=pairwise_accuracy",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"validation\.criterion = 'pairwise_accuracy'"):
        run(recipe_file, tmp_path / "run", *settings)
    assert not (tmp_path / "run" / "begun.json").exists(), "the recipe may still change"


def test_other_ways_to_train(recipe_file: Path, tmp_path: Path, tiny_lm: Callable[..., Path]) -> None:
    """Adapters, frozen layers, labels, a fresh head, gradient checkpointing: each trains what it should."""
    lora = run(recipe_file, tmp_path / "lora", "hardware.lora.r=4", "curriculum.mode=none", "train.max_grad_norm=0")
    base, merged = weights(recipe_file.parent / "base"), weights(Path(lora["best"]))
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert base.keys() == merged.keys()
    assert "model.layers.0.mlp.up_proj.weight" in changed
    assert "score.2.weight" in changed
    assert "model.embed_tokens.weight" not in changed

    wanted = ["hardware.frozen_layers=1", "hardware.gradient_checkpointing=true", "curriculum.mode=none"]
    frozen = weights(Path(run(recipe_file, tmp_path / "frozen", *wanted)["best"]))
    changed = {name for name in base if not torch.equal(base[name], frozen[name])}
    assert not any(name.startswith(("model.embed_tokens", "model.layers.0.")) for name in changed)
    assert any(name.startswith("model.layers.1.") for name in changed)

    text = recipe_file.read_text().replace(f'prm = "{recipe_file.parent}/base"', f'backbone = "{tiny_lm("qwen2")}"')
    fresh = tmp_path / "fresh.toml"
    fresh.write_text(text)
    labels = run(fresh, tmp_path / "labels", "objective.name=bce", "objective.on=labels", "curriculum.mode=none")
    assert list(labels["rounds"]) == ["0_base", "1_all"]
    assert not (tmp_path / "labels" / "margins.parquet").exists()


@pytest.mark.parametrize("how", [["objective.name=hybrid"], ["objective.name=bce", "hardware.lora.r=2"]])
def test_a_verdict_is_trained_with_the_labels_that_a_recipe_sets(
    recipe_file: Path, tmp_path: Path, tiny_lm: Callable[..., Path], how: list[str]
) -> None:
    text = recipe_file.read_text().replace(f'prm = "{recipe_file.parent}/base"', f'backbone = "{tiny_lm("llama")}"')
    (tmp_path / "verdict.toml").write_text(text)
    base = ["base.family=verdict", "base.settings={yes='x', no='y', template='none'}"]
    found = run(tmp_path / "verdict.toml", tmp_path / "run", *base, *how, "curriculum.mode=none")
    trained = load_prm(Path(found["best"]))
    assert (trained.family.name, trained.card.settings["yes"]) == ("verdict", "x")
    before = load_prm(tmp_path / "run" / "base")
    assert trained.score("1 + 2?", ["3"]) != before.score("1 + 2?", ["3"])


def test_bf16_arithmetic_trains_32_bit_weights(recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "bf16"
    command(recipe_file, out, "--set", "hardware.mixed_precision=bf16", "--set", "curriculum.mode=none")
    trained = weights(out / "rounds" / "1_all")
    base = weights(recipe_file.parent / "base")
    assert all(tensor.dtype == torch.float32 for tensor in trained.values())
    assert not torch.equal(trained["score.2.weight"], base["score.2.weight"])


def test_one_command_at_a_time(recipe_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder), pytest.raises(PrismError, match="another process is running here"):
        run(recipe_file, folder)


def test_rescoring_bins_later_rounds_by_the_trained_prm(recipe_file: Path, tmp_path: Path) -> None:
    run(recipe_file, tmp_path / "run", "curriculum.rescore=true", "lookahead_ratio=1.0")
    first = json.loads((tmp_path / "run" / "margins.json").read_text())
    second = json.loads((tmp_path / "run" / "margins-2_-1_to_0.json").read_text())
    assert first["bins"] != second["bins"]
    assert first["dropped"]["over-lookahead-ratio"] > 0


def test_the_lookahead_ratio_holds_without_margins_too(recipe_file: Path, tmp_path: Path) -> None:
    everything = ["curriculum.mode=none", "curriculum.bins=[[-1.0, 1.0]]"]
    trained = {}
    for name, more in {"all": [], "mixed": ["lookahead_ratio=0.0"]}.items():
        run(recipe_file, tmp_path / name, *everything, *more)
        lines = (tmp_path / name / "log.jsonl").read_text().splitlines()
        trained[name] = sum(json.loads(line)["examples"] for line in lines)
    kinds = pq.read_table(tmp_path / "all" / "data" / "pairs.parquet", filters=[("split", "=", "train")])["kind"]
    assert trained == {"all": len(kinds), "mixed": kinds.to_pylist().count("annotated")}


def test_a_limit_that_cannot_be_met_is_said(recipe_file: Path, tmp_path: Path, said: list[str]) -> None:
    wanted = [
        "curriculum.mode=none",
        "curriculum.bins=[[-1.0, 1.0]]",
        "validation.split=",
        "train.pairs_per_update=150",
    ]
    recipe = load_recipe(recipe_file, [*wanted, "train.max_pairs_per_tree_per_update=1"])
    train_prm(recipe, tmp_path, accelerator=Accelerator(cpu=True))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    sizes = [line["examples"] for line in lines]
    assert max(sizes) - min(sizes) <= 1 < min(sizes)
    most = max(line["max_per_tree"] for line in lines)
    trees = Counter(
        pq.read_table(tmp_path / "data" / "pairs.parquet", filters=[("split", "=", "train")])["tree_id"].to_pylist()
    )
    assert most == -(-max(trees.values()) // len(lines)) > 1
    over = sum(size > len(lines) for size in trees.values())
    (about,) = [text for text in said if "cannot be met" in text]
    assert f"{over} trees have too many examples, up to {most} from one tree in an update" in about


def test_impossible_recipes() -> None:
    sections: dict[str, Any] = {"data": {"inputs": ["x"]}, "base": {"prm": "x"}}
    with pytest.raises(
        ConfigError, match=r"Unknown keys \['warmup'\] in \[curriculum\]. Known: \['mode', 'bins', 'rescore'\]"
    ):
        from_mapping(Recipe, {**sections, "curriculum": {"warmup": 1}})
    with pytest.raises(ConfigError, match=r"objective.on = 'labels' has no margins"):
        from_mapping(Recipe, {**sections, "objective": {"name": "bce", "on": "labels"}})
    with pytest.raises(ConfigError, match=r"\[base\] needs either"):
        from_mapping(Recipe, {**sections, "base": {}})
    with pytest.raises(ConfigError, match=r"\[data\] needs either"):
        from_mapping(Recipe, {**sections, "data": {}})
    with pytest.raises(ConfigError, match=r"Unknown aggregator 'minn'. Known: last, min"):
        from_mapping(Recipe, {**sections, "validation": {"aggregator": "minn"}})


def test_other_cache_settings_go_on_with_a_run(recipe_file: Path, finished: Path) -> None:
    """They change nothing that is learned; anything else is refused."""
    assert run(recipe_file, finished, "hardware.cache_gb=1")["best"].startswith(str(finished))
    with pytest.raises(ConfigError, match=r"was started with other settings.*lr = 0.5"):
        run(recipe_file, finished, "hardware.cache_gb=1", "train.lr=0.5")


def test_a_cache_of_rounded_states_cannot_be_added_later(recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    """With bf16, margins and validation would change in the middle of the run; without, only the time does."""
    more = ["hardware.frozen_layers=1", "hardware.mixed_precision=bf16"]
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    saved = out / "recipe.toml"
    saved.write_text(saved.read_text().replace('mixed_precision = "no"', 'mixed_precision = "bf16"'))
    saved.write_text(saved.read_text().replace("frozen_layers = 0", "frozen_layers = 1"))
    assert run(recipe_file, out, *more)
    with pytest.raises(ConfigError, match=r"was started with other settings.*hardware.cache = "):
        run(recipe_file, out, *more, f"hardware.cache={out / 'cache'}")


def test_the_card_names_the_segmenter_of_the_data(tmp_path: Path) -> None:
    for chosen, formats, expected in [
        (None, {"bug-fixes": 3}, "code"), (None, {"prm800k": 3}, None), ("sentence", {"bug-fixes": 3}, "sentence"),
        (None, {"bug-fixes": 3, "prm800k": 3}, None),
    ]:  # fmt: skip
        summary = {"settings": {"segmenter": chosen}, "records": {"formats": formats}}
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        assert data_segmenter(tmp_path) == expected
    assert data_segmenter(tmp_path / "other") is None


def test_bug_fixes_train_a_prm_that_reads_logical_lines(recipe_file: Path, tmp_path: Path) -> None:
    fixes = Path(__file__).parents[1] / "data" / "bug_fixes.jsonl"
    more = ["data.split={train=1.0}", "validation.split=", "curriculum.mode=none", "data.pairs.lookahead=none"]
    found = run(recipe_file, tmp_path / "run", f"data.inputs={json.dumps([str(fixes)])}", *more)
    assert load_prm(Path(found["best"])).card.segmenter == "code"


def test_with_kept_states_a_run_ends_the_same(recipe_file: Path, tmp_path: Path) -> None:
    """Margins, rounds and validation with and without the cache; the PRM says what evaluation may keep."""
    plain = run(recipe_file, tmp_path / "plain", "hardware.frozen_layers=1")
    wanted = ["hardware.frozen_layers=1", f"hardware.cache={tmp_path / 'cache'}"]
    kept = run(recipe_file, tmp_path / "kept", *wanted)
    assert losses(tmp_path / "kept") == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)
    for name, value in weights(Path(plain["best"])).items():
        torch.testing.assert_close(weights(Path(kept["best"]))[name], value, atol=1e-3, rtol=0)
    (folder,) = (tmp_path / "cache").glob("*/")
    shards = sorted(folder.iterdir())
    prm = load_prm(kept["best"], cache=tmp_path / "cache")
    assert prm.card.frozen_layers == 1
    assert prm.cache is not None
    assert prm.cache.folder == folder
    run(recipe_file, tmp_path / "again", *wanted, "objective.space=log-odds")
    assert sorted(folder.iterdir()) == shards, "another objective finds all states"


def computed_texts(patch: pytest.MonkeyPatch) -> list[bytes]:
    """The key of every state that the frozen layers compute from now on."""
    keys: list[bytes] = []
    compute = LowerCache._compute

    def watched(cache: LowerCache, needs: Any) -> Any:
        keys.extend(key for need in needs for _, _, key in need.missing)
        return compute(cache, needs)

    patch.setattr(LowerCache, "_compute", watched)
    return keys


def test_heads_are_trained_from_kept_states(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """With all layers frozen, the first run computes the states and others only read them; the result is a PRM."""
    frozen = ["hardware.frozen_layers=2", "train.lr=1e-2"]
    run(recipe_file, tmp_path / "plain", *frozen)
    computed = computed_texts(monkeypatch)
    kept = run(recipe_file, tmp_path / "kept", *frozen, f"hardware.cache={tmp_path / 'cache'}")
    assert losses(tmp_path / "kept") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "kept" / "log.jsonl").read_text().splitlines()]
    assert {line["tokens"] for line in lines} == {0}, "no tokens are packed, only heads run"
    assert len(computed) == len(set(computed)) > 0
    assert [note.split(":")[0] for note in said if note.endswith("tokens/s")] == ["frozen layers"]

    base, trained = weights(recipe_file.parent / "base"), weights(Path(kept["best"]))
    assert {name.split(".")[0] for name in base if not torch.equal(base[name], trained[name])} == {"score"}
    live, cached = load_prm(kept["best"]), load_prm(kept["best"], cache=tmp_path / "cache")
    assert (live.card.frozen_layers, live.cache) == (2, None)
    computed.clear()
    steps = [f"then {number}" for number in range(4)]
    assert cached.score("problem", steps) == pytest.approx(live.score("problem", steps), abs=1e-5)
    assert len(computed) == len(steps), "other texts are computed"

    computed.clear()
    run(recipe_file, tmp_path / "other", *frozen, f"hardware.cache={tmp_path / 'cache'}", "objective.space=log-odds")
    assert not computed, "another arm finds all states"


def test_a_run_that_is_killed_while_the_cache_is_filled_and_one_of_two_processes(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    wanted = ["hardware.frozen_layers=2", f"hardware.cache={cache}", "hardware.score_tokens=400"]
    words = ["train", recipe_file, *(part for one in wanted for part in ("--set", one)), "--out", tmp_path / "run"]
    killed = run_killed(words, "prism_prm.models.lower_cache:LowerCache.flush", 4)
    assert killed.returncode == -signal.SIGKILL
    prm = load_prm(recipe_file.parent / "base", cache=CacheSettings(cache, 2))
    assert prm.cache is not None
    before = set(prm.cache._places)
    assert len(list(prm.cache.folder.iterdir())) == 3
    computed = computed_texts(monkeypatch)
    run(recipe_file, tmp_path / "run", *wanted)
    assert not before & set(computed), "what is there is not computed again"
    assert len(computed) == len(set(computed)) > 0
    two = together(*words[:-1], tmp_path / "two", "--set", f"hardware.cache={tmp_path / 'other'}")
    assert two.returncode == 0, two.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "two"), abs=1e-5)
    other = load_prm(recipe_file.parent / "base", cache=CacheSettings(tmp_path / "other", 2)).cache
    assert other is not None
    assert set(other._places) == before | set(computed)


def test_weights_that_are_gone_are_noticed(recipe_file: Path, finished: Path, tmp_path: Path, said: list[str]) -> None:
    """A finished run whose best round has lost its weights is not done: it is trained again, to the same bits."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    best = json.loads((out / "run.json").read_text())["best"]
    (out / best / "model.safetensors").unlink()
    with pytest.raises(PrismError, match="the weights of this run's best round are missing"):
        load_prm(out)
    result = train_prm(load_recipe(recipe_file), out, accelerator=Accelerator(cpu=True))
    assert said[0] == f"{out / best}: the weights of the best round are missing; the round is trained again."
    assert not any("nothing to do" in line for line in said)
    assert result["best"] == str(out / best)
    for key, value in weights(finished / best).items():
        assert torch.equal(weights(out / best)[key], value)
    assert (out / best / "prism.json").read_text() == (finished / best / "prism.json").read_text()
    assert losses(out) == losses(finished)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"best": 3}', '{"best": "rounds/1"}', "[" * 20_000])
def test_a_broken_run_file_is_said(text: str, recipe_file: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "run.json").write_text(text)
    message = r"run/run\.json: not what `prism train` writes there \(.*\)\. Remove it and rerun `prism train`"
    with pytest.raises(PrismError, match=message):
        run(recipe_file, out)
    with pytest.raises(PrismError, match=message):
        load_prm(out)
