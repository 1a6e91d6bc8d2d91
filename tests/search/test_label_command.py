"""`prism label` from the command to its files, and on to pairs, with tiny trained policies."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from loopback import Answer, serve
from prism_prm import PrismError
from prism_prm.cli import app
from prism_prm.data.tables import iter_pairs, iter_trees, write_trees
from prism_prm.lab.world.build import load_policy, world_settings
from prism_prm.lab.world.oracle import judge_step
from prism_prm.lab.world.problems import Problem, draw_problems
from prism_prm.lab.world.trees import sample_trees
from prism_prm.search.label_engine import LabelEngine
from prism_prm.tree import StepTree

WORLD = world_settings("quick")
PROBLEMS = draw_problems(WORLD.problems, 10, np.random.default_rng(1))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "sums.jsonl"
    path.write_text("".join(json.dumps({"problem": p.text, "answer": p.answer}) + "\n" for p in PROBLEMS))
    return path


@pytest.fixture
def command(world_policy: Path, task: Path, tmp_path: Path) -> list[str]:
    words = ["label", str(task), "--policy", f"hf:{world_policy}", "--out", str(tmp_path / "out"), "--set", "judges=1"]
    return [*words, "-P", "temperature=1", "-P", "max_step_tokens=8", "-P", "max_tokens=40", "--rollouts", "4"]


def run(command: list[str]) -> Path:
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path(command[command.index("--out") + 1])


def truth(tree: StepTree, node: int) -> bool:
    *prefix, text = tree.texts(tree.path(node))
    return judge_step(Problem.parse(tree.problem, WORLD.modulus), prefix, text) == "right"


def test_from_problems_to_pairs(command: list[str], tmp_path: Path) -> None:
    out = run([*command, "--set", "solutions=2"])
    trees = list(iter_trees(out))
    metrics = json.loads((out / "metrics.json").read_text())
    steps = [step for tree in trees for step in tree.nodes]
    assert metrics["num_problems"] == 10
    assert metrics["num_trees"] == len(trees) == 20 - metrics["left_out"].get("equal solutions", 0)
    assert metrics["num_steps"] == metrics["num_labeled"] == len(steps)
    assert metrics["num_right"] == sum(step.label == 1.0 for step in steps)
    assert metrics["rollouts"] == sum(step.estimate.rollouts for step in steps if step.estimate)
    assert metrics["num_solved"] == sum(bool(tree.ended) and tree.nodes[tree.trunk[-1]].label == 1.0 for tree in trees)
    pairs = tmp_path / "pairs"
    run(["pairs", str(out / "trees.parquet"), "--lookahead", "none", "--out", str(pairs)])
    made = list(iter_pairs(pairs))
    assert metrics["pairs"]["0"] == len(made) > 5
    for pair in made:
        chosen, rejected = (trees[pair.tree_id].nodes[node].estimate for node in (pair.chosen, pair.rejected))
        assert chosen is not None
        assert rejected is not None
        assert pair.gap == chosen.value - rejected.value > 0
        counted = [one.rollouts for one in (chosen, rejected) if one.rollouts]
        assert pair.rollouts == (min(counted) if counted else None)
    few = tmp_path / "few"
    run(["pairs", str(out / "trees.parquet"), "--lookahead", "none", "--min-value-gap", "0.6", "--out", str(few)])
    kept = list(iter_pairs(few))
    assert [pair.gap for pair in kept] == [pair.gap for pair in made if pair.gap is not None and pair.gap >= 0.6]
    dropped = json.loads((few / "summary.json").read_text())["dropped_pairs"]["annotated"]
    assert dropped["small_gap"] == len(made) - len(kept) > 0
    assert metrics["pairs"]["0.5"] == sum(pair.gap is not None and pair.gap >= 0.5 for pair in made)
    drawn = re.findall(
        r'<g id="values-patch_\d+">\s*<path d="[^"]*" clip-path', (out / "figures/values.svg").read_text()
    )
    assert len(drawn) == 2 * 5, "four rollouts have five values: a bar of each for solutions and alternatives"


def test_a_stopped_run_goes_on_where_it_was(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run([*command, "--set", "at_once=3"])
    expected = (whole / "trees.parquet").read_bytes()
    again = [word.replace("/out", "/stopped") for word in command] + ["--set", "at_once=3"]
    asked: list[int] = []
    answer = LabelEngine._continue

    def dying(self: LabelEngine, active: Any) -> Any:
        asked.append(len(active))
        if len(asked) == 7:
            raise KeyboardInterrupt
        return answer(self, active)

    monkeypatch.setattr(LabelEngine, "_continue", dying)
    stopped = CliRunner().invoke(app, again)
    assert stopped.exit_code != 0
    assert "with 6 of 10 problems labeled" in stopped.output
    folder = Path(again[again.index("--out") + 1])
    assert not (folder / "trees.parquet").exists()
    done = len(asked)
    run(again)
    assert (folder / "trees.parquet").read_bytes() == expected
    assert len(asked) - done == 2 * 3, "four problems, three at once, three rounds each"
    with pytest.raises(PrismError, match=r"started with other settings; now: settings.rollouts = 5 \(was 4\)"):
        run([*again, "--rollouts", "5"])


def test_a_second_policy_drops_what_it_disagrees_with(command: list[str], world_policy: Path) -> None:
    out = run([*command, "--second-policy", f"hf:{world_policy}"])
    metrics = json.loads((out / "metrics.json").read_text())
    found = metrics["consensus"]
    # It is the same policy, yet asked with other words: only steps of uncertain value can differ.
    assert found["agreed"] == metrics["num_labeled"]
    assert sum(found.values()) == metrics["num_steps"]
    labels = [step.label for tree in iter_trees(out) for step in tree.nodes]
    assert labels.count(None) == sum(count for words, count in found.items() if words != "agreed")


def test_only_labels_that_a_critic_confirms_are_kept(command: list[str], tmp_path: Path) -> None:
    """The critic calls a step with an even last digit right, and has no verdict on steps that end with 3."""

    def verdict(step: str) -> float | None:
        return None if step.endswith("3") else float(step[-1:] in "024")

    def answer(body: dict[str, Any]) -> Answer:
        said = verdict(body["messages"][-1]["content"].split("\n\n")[-2].strip())
        choice = {"message": {"content": {1.0: "Yes", 0.0: "No"}.get(said, "Hm")}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}

    before = list(iter_trees(run([*command, "--limit", "4"])))
    with serve(answer) as (url, asked):
        settings = ["-C", "votes=1", "-C", "redraws=0", "-C", "log_probabilities=off", "-C", "on_missing=skip"]
        replies = ["-C", f"replies={tmp_path / 'replies'}"]
        out = run([*command, "--limit", "4", "--consensus", f"critic:openai:{url}", *settings, *replies])
        again = len(asked)
        run([*command, "--limit", "4", "--consensus", f"critic:openai:{url}", *settings, *replies])
        assert len(asked) == again > 0, "nothing is asked twice"
    kept = list(iter_trees(out))
    expected: Counter[str] = Counter()
    for old, new in zip(before, kept, strict=True):
        for step, now in zip(old.nodes, new.nodes, strict=True):
            second = verdict(step.text.strip())
            assert now == (step if step.label == second else replace(step, label=None))
            if second is None:
                expected["no second opinion"] += 1
            elif step.label == second:
                expected["agreed"] += 1
            else:
                expected[f"only the {'first' if step.label else 'second'} calls it right"] += 1
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["consensus"] == expected
    assert set(expected) == {
        "agreed", "no second opinion", "only the first calls it right", "only the second calls it right",
    }  # fmt: skip
    assert metrics["num_labeled"] == expected["agreed"]
    assert metrics["critic"]["missing"] == {"no-verdict": expected["no second opinion"]}
    page = (out / "report.md").read_text()
    assert f"| consensus: no second opinion | {expected['no second opinion']} |" in page
    assert "| critic tokens | " in page
    with pytest.raises(PrismError, match="give --second-policy or --consensus, not both"):
        run([*command, "--consensus", "critic:openai:http://x/v1", "--second-policy", "hf:x"])


def test_labels_are_checked_against_exact_ones(command: list[str], world_policy: Path, tmp_path: Path) -> None:
    exact = sample_trees(*load_policy(world_policy), PROBLEMS, candidates=3)
    write_trees(tmp_path / "exact.parquet", exact)
    out = run([*command, "--check", str(tmp_path / "exact.parquet"), "--set", "check_limit=8", "--limit", "2"])
    noise = json.loads((out / "metrics.json").read_text())["label_noise"]
    every = noise["groups"]["all"]
    assert every["right"] == sum(step.label == 1.0 for tree in exact[:8] for step in tree.nodes)
    assert every["wrong"] == sum(step.label == 0.0 for tree in exact[:8] for step in tree.nodes)
    assert every["wrong_called_right"] > 0, "rollouts from wrong steps reach the answer at times"
    assert every["fnr"]["value"] < 0.2
    assert noise["groups"]["alternatives"]["wrong"] == every["wrong"], "their solutions are right"
    assert (noise["solved"], noise["solved_wrongly"]) == (8, 0)
    assert noise["counts"] == {"trees over check_limit": 2}
    assert "Error rates of the labels" in (out / "report.md").read_text()


def test_exact_labels_need_answers(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"problem": "9?", "steps": ["a", "b"], "label": 1, "id": "1"}\n')
    with pytest.raises(PrismError, match="no tree has a reference answer, and none is about a problem of"):
        run([*command, "--check", str(tmp_path / "own.jsonl")])


def test_a_served_policy_is_asked_once_per_rollout(tmp_path: Path) -> None:
    """Whole solutions come in one request each, without a stop string."""

    def answer(body: dict[str, Any]) -> Any:
        text = "1+1=2\n\n#### 2" if "stop" not in body else "1+1=3\n\n"
        if body["prompt"].endswith("=2\n\n"):
            text = "#### 2"
        return 200, {"choices": [{"text": text, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}

    (tmp_path / "task.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    with serve(answer) as (url, asked):
        out = run(
            ["label", str(tmp_path / "task.jsonl"), "--policy", f"openai:{url}", "-P", "template=none", "--rollouts",
             "3", "--alternatives", "2", "--set", "judges=1", "--out", str(tmp_path / "out")]
        )  # fmt: skip
    (tree,) = iter_trees(out)
    assert [step.text for step in tree.nodes] == ["1+1=2", "#### 2", "1+1=3"]
    assert [step.label for step in tree.nodes] == [1.0, 1.0, 1.0], "the server finds the answer from anywhere"
    whole = [body for body in asked if "stop" not in body]
    assert len(whole) == 1 + 3 + 3, "a solution, and rollouts from the two steps that do not end it"
    assert len({body["seed"] for body in whole}) == 7
