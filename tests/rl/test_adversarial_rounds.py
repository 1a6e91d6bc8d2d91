"""`prism grpo --rounds` on a tiny policy and PRM: the stages of a round, a kill at each, and two processes."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from contents import contents
from killing import run_killed
from launching import together
from prism_prm import GrpoRecipe, init_prm, load_prm, train_policy
from prism_prm.cli import app
from prism_prm.config import read_settings
from prism_prm.data.tables import iter_trees, write_trees
from prism_prm.errors import ConfigError, PrismError
from prism_prm.lab.world.build import load_policy, world_settings
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.lab.world.problems import draw_problems
from prism_prm.lab.world.trees import sample_trees
from prism_prm.models.card import rewrite_card, set_threshold
from prism_prm.rl.alarm import read_points
from prism_prm.rl.rounds import measured_exploits, train_rounds
from prism_prm.serve.page_documents import ShownResults, run_documents
from prism_prm.train.recipe import load_recipe
from prism_prm.tree import StepTree

PRM_RECIPE = """
report_to = []
[data]
inputs = ["{folder}/trees.parquet"]
split = {{ train = 0.8, validation = 0.2 }}
[data.pairs]
lookahead = 1
audit = "off"
[base]
prm = "{folder}/prm"
[curriculum]
mode = "none"
[train]
lr = 1e-3
pairs_per_update = 16
"""
RECIPE = """
policy = "{policy}"
prm = "{folder}/prm"
[problems]
train = "{folder}/problems.jsonl"
num_held_out = 10
[monitor]
every = 1
samples = 2
votes = 0
[rounds]
count = 1
train = "{folder}/prm.toml"
problems = 8
samples = 3
rollouts = 2
repeat = 2
min_score = 0.0
[rounds.sampling]
temperature = 1.0
max_tokens = 24
max_step_tokens = 8
[trainer]
max_steps = 2
per_device_train_batch_size = 8
num_generations = 4
max_completion_length = 24
learning_rate = 1e-3
save_steps = 1
"""


@pytest.fixture(scope="module")
def folder(world_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    init_prm(world_policy, family="qwen", settings=PRM_SETTINGS, device="cpu").save(folder / "prm")
    set_threshold(folder / "prm", 0.0)  # it is not trained, and its scores mean nothing
    problems = draw_problems(world_settings("quick").problems, 60, np.random.default_rng(0))
    trees = sample_trees(*load_policy(world_policy), problems[40:], candidates=3)
    write_trees(folder / "trees.parquet", trees)
    lines = [json.dumps({"problem": one.text, "answer": one.answer}) for one in problems[:40]]
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "prm.toml").write_text(PRM_RECIPE.format(folder=folder))
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder, policy=world_policy))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    result = CliRunner().invoke(
        app, ["grpo", str(folder / "recipe.toml"), "--out", str(folder / "run")], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_round_labels_retrains_and_trains_again(run: Path, folder: Path) -> None:
    for number in (0, 1):
        assert [point.update for point in read_points(run / f"round-{number}" / "looks.parquet")] == [0, 1, 2]
    trees = list(iter_trees(run / "round-0" / "exploits" / "trees.parquet"))
    problems = [json.loads(line)["problem"] for line in (folder / "problems.jsonl").read_text().splitlines()]
    assert {tree.problem for tree in trees} <= set(problems[:8]), "the first eight that are not held out"
    assert {step.label for tree in trees for step in tree.nodes} <= {0.0, 1.0, None}
    retrained = load_recipe(run / "round-1" / "prm" / "recipe.toml")
    assert retrained.data.inputs == (f"{folder}/trees.parquet", *[f"{run}/round-0/exploits/trees.parquet"] * 2)
    assert retrained.base.prm == f"{folder}/prm", "from the base"
    before, after = (load_prm(place).model_hash() for place in (folder / "prm", run / "round-1" / "prm"))
    assert before != after
    settings = (run / "round-1" / "recipe.toml").read_text()
    assert f'prm = "{run}/round-1/prm/rounds/1_all"' in settings
    same = [json.loads((run / f"round-{n}" / "run.json").read_text())["made_with"]["policy"] for n in (0, 1)]
    assert same[0] == same[1], "both start from the reference policy"


def test_one_report_shows_all_rounds(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    first, last = metrics["rounds"]
    facts = first["exploits"]
    counts = facts["counts"]
    assert last["exploits"] is None
    assert counts["problems"] == 8
    assert metrics["ended"] == ""
    assert counts["suspects"] == counts["labeled wrong"] + counts.get("labeled right", 0) + counts.get(
        "without a label", 0
    )
    assert 0 < facts["tokens"]["sampling"] <= facts["planned"]["sampling"] * 2
    assert facts["tokens"]["labels"] <= facts["planned"]["labels"]
    wrong = [
        step.text
        for tree in iter_trees(run / "round-0" / "exploits" / "trees.parquet")
        for i, step in enumerate(tree.nodes)
        if step.label == 0 and i not in tree.trunk
    ]
    assert facts["wrong_steps"] == len(wrong)
    assert {one["step"] for one in facts["most_frequent"]} <= set(wrong)
    page = (run / "report.md").read_text()
    for text in ("rounds-answer", "rounds-proxy", "## What the policies exploited", "| round 1 |", *counts):
        assert text in page


def test_the_page_shows_each_round_and_what_was_exploited(run: Path) -> None:
    results = ShownResults.named([f"mine={run}"])
    first, last = run_documents(results.places[0], results) or []
    assert [(one.kind, one.title, one.key) for one in (first, last)] == [
        ("grpo", "mine, round 0", "round-0"), ("grpo", "mine, round 1", "round-1"),
    ]  # fmt: skip
    facts = json.loads((run / "metrics.json").read_text())["rounds"][0]["exploits"]
    shown = first.body()["exploits"]
    assert shown == {name: facts[name] for name in shown}
    assert set(shown) == {"wrong_steps", "passed_before", "passed_after", "most_frequent"}
    assert last.body()["exploits"] is None


STAGES = {
    "the first policy": ("transformers:Trainer._save_checkpoint", 2, ""),
    "sampling": ("prism_prm.job:Journal.append", 4, ""),
    "labels": ("prism_prm.search.label_engine:LabelEngine.run", 1, ""),
    "the labeled trees": ("prism_prm.rl.rounds:write_trees", 1, ""),
    "the PRM": ("prism_prm.train.train_prm:save_trained", 1, ""),
    "the FPR": ("prism_prm.rl.rounds:measure_exploits", 1, ""),
    "the second policy": ("transformers:Trainer._save_checkpoint", 4, ""),
    "the report": ("prism_prm.rl.rounds:make_rounds_report", 1, ""),
}


@pytest.mark.parametrize(
    "stage", [pytest.param(name, marks=[] if name == "labels" else [pytest.mark.slow]) for name in STAGES]
)
def test_a_run_killed_at_any_stage_ends_with_the_same_policy(
    run: Path, folder: Path, tmp_path: Path, stage: str
) -> None:
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(tmp_path / "run")]
    killed = run_killed(command, *STAGES[stage])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "run" / "report.html").exists()
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for name in ("policy", "prm/rounds/1_all"):
        ours, theirs = (load_file(path / "round-1" / name / "model.safetensors") for path in (tmp_path / "run", run))
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    ours, theirs = (json.loads((path / "metrics.json").read_text())["rounds"] for path in (tmp_path / "run", run))
    assert [one["exploits"] for one in ours] == [one["exploits"] for one in theirs]


def test_a_finished_run_does_nothing_again(run: Path, folder: Path) -> None:
    def weights() -> dict[str, bytes]:
        return {name: content for name, content in contents(run).items() if name.endswith((".safetensors", ".parquet"))}

    before = weights()
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(run)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert weights() == before


def test_a_policy_that_exploits_nothing_needs_no_round(folder: Path, said: list[str]) -> None:
    rounds = train_rounds(folder / "recipe.toml", folder / "nothing", assignments=["rounds.min_score=1.0"])
    assert len(rounds) == 1
    assert said[-1].endswith("sampled steps is suspect: no further round is needed.")
    assert said[-1] in (folder / "nothing" / "report.md").read_text()
    metrics = json.loads((folder / "nothing" / "metrics.json").read_text())
    assert metrics["ended"] == said[-1]
    assert metrics["rounds"][0]["exploits"]["tokens"]["sampling"] > 0, "the last sampling is reported, too"
    assert not (folder / "nothing" / "round-1").exists()
    with pytest.raises(ConfigError, match=r"samples = 2 \(was 3\)"):
        train_rounds(folder / "recipe.toml", folder / "nothing", assignments=["rounds.samples=2"])
    assert len(train_rounds(folder / "recipe.toml", folder / "nothing")) == 2, "by another min_score it exploits some"


def test_a_split_that_leaves_exploits_unused_is_named(folder: Path, said: list[str]) -> None:
    parts = "validation = 0.05, test = 0.05, unused = 0.1"
    (folder / "parts.toml").write_text((folder / "prm.toml").read_text().replace("validation = 0.2", parts))
    changes = [f"rounds.train={folder}/parts.toml", f"policy={folder}/missing"]
    with pytest.raises(PrismError, match="missing"):
        train_rounds(folder / "recipe.toml", folder / "parts", assignments=changes)
    assert f"{folder}/parts.toml: data.split leaves 15.0 % of the problems with exploits unused" in "\n".join(said)


def test_without_a_wrong_label_there_is_no_further_round(folder: Path, said: list[str]) -> None:
    def all_right(trees: list[StepTree]) -> tuple[list[StepTree], int]:
        return [
            replace(tree, nodes=tuple(replace(step, label=1.0) for step in tree.nodes)) for tree in trees
        ], 0  # fmt: skip

    assert len(train_rounds(folder / "recipe.toml", folder / "right", labeler=all_right)) == 1
    assert said[-1].endswith("suspect steps was labeled wrong: no further round is needed.")
    assert len(train_rounds(folder / "recipe.toml", folder / "right")) == 2, "labels of another labeler are not reused"


def test_people_label_a_round_and_corrections_are_not_ignored(folder: Path) -> None:
    recipe, out = folder / "recipe.toml", folder / "people"
    with pytest.raises(PrismError, match=r"steps to label: .* and rerun"):
        train_rounds(recipe, out, assignments=["rounds.labels=file"])
    asked, answered = (out / "round-0" / "exploits" / name for name in ("to-label.jsonl", "labels.jsonl"))
    answered.write_text(asked.read_text().replace('"label":null', '"label":0'))
    first, _ = train_rounds(recipe, out, assignments=["rounds.labels=file"])
    assert first.exploits is not None
    assert first.exploits["wrong_steps"] == len(answered.read_text().splitlines())
    answered.write_text(answered.read_text().replace('"label":0', '"label":1', 1))
    with pytest.raises(PrismError, match=r"trees\.parquet changed since this run read it"):
        train_rounds(recipe, out, assignments=["rounds.labels=file"])


def test_the_fpr_is_measured_again_for_another_threshold(run: Path, folder: Path, tmp_path: Path) -> None:
    recipe = read_settings(GrpoRecipe, folder / "recipe.toml", ())
    exploits, prm = tmp_path / "exploits", tmp_path / "prm"
    shutil.copytree(run / "round-0" / "exploits", exploits)
    shutil.copytree(folder / "prm", prm)
    before = measured_exploits(recipe, exploits, str(prm), str(prm))
    assert before["passed_after"] == before["wrong_steps"] > 0
    set_threshold(prm, 1.0)
    assert measured_exploits(recipe, exploits, str(prm), str(prm))["passed_after"] == 0


def test_a_folder_holds_a_run_with_rounds_or_without(run: Path, folder: Path) -> None:
    recipe = folder / "recipe.toml"
    with pytest.raises(ConfigError, match="has a run with rounds"):
        train_policy(recipe, run, assignments=["rounds.count=0"])
    with pytest.raises(ConfigError, match="round-0 has a run of `prism grpo` without rounds"):
        train_rounds(recipe, run / "round-0")


def test_without_prefixes_the_rounds_end_and_say_why(folder: Path, said: list[str]) -> None:
    shutil.copytree(folder / "prm", folder / "strict")
    set_threshold(folder / "strict", 1.0)
    assert len(train_rounds(folder / "recipe.toml", folder / "none", assignments=[f"prm={folder / 'strict'}"])) == 1
    assert "None of 8 problems has a right solution that the PRM scores high" in said[-1]


def test_the_next_round_can_continue_with_the_trained_policy(folder: Path) -> None:
    """The first round of both runs is the same, so the second differs only in where it starts."""
    rounds = train_rounds(folder / "recipe.toml", folder / "last", assignments=["rounds.restart=last"])
    made = [json.loads((one.folder / "run.json").read_text())["made_with"]["policy"] for one in rounds]
    assert made[0] != made[1]
    first = rounds[0].trained.points[-1].mean("greedy/answer")
    assert rounds[1].trained.points[0].mean("greedy/answer") == pytest.approx(first), "it starts where the first ended"


def test_two_processes_run_a_round(folder: Path) -> None:
    out = folder / "two"
    found = together("grpo", folder / "recipe.toml", "--out", out, "--set", "trainer.per_device_train_batch_size=4")
    assert found.returncode == 0, found.stderr[-3000:]
    assert [point.update for point in read_points(out / "round-1" / "looks.parquet")] == [0, 1, 2]
    assert json.loads((out / "metrics.json").read_text())["rounds"][0]["exploits"]["counts"]["problems"] == 8
    assert (found.stdout + found.stderr).count("Policy:") == 1, "one process speaks"


def test_recipes_that_cannot_run_are_refused(folder: Path) -> None:
    def read(*changes: str) -> GrpoRecipe:
        return read_settings(GrpoRecipe, folder / "recipe.toml", changes)

    with pytest.raises(ConfigError, match=r"rounds\.count retrains a PRM: set prm"):
        read("prm=")
    with pytest.raises(ConfigError, match=r"needs the recipe that trained the PRM: set rounds\.train"):
        read("rounds.train=")
    with pytest.raises(ConfigError, match=r"scale_rewards is the setting reward\.scale here"):
        read("trainer.scale_rewards=none")
    with pytest.raises(ConfigError, match="trained by train_rounds"):
        train_policy(read(), folder / "refused")
    (folder / "unmeasured.toml").write_text((folder / "prm.toml").read_text() + '[validation]\nsplit = ""\n')
    with pytest.raises(ConfigError, match=r"unmeasured\.toml: without validation, .* or reward\.clip to a number"):
        train_rounds(read("reward.clip=card", f"rounds.train={folder / 'unmeasured.toml'}"), folder / "refused")
    shutil.copytree(folder / "prm", folder / "code")
    rewrite_card(folder / "code", replace(load_prm(folder / "code").card, segmenter="code"))
    for change in ("rounds.sampling.segmenter=code", f"prm={folder / 'code'}"):
        with pytest.raises(ConfigError, match=r"segmenter = code .* only paragraph works"):
            train_rounds(read(change), folder / "refused")
    assert not (folder / "refused").exists(), "before anything is trained"
    (folder / "pairs.toml").write_text('[data]\nfolder = "pairs"\n[base]\nprm = "prm"\n')
    with pytest.raises(ConfigError, match=r"pairs\.toml: data\.folder has finished pairs"):
        train_rounds(read(f"rounds.train={folder / 'pairs.toml'}"), folder / "refused")
