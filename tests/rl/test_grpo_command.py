"""`prism grpo` on a tiny policy and PRM: from a recipe to a trained policy and a report, alone and by two processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from contents import contents
from killing import run_killed
from launching import together
from loopback import Answer, serve
from payloads import OWN
from prism_prm import init_prm, open_policy
from prism_prm.cli import app
from prism_prm.config import read_settings
from prism_prm.errors import ConfigError
from prism_prm.grading.graders import Level
from prism_prm.lab.world.build import world_settings
from prism_prm.lab.world.policy import PRM_SETTINGS, prompt_of
from prism_prm.lab.world.problems import draw_problems
from prism_prm.rl import train_policy
from prism_prm.rl.alarm import GREEDY, PROXY, VOTE, EvalPoint, TrainedPolicy, read_points
from prism_prm.rl.recipe import EvaluationSettings, GrpoRecipe, ProblemSets
from prism_prm.rl.report import make_report
from prism_prm.rl.train_policy import split_problems
from prism_prm.search.recipes import SearchRecipe

RECIPE = """
policy = "{policy}"
prm = "{prm}"
credit = "pure"
[problems]
train = "{folder}/problems.jsonl"
num_held_out = 13
[monitor]
every = 1
samples = 2
votes = 3
[evaluation]
tasks = ["{folder}/test.jsonl"]
samples = 2
[evaluation.sampling]
max_tokens = 24
max_step_tokens = 8
temperature = 1.0
[trainer]
max_steps = 2
per_device_train_batch_size = 8
num_generations = 4
max_completion_length = 24
learning_rate = 1e-3
save_steps = 1
"""


def write_problems(path: Path, problems: list[Any]) -> None:
    lines = [json.dumps({"problem": one.text, "answer": one.answer}) for one in problems]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(world_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grpo")
    init_prm(world_policy, family="qwen", settings=PRM_SETTINGS, device="cpu").save(folder / "prm")
    problems = draw_problems(world_settings("quick").problems, 60, np.random.default_rng(0))
    write_problems(folder / "problems.jsonl", problems[:50])
    write_problems(folder / "test.jsonl", problems[45:])  # the first five are in the training file, too
    (folder / "recipe.toml").write_text(RECIPE.format(policy=world_policy, prm=folder / "prm", folder=folder))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(folder / "run")]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_policy_is_trained_watched_and_measured(run: Path) -> None:
    looks = read_points(run / "looks.parquet")
    assert [look.update for look in looks] == [0, 1, 2]
    assert {len(values) for look in looks for values in look.by_problem.values()} == {13}
    assert looks[0].numbers["kl"] == pytest.approx(0, abs=1e-4)
    metrics = json.loads((run / "metrics.json").read_text())
    assert [(one["how"], one["before"]["num_clusters"]) for one in metrics["tasks"]] == [
        ("greedy", 15),
        ("sampled", 15),
    ]
    assert [look["answer"] for look in metrics["looks"]] == pytest.approx([look.mean("answer") for look in looks])
    page = (run / "report.html").read_text()
    assert "Before and after training" in page
    assert "gold-and-proxy" in page
    assert "<p>In 2 updates, the mean reward of held-out problems went from " in page
    assert open_policy(f"hf:{run / 'policy'}").prompt("1+2") == prompt_of("1+2")


def test_a_second_command_does_nothing_again(run: Path, folder: Path) -> None:
    before = (run / "policy" / "model.safetensors").stat().st_mtime_ns
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(run)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert (run / "policy" / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_goes_on_only_with_its_reward(run: Path, folder: Path) -> None:
    """The card decides the reward, too, where the recipe names no aggregator."""
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(run)]
    card = folder / "prm" / "prism.json"
    before = card.read_text()
    assert json.loads(before)["aggregator"] != "mean"
    card.write_text(json.dumps(json.loads(before) | {"aggregator": "mean"}))
    try:
        result = CliRunner().invoke(app, command)
    finally:
        card.write_text(before)
    assert isinstance(result.exception, ConfigError)
    assert re.search(r"run was started with other settings; now: reward = \w+ \(was \w+\)\.", str(result.exception))
    named = [*command, "--set=reward.aggregator=" + json.loads(before)["aggregator"]]
    assert CliRunner().invoke(app, named, catch_exceptions=False).exit_code == 0, "it is the same reward"


def test_a_refused_command_changes_nothing(run: Path, folder: Path) -> None:
    before = contents(run)
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(run), "--set", "trainer.learning_rate=1e-5"]
    result = CliRunner().invoke(app, [*command, "--set", "evaluation.samples=3"])
    assert isinstance(result.exception, ConfigError)
    assert "learning_rate" in str(result.exception)
    assert contents(run) == before


def test_a_run_killed_outright_ends_with_the_same_policy(run: Path, folder: Path) -> None:
    out = folder / "killed"
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(out)]
    done = run_killed(command, "transformers:Trainer._save_checkpoint", 2)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.parent.name for path in out.rglob("trainer_state.json")] == ["checkpoint-1"]
    assert not (out / "report.html").exists()
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    ours, theirs = (load_file(path / "policy" / "model.safetensors") for path in (out, run))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("share", "reason"), [(0.5, "File too large"), (1.5, "torch.save failed")])
def test_a_full_disk_is_one_line(run: Path, folder: Path, tmp_path: Path, share: float, reason: str) -> None:
    """A limit on the size of files stands in for a disk without room: writing fails in the same place."""
    size = int(share * (run / "policy" / "model.safetensors").stat().st_size)
    limited = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY)); "
        "sys.argv = ['prism', *sys.argv[1:]]; runpy.run_module('prism_prm', run_name='__main__')"
    )
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(tmp_path / "run"), "--set=evaluation.tasks=[]"]
    found = subprocess.run([sys.executable, "-c", limited, *command], capture_output=True, text=True, check=False)
    assert found.returncode == 2, found.stderr
    assert found.stderr.splitlines()[-1] == (
        f"error: {tmp_path / 'run' / 'checkpoints'}: cannot be written ({reason}); no partial file is left. "
        "To resume, free some space there and rerun the same command."
    )
    assert "Traceback" not in found.stderr
    assert not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert again.exit_code == 0, again.output


def test_problems_are_disjoint_and_what_is_left_out_is_said(folder: Path, said: list[str]) -> None:
    recipe = read_settings(GrpoRecipe, folder / "recipe.toml", ["problems.num_held_out=3"])
    train, held_out = split_problems(recipe)
    assert len(held_out) == 3
    assert len(train) == 45, "two of the 47 are evaluated on"
    assert said == ["2 of 47 problems are also held out or used for evaluation, and are left out."]
    with pytest.raises(ConfigError, match="0 problems to train on"):
        split_problems(read_settings(GrpoRecipe, folder / "recipe.toml", ["problems.num_held_out=50"]))


def test_recipes_that_cannot_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="no policy"):
        GrpoRecipe(problems=ProblemSets("gsm8k"))
    with pytest.raises(ConfigError, match="no problems"):
        ProblemSets()
    with pytest.raises(ConfigError, match="needs step scores"):
        GrpoRecipe("policy", problems=ProblemSets("gsm8k"), credit="pure")
    with pytest.raises(ConfigError, match="Unknown credit"):
        GrpoRecipe("policy", "prm", "best", problems=ProblemSets("gsm8k"))


def test_right_answers_alone_can_be_the_reward(folder: Path) -> None:
    settings = ["prm=", "credit=outcome", "trainer.max_steps=1", "evaluation.tasks=[]", "monitor.votes=0"]
    command = ["grpo", str(folder / "recipe.toml"), "--out", str(folder / "answers")]
    result = CliRunner().invoke(app, [*command, *(f"--set={one}" for one in settings)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for look in read_points(folder / "answers" / "looks.parquet"):
        assert look.by_problem[PROXY] == look.by_problem["answer"]


def test_two_processes_train_one_policy(run: Path, folder: Path) -> None:
    out = folder / "two"
    found = together("grpo", folder / "recipe.toml", "--out", out, "--set", "trainer.per_device_train_batch_size=4")
    assert found.returncode == 0, found.stderr[-3000:]
    looks = read_points(out / "looks.parquet")
    assert [look.update for look in looks] == [0, 1, 2]
    alone = read_points(run / "looks.parquet")
    # Greedy solutions of the untrained policy are the same, however many processes write them, and in the same order.
    assert looks[0].by_problem["greedy/answer"] == alone[0].by_problem["greedy/answer"]
    assert {len(values) for look in looks for values in look.by_problem.values()} == {13}
    assert (out / "policy" / "model.safetensors").exists()
    assert (out / "report.html").exists()
    assert (found.stdout + found.stderr).count("Policy:") == 1, "one process speaks"


def test_a_critic_can_be_the_reward(folder: Path) -> None:
    """It calls a step with an even last digit right, and has no verdict on steps that end with 3."""

    def answer(body: dict[str, Any]) -> Answer:
        step = body["messages"][-1]["content"].split("\n\n")[-2].strip()
        said = "Perhaps" if step.endswith("3") else "Yes" if step[-1:] in "02468" else "No"
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}

    out = folder / "critic"
    with serve(answer) as (url, asked):
        settings = [
            f"prm=critic:openai:{url}", f"load.critic.replies={folder / 'replies'}", "load.critic.votes=1",
            "load.critic.redraws=0", "load.critic.log_probabilities=off", "load.critic.on_missing=wrong",
            "load.critic.price_prompt=100000", "evaluation.tasks=[]", "monitor.votes=0", "reward.gate=false",
        ]  # fmt: skip
        command = ["grpo", str(folder / "recipe.toml"), "--out", str(out), *(f"--set={one}" for one in settings)]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        num_asked = len(asked)
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        assert len(asked) == num_asked, "a finished run asks nothing"
    assert [look.update for look in read_points(out / "looks.parquet")] == [0, 1, 2]
    (costs,) = json.loads((out / "metrics.json").read_text())["critic"]
    assert (costs["requests"], costs["prompt_tokens"], costs["completion_tokens"]) == (
        num_asked, 10 * num_asked, 5 * num_asked,
    )  # fmt: skip
    assert costs["reused"] > 0, "equal steps of equal prefixes are asked about once"
    assert costs["cost"] == pytest.approx(num_asked)
    assert costs["missing"]["no-verdict"] > 0
    page = (out / "report.md").read_text()
    assert f"| requests | {num_asked:,} |" in page
    count = costs["missing"]["no-verdict"]
    assert f"| replies without a verdict: no-verdict (the step counts as wrong) | {count:,} |" in page
    assert "answers without a verdict after all redraws: no-verdict: " in " ".join(result.output.split())


def test_programs_without_a_sandbox_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained: the report of a run on code problems says what they ran in."""
    lines = [json.dumps({**OWN, "problem": f"Double it ({i})."}) for i in range(3)]
    (tmp_path / "code.jsonl").write_text("\n".join(lines))
    seen = {PROXY: [0.5], "right": [0.5], f"{GREEDY}/right": [0.5], VOTE: [0.5]}
    curve = TrainedPolicy([EvalPoint(0, seen), EvalPoint(1, seen)], tmp_path / "policy", [])
    for name, found in {"load_tokenizer_of": None, "problem_rows": [], "train_with_reward": curve}.items():
        monkeypatch.setattr(train_policy, name, lambda *_, found=found, **__: found)
    problems = ProblemSets(train=str(tmp_path / "code.jsonl"), num_held_out=1)
    for sandbox, count in {"none": 1, "auto": 0}.items():
        recipe = GrpoRecipe(policy="any", problems=problems, sandbox=cast("Level", sandbox))
        train_policy.train_policy(recipe, tmp_path / sandbox)
        assert (tmp_path / sandbox / "report.md").read_text().count("WITHOUT a sandbox") == count


