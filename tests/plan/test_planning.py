"""A plan is what then happens: tokens and updates of real runs, the sizes of published models, settings that do fit."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator

from prism_prm.backends.load_prm import init_prm, load_prm
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.backends.policy import PolicySettings
from prism_prm.config import settings_of
from prism_prm.data.formats import ReadOptions
from prism_prm.data.pair_examples import Examples
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.evaluate.score_files import TreesToScore, score_files
from prism_prm.losses import Objective
from prism_prm.models.load_settings import LoadSettings
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import Row
from prism_prm.models.prm import pair_cost
from prism_prm.plan.costs import GIB, GPUS, Batch, Cluster, Setup, training_memory
from prism_prm.plan.plan_run import SIZES, ScoringJob, StandIn, plan_run
from prism_prm.plan.plan_settings import PlanSettings
from prism_prm.plan.plan_training import remedies
from prism_prm.plan.skeleton import backbone_sizes, batch_of, count_round, load_skeleton
from prism_prm.search.recipes import SearchRecipe
from prism_prm.train.batches import RowLimits, batch_maker, micro_batches, parts_of_update
from prism_prm.train.loop import TrainingRound
from prism_prm.train.recipe import TrainSettings
from prism_prm.train.train_prm import train_prm
from prism_prm.tree import Step, StepTree

CPU = Cluster("cpu", gpu_memory=16, gpu_tflops=0.1)
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "mistral-7b": 7_241_732_096,
    "smollm2-135m": 134_515_008,
}  # fmt: skip
"""Parameters of the language models, output layer included, as published."""


def sums(num_problems: int) -> Iterator[str]:
    """Labelled solutions in TRL's format, of different lengths."""
    for i in range(num_problems):
        steps = [f"then {i} + {k} = {i + k}, and so on" * (1 + (i + k) % 4) for k in range(3 + i % 3)]
        yield json.dumps(
            {"prompt": f"problem {i}?", "completions": steps, "labels": [True] * (len(steps) - 1) + [False]}
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    """A recipe with its data and base PRM."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "sums.jsonl").write_text("\n".join(sums(24)) + "\n")
    init_prm(tiny_lm("qwen2"), family="qwen", seed=3).save(folder / "base")
    (folder / "recipe.toml").write_text(
        f'report_to = []\n[data]\ninputs = ["{folder}/sums.jsonl"]\nsplit = {{ train = 0.7, validation = 0.3 }}\n'
        f'[data.pairs]\naudit = "off"\n[base]\nprm = "{folder}/base"\n[curriculum]\nbins = [[0.0, 1.0], [-1.0, 0.0]]\n'
        "[train]\nlr = 1e-3\npairs_per_update = 16\nepochs = 2\nrow_tokens = 600\nmicrobatch_tokens = 1000\n"
    )
    return folder


def examples() -> Examples:
    rng = np.random.default_rng(0)

    def text() -> str:
        return "then x + 2 = 3 " * int(rng.integers(1, 12))

    trees = {i: StepTree(i, text(), tuple(Step(text()) for _ in range(6)), (-1, -1, 0, 0, 2, 2), (0, 2, 4))
             for i in range(9)}  # fmt: skip
    columns = np.array([(i, node, node + 1, i) for i in trees for node in (0, 2, 4)]).T
    return Examples(trees, np.arange(columns.shape[1]), *columns)


def test_tokens_and_updates_are_those_of_the_run(place: Path, tmp_path: Path) -> None:
    """Margins first: with them the rounds are those that training makes, update by update."""
    out = tmp_path / "run"
    train_prm(place / "recipe.toml", out, accelerator=Accelerator(cpu=True))
    logged: dict[str, list[int]] = {}
    for line in (out / "log.jsonl").read_text().splitlines():
        update = json.loads(line)
        logged.setdefault(f"round {update['round']}", []).append(update["tokens"])
    plan = plan_run(place / "recipe.toml", CPU, margins=out / "margins.parquet")
    planned = {stage.name: stage for stage in plan.stages if stage.updates}
    assert {name: (len(tokens), sum(tokens)) for name, tokens in logged.items()} == {
        name: (stage.updates, stage.tokens) for name, stage in planned.items()
    }
    assert len(planned) == 2
    most = next(stage for stage in plan_run(place / "recipe.toml", CPU).stages if stage.updates)
    assert most.examples >= sum(stage.examples for stage in planned.values())
    assert most.ratio is not None
    assert most.ratio > 1.5
    assert any("plan.margins=" in note for note in plan_run(place / "recipe.toml", CPU).notes)
    best = json.loads((out / "run.json").read_text())["best"]
    of_run, of_best = (plan_run(ScoringJob(str(prm), (str(place / "sums.jsonl"),)), CPU) for prm in (out, out / best))
    assert of_run.stages == of_best.stages


@pytest.mark.parametrize("ranks", [1, 3, 40])
def test_every_process_is_counted(ranks: int, tiny_lm: Callable[..., Path]) -> None:
    """Against the batches that the processes make; with more processes than trees, some only keep step."""
    prm = init_prm(tiny_lm("qwen2"), dtype="float32", device="cpu")
    settings = TrainSettings(pairs_per_update=12, row_tokens=700, microbatch_tokens=900)
    make = batch_maker(prm.module, settings.microbatch_tokens)
    work = TrainingRound(
        "r",
        prm.module,
        prm.family,
        make,
        RowLimits(700, pair_cost(prm.module)),
        examples(),
        Objective(),
        settings,
        (0,),
        Path("none"),
    )
    counted = count_round(work, prm.module, ranks)
    tokens = weightless = 0
    for update in work.updates:
        parts = parts_of_update(work.examples, update, prm.family, "tree", work.limits)
        for rank in range(ranks):
            for micro in micro_batches(parts, make, 900, rank, ranks):
                tokens += micro.batch.input_ids_BL.numel()
                weightless += 0 if micro.weight else micro.batch.input_ids_BL.numel()
    assert (counted.tally.total.tokens, counted.idle) == (tokens, weightless)
    assert weightless == 0 if ranks == 1 else weightless > 0
    alone = [parts_of_update(work.examples, update, prm.family, "none", work.limits) for update in work.updates]
    assert counted.tally.separate == sum(part.tokens for parts in alone for part in parts)
    pairs = parts_of_update(work.examples, np.arange(len(work.examples)), prm.family, "pair", work.limits)
    assert counted.longest_part == max(part.length for part in pairs)


def test_a_new_prm_has_the_layout_of_its_recipe(place: Path, tmp_path: Path, tiny_lm: Callable[..., Path]) -> None:
    """A plan for a backbone counts the PRM that training makes: its settings, and the family of implicit rewards."""
    text, lm = (place / "recipe.toml").read_text(), tiny_lm("qwen2")
    (tmp_path / "new.toml").write_text(text.replace(f'prm = "{place}/base"', f'backbone = "{lm}"'))
    plain = plan_run(tmp_path / "new.toml", CPU)
    long = plan_run(tmp_path / "new.toml", CPU, assignments=[f"base.settings.system={'be careful ' * 9}"])
    assert all(one.tokens > other.tokens for one, other in zip(long.stages, plain.stages, strict=True))
    implicit = plan_run(tmp_path / "new.toml", CPU, assignments=["objective.name=implicit", "curriculum.mode=none"])
    assert [stage.name.split()[0] for stage in implicit.stages] == ["reference", "validation", "round"]
    assert implicit.model["family"] == "implicit"
    assert implicit.model["parameters"] == backbone_sizes(str(lm), StandIn())[0].parameters, "it has no other head"


def test_scoring_is_counted_as_it_runs(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    forward = PrmModule.forward

    def counting(self: PrmModule, batch: Any) -> Any:
        ran.append((batch.input_ids_BL.numel(), len(batch.owners)))
        return forward(self, batch)

    monkeypatch.setattr(PrmModule, "forward", counting)
    score_files(place / "base", place / "sums.jsonl", tmp_path / "s.parquet", prm_options=PrmOptions(device="cpu"))
    plan = plan_run(ScoringJob(str(place / "base"), (str(place / "sums.jsonl"),)), CPU)
    assert plan.stages[0].tokens == sum(tokens for tokens, _ in ran)
    assert plan.stages[0].separate > 1.2 * plan.stages[0].tokens
    assert plan.fits[0].fits

    ran.clear()  # thinking is dropped, and solutions are cut as the settings say
    pool = tmp_path / "pool.jsonl"
    pool.write_text(
        json.dumps({"problem": "1 + 1?", "solutions": ["<think>\n\nI add.\n\n</think>\n\nIt is 2.\n\nSo 2."]})
    )
    prm = load_prm(place / "base", device="cpu", thinking="dropped")
    prm.score_trees(list(TreesToScore([pool], options=ReadOptions(segmenter="sentence"))))
    own = LoadSettings(thinking="dropped", segmenter="sentence")
    plan = plan_run(ScoringJob(str(place / "base"), (str(pool),), own), CPU)
    assert plan.stages[0].tokens == sum(tokens for tokens, _ in ran)


def test_attention_counts_what_each_kernel_computes(tiny_lm: Callable[..., Path]) -> None:
    """Dense: whole squares. In blocks: 128 queries times what any of them sees. Flex: whole blocks."""
    prm = init_prm(tiny_lm("qwen2"), dtype="float32", device="cpu")
    ends = np.full(300, 300)
    ends[100:200] = 200  # a branch of 100 tokens that the last 100 do not see
    one = Row(np.zeros(300, np.int64), np.arange(300), ends, (299,), ((0, 0),), (0,))
    assert batch_of(prm.module, [one]) == Batch(300, 128 * 128 + 128 * 256 + 44 * 200, 1, 128 + 256 + 200)
    skeleton = load_skeleton(str(tiny_lm("qwen2")), fresh=True)
    assert batch_of(skeleton.module, [one, one]) == Batch(600, 2 * 300**2, 2, 600)
    flex = load_skeleton(str(tiny_lm("qwen2")), fresh=True, attn="flex")
    assert batch_of(flex.module, [one]) == Batch(384, 6 * 128**2, 1)


@pytest.mark.parametrize("name", SIZES)
def test_known_sizes_are_the_published_ones(name: str) -> None:
    sizes, notes = backbone_sizes("some/model", StandIn(name))
    assert sizes.parameters == PUBLISHED[name]
    assert notes == (f"sizes of {name}",)


def test_no_weights_are_needed(place: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(place / "base", bare, ignore=shutil.ignore_patterns("*.safetensors"))
    there = plan_run(place / "recipe.toml", Cluster(count=2))
    assert plan_run(place / "recipe.toml", Cluster(count=2), assignments=[f"base.prm={bare}"]).stages == there.stages
    elsewhere = plan_run(place / "recipe.toml", Cluster(count=2), config=["qwen2.5-7b"], tokenizer=str(bare))
    assert [stage.tokens for stage in elsewhere.stages] != [], "other sizes split trees elsewhere"
    assert elsewhere.model["parameters"] == 7_615_616_512 - 152064 * 3584 + 3584**2 + 3584 + 2 * 3584 + 2
    assert "not the model's own: sizes of qwen2.5-7b" in elsewhere.notes


def test_a_model_that_is_not_at_hand(place: Path, tmp_path: Path) -> None:
    hub = ["base.prm=some/prm"]
    with pytest.raises(ModelError, match=r"some/prm: .*HF_HUB_OFFLINE is set.*plan.config=FOLDER"):
        plan_run(place / "recipe.toml", assignments=hub)
    with pytest.raises(ConfigError, match=r"--set plan.tokenizer=FOLDER"):
        plan_run(place / "recipe.toml", assignments=[*hub, "base.family=qwen"], config=["qwen2.5-7b"])
    with pytest.raises(
        ModelError, match=r"plan.config = nosuch: neither a folder with config.json nor one of qwen2.5-0.5b"
    ):
        plan_run(place / "recipe.toml", config=["nosuch"])
    with pytest.raises(DataError, match=r"no such table of margins"):
        plan_run(place / "recipe.toml", margins=tmp_path / "nosuch.parquet")
    (tmp_path / "grpo.toml").write_text('policy = "x"\n[problems]\ntrain = "y"\n')
    with pytest.raises(ConfigError, match=r"a recipe of `prism grpo`, which cannot be planned"):
        plan_run(tmp_path / "grpo.toml")
    with pytest.raises(ConfigError, match=r"Unknown GPU 'mine'"):
        Cluster("mine")


SEVEN = backbone_sizes("some/model", StandIn("qwen2.5-7b"))[0]
MIXED = Setup(weights=4, compute=2)
LARGE = Batch(8192, 8192 * 4096, 128)


def test_settings_that_are_named_do_fit() -> None:
    """7B on four 48 GB cards: neither a copy per card nor shards fit without checkpointing."""
    cluster = Cluster("a6000", count=4)
    setup = replace(MIXED, gpus=4)
    assert training_memory(SEVEN, LARGE, setup).peak > 130 * GIB
    assert training_memory(SEVEN, LARGE, replace(setup, sharded=True)).peak > cluster.room
    found = remedies(SEVEN, setup, LARGE, cluster, 2048, 4096)
    assert found
    assert all(float(line.rsplit(": ", 1)[1].removesuffix(" GiB")) <= cluster.room / GIB for line in found)
    assert any("hardware.gradient_checkpointing = true and hardware.sharding" in line for line in found)
    assert training_memory(SEVEN, LARGE, replace(setup, checkpointing=True, sharded=True)).peak <= cluster.room
    one = Cluster("rtx4090", count=1)
    alone = remedies(SEVEN, MIXED, LARGE, one, 2048, 4096)
    assert all("GPUs" in line or "lora" in line for line in alone)


def test_hours_follow_from_operations(place: Path) -> None:
    """Twice the utilization is half the time; the busiest of the GPUs decides."""
    one = plan_run(place / "recipe.toml", Cluster("h100", utilization=0.2))
    assert plan_run(place / "recipe.toml", Cluster("h100", utilization=0.4)).hours == pytest.approx(one.hours / 2)
    training = next(stage for stage in one.stages if stage.updates)
    assert training.hours == pytest.approx(training.flops / (67e12 * 0.2) / 3600), "a recipe in 32 bits"
    assert training.efficiency == 1
    many = plan_run(place / "recipe.toml", Cluster("h100", count=32, utilization=0.2))
    spread = next(stage for stage in many.stages if stage.updates)
    assert spread.hours > training.hours / 32
    assert spread.efficiency < 0.5
    assert any("only keep idle GPUs in step" in note for note in many.notes)
    assert many.facts()["gpu_hours"] == pytest.approx(many.hours * 32)


def test_a_search_is_planned_from_the_length_of_its_solutions(place: Path, tiny_lm: Callable[..., Path]) -> None:
    (place / "task.jsonl").write_text('{"problem": "2 + 3?", "answer": "5"}\n' * 3)
    policy = PolicySettings(f"hf:{tiny_lm('qwen2')}")
    recipe = SearchRecipe(task=str(place / "task.jsonl"), policy=policy, prm=(str(place / "base"),), n=(4, 8))
    plan = plan_run(recipe, Cluster("h100"), solution_tokens=100)
    assert [stage.tokens for stage in plan.stages] == [1200, 2400, 1200, 2400]
    assert plan.fits[0].name == "all on one GPU"
    assert plan.fits[0].memory.peak == sum(one.memory.peak for one in plan.fits[1:])
    weights, cached = (sum(one.memory.parts[part] for one in plan.fits[1:]) for part in ("weights", "KV cache"))
    room = 2 + (weights + 0.7 * cached) / GIB
    small = plan_run(recipe, Cluster("small", gpu_memory=room, gpu_tflops=1), solution_tokens=100)
    assert small.remedies == ["--set at_once=2"], "of three"


def test_gpus_have_sensible_numbers() -> None:
    assert all(gpu.fp32 < gpu.bf16 and gpu.memory >= 24 for gpu in GPUS.values())
    assert Cluster("a6000").room == 46 * GIB
    assert Cluster("mine", gpu_memory=10, gpu_tflops=100).speed(2) == 40e12


@pytest.mark.slow
@pytest.mark.parametrize("case", ["small", "between", "middle", "large"])
def test_memory_is_within_a_fifth_of_what_training_takes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sizes; experiments/plan_memory.py has more, and docs/guides/scale.md the numbers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "experiments"))
    import plan_memory

    found = plan_memory.run_case(case)
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.2)
    assert sys.platform == "linux"


def test_hardware_in_one_word() -> None:
    for text, cluster in {
        "h100": Cluster("h100"), "4xa6000": Cluster("a6000", 4), "8×RTX4090": Cluster("rtx4090", 8)
    }.items():  # fmt: skip
        assert PlanSettings(text).cluster() == cluster
    for text in ("4x", "0xa6000", "4 a6000"):
        with pytest.raises(ConfigError, match=r"must be a GPU, or several as in 4xa6000\. Known: rtx3090, .*b200"):
            PlanSettings(text)
    with pytest.raises(ConfigError, match=r"Unknown GPU 'a6000x4'\. .*--set plan\.gpu_tflops=…$"):
        PlanSettings("a6000x4")


def test_plan_settings_are_documented() -> None:
    assert all(setting.text for setting in settings_of(PlanSettings).values())