def test_tasks_in_files_of_the_same_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: dict[str, Path] = {}

    def search(recipe: SearchRecipe, out: Path, *, policy: object) -> list[str]:  # noqa: ARG001
        folders[recipe.task] = out.relative_to(tmp_path)
        return ["a point"]

    monkeypatch.setattr(train_policy, "search_task", search)
    monkeypatch.setattr(train_policy, "open_policy", lambda _: SimpleNamespace(close=lambda: None))
    tasks = ("easy/test.jsonl", "hard/test.jsonl")
    recipe = GrpoRecipe("any", problems=ProblemSets("gsm8k"), evaluation=EvaluationSettings(tasks, samples=0))
    state = SimpleNamespace(is_main_process=True, wait_for_everyone=lambda: None)
    train_policy._evaluate(recipe, "any", tmp_path, state)
    assert folders == {tasks[0]: Path("test/greedy"), tasks[1]: Path("test%231/greedy")}


def test_the_report_does_not_call_an_alarm_silent_that_was_off(tmp_path: Path) -> None:
    seen = {PROXY: [0.5], "right": [0.5], f"{GREEDY}/right": [0.5]}
    curve = TrainedPolicy([EvalPoint(0, seen), EvalPoint(1, seen)], tmp_path / "policy", [])
    make_report(GrpoRecipe("any", problems=ProblemSets("gsm8k")), curve, {}, {}).write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "With true answers: no alarm" in text
    assert "(votes of the untrained policy): off" in text
