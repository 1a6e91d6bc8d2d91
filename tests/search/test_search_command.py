"""`prism search` from the command to its files, with a tiny trained policy and tiny PRMs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from contents import contents
from prism_prm import PrismError, init_prm, load_prm
from prism_prm.aggregate import log_score
from prism_prm.backends import load_prm as scorer_load
from prism_prm.cli import app, main
from prism_prm.data.pools import read_pool
from prism_prm.errors import DataError
from prism_prm.grading.extract import extract_answer
from prism_prm.lab.world.build import world_settings
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.lab.world.problems import draw_problems
from prism_prm.search.engine import SearchEngine
from prism_prm.search.grade_pool import scores_by_prm
from prism_prm.search.tree import SearchResult
from prism_prm.store import ScoreStore

NUM_PROBLEMS = 10


@pytest.fixture(scope="module")
def prms(world_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("prms")
    for seed, name in enumerate(("first", "second")):
        prm = init_prm(world_policy, family="qwen", settings=PRM_SETTINGS, seed=seed)
        prm.save(root / name, aggregator="mean" if seed else None)
    return [root / "first", root / "second"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "sums.jsonl"
    problems = draw_problems(world_settings("quick").problems, NUM_PROBLEMS, np.random.default_rng(1))
    path.write_text("".join(json.dumps({"problem": p.text, "answer": p.answer}) + "\n" for p in problems))
    return path


@pytest.fixture
def command(world_policy: Path, task: Path, tmp_path: Path) -> list[str]:
    words = ["search", "--policy", f"hf:{world_policy}", "--task", str(task), "--out", str(tmp_path / "out")]
    return [*words, "-P", "temperature=1", "-P", "max_step_tokens=8", "--set", "max_steps=6", "--set", "judges=1"]


def run(command: list[str]) -> Path:
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Path(command[command.index("--out") + 1])


def answer_of(steps: Any) -> str | None:
    return extract_answer("\n\n".join(steps)).answer


def test_beam_with_two_prms(command: list[str], prms: list[Path]) -> None:
    both = ["--prm", f"a={prms[0]}", "--prm", f"b={prms[1]}", "--select", "argmax"]
    out = run([*command, *both, "--method", "beam", "-n", "4,8"])
    metrics = json.loads((out / "metrics.json").read_text())
    assert [(point["prm"], point["n"]) for point in metrics["points"]] == [("a", 4), ("a", 8), ("b", 4), ("b", 8)]
    for point in metrics["points"]:
        pool = read_pool(out / "pools" / f"{point['prm']}-n{point['n']}.jsonl")
        assert len(pool.problems) == NUM_PROBLEMS
        solved = []
        how = {"a": "product", "b": "mean"}[point["prm"]]
        for entry in pool.problems:
            best = max(entry.solutions, key=lambda s: -np.inf if s.scores is None else log_score(s.scores, how))
            solved.append(answer_of(best.steps) == entry.problem.answer)
        assert point["aggregator"] == {"value": how, "origin": "from the PRM's card"}
        assert point["accuracy"]["value"] == pytest.approx(np.mean(solved))
        assert point["correct"] == [float(right) for right in solved]
        assert point["policy_tokens"] > 0
        assert point["prm_tokens"] > 0
    model = load_prm(prms[1])
    entry = read_pool(out / "pools" / "b-n8.jsonl").problems[0]
    assert entry.solutions[0].scores == pytest.approx(
        model.score(entry.problem.text, entry.solutions[0].steps), abs=1e-5
    )
    (four, eight) = metrics["differences"]
    assert (four["a"], four["b"], four["n"], eight["n"]) == ("b", "a", 4, 8)
    a, b = (np.mean(metrics["points"][i]["correct"]) for i in (1, 3))
    assert eight["difference"] == pytest.approx(b - a)
    page = (out / "report.html").read_text()
    assert page.index("<p>With n = 8, beam guided by ") < page.index("<figure>") < page.index("<table")
    report = (out / "report.md").read_text()
    assert "a: product, from the PRM's card; b: mean, from the PRM's card" in report
    assert "| pool | n | control: fewest steps |" in report
    assert "| b-n8 | 8 |" in report
    assert list(metrics["controls"]) == ["a-n4", "a-n8", "b-n4", "b-n8"]
    for name, found in metrics["controls"].items():
        (first,) = [row for row in found["curves"] if row["method"] == "first"]
        entries = read_pool(out / "pools" / f"{name}.jsonl").problems
        right = [answer_of(entry.solutions[0].steps) == entry.problem.answer for entry in entries]
        assert first["value"] == pytest.approx(np.mean(right)), name
        assert [one["prm"] for one in found["adjusted_min"]] == [name]
        assert len(found["agreement"]) == 4


def test_best_of_n_is_sampled_once_and_tells_every_n(command: list[str], prms: list[Path]) -> None:
    both = ["--prm", f"a={prms[0]}", "--prm", f"b={prms[1]}", "--select", "argmax"]
    out = run([*command, *both, "--method", "best-of-n", "-n", "1,2,6"])
    assert [path.name for path in (out / "journal").iterdir()] == ["n6.jsonl"]
    metrics = json.loads((out / "metrics.json").read_text())
    pools = {name: read_pool(out / "pools" / f"{name}-n6.jsonl") for name in "ab"}
    assert [s.steps for s in pools["a"].solutions] == [s.steps for s in pools["b"].solutions]
    by_size = {(point["prm"], point["n"]): point for point in metrics["points"]}
    for name, pool in pools.items():
        right = [[answer_of(s.steps) == e.problem.answer for s in e.solutions] for e in pool.problems]
        assert by_size[name, 1]["accuracy"]["value"] == pytest.approx(np.mean(right))
        how = {"a": np.prod, "b": np.mean}[name]
        best = [int(np.argmax([how(s.scores) if s.scores else -1 for s in e.solutions])) for e in pool.problems]
        assert by_size[name, 6]["accuracy"]["value"] == pytest.approx(
            np.mean([own[i] for own, i in zip(right, best, strict=True)])
        )
        assert by_size[name, 2]["policy_tokens"] == pytest.approx(by_size[name, 6]["policy_tokens"] / 3)
        first = {row["n"]: row["value"] for row in metrics["controls"]["n6"]["curves"] if row["method"] == "first"}
        assert list(first) == [1, 2, 6]
        assert first[6] == pytest.approx(np.mean([own[0] for own in right])), "one pool for all PRMs and sizes"
    assert {one["prm"] for one in metrics["controls"]["n6"]["agreement"]} == {"a", "b"}


@pytest.mark.parametrize(
    ("method", "select"), [("sample", "weighted"), ("greedy", "argmax"), ("dvts", "majority"), ("particle", "weighted")]
)
def test_any_selection_with_any_method(method: str, select: str, command: list[str], prms: list[Path]) -> None:
    out = run([*command, "--prm", str(prms[0]), "--method", method, "--select", select, "-n", "4", "--limit", "3"])
    metrics = json.loads((out / "metrics.json").read_text())
    assert 0 <= metrics["points"][0]["accuracy"]["value"] <= metrics["points"][0]["oracle"]["value"] <= 1
    assert metrics["num_problems"] == 3
    name = "first-n1" if method == "greedy" else "first-n4"
    assert read_pool(out / "pools" / f"{name}.jsonl").solutions[0].scores


def test_a_refused_command_changes_nothing(command: list[str]) -> None:
    out = run([*command, "--method", "sample", "-n", "4", "--limit", "3"])
    before = contents(out)
    with pytest.raises(PrismError, match="seed"):
        run([*command, "--method", "sample", "-n", "4", "--limit", "3", "--seed", "7"])
    assert contents(out) == before


def test_a_pool_can_be_reranked(command: list[str], prms: list[Path], tmp_path: Path) -> None:
    out = run([*command, "--method", "sample", "-n", "4", "--limit", "4"])
    pool = out / "pools" / "n4.jsonl"
    result = CliRunner().invoke(
        app, ["rerank", str(pool), "--prm", str(prms[0]), "--out", str(tmp_path / "again"), "--set", "judges=1"],
        catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0
    assert json.loads((tmp_path / "again" / "metrics.json").read_text())["num_solutions"] == 16


def test_a_budget_inside_a_lookahead(command: list[str], prms: list[Path], tmp_path: Path) -> None:
    """Every problem keeps its candidates, and the pool can be re-ranked."""
    for budget in (1, 40, 60):
        command[command.index("--out") + 1] = str(tmp_path / f"out-{budget}")
        more = ["--method", "beam", "-n", "4", "--select", "argmax", "--limit", "3", "--set", "lookahead=2"]
        out = run([*command, "--prm", str(prms[0]), *more, "--set", f"max_policy_tokens={budget}"])
        pool = out / "pools" / "first-n4.jsonl"
        assert all(entry.solutions for entry in read_pool(pool).problems)
        words = ["rerank", str(pool), "--out", str(out / "again"), "--set", "judges=1"]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


@pytest.mark.parametrize("select", ["argmax", "majority", "weighted"])
def test_problems_without_a_solution_are_counted_and_not_solved(
    select: str, command: list[str], prms: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SearchEngine.run

    def finding_little(self: SearchEngine, problems: Any, keys: Any = None) -> Any:
        for event in real(self, problems, keys):
            is_emptied = isinstance(event, SearchResult) and event.problem < 2
            yield replace(event, solutions=()) if is_emptied else event

    monkeypatch.setattr(SearchEngine, "run", finding_little)
    command = [*command, "--prm", str(prms[0]), "--method", "beam", "-n", "4", "--limit", "3", "--select", select]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "2 of 3 problems have no solution and count as unsolved" in result.output
    out = Path(command[command.index("--out") + 1])
    point = json.loads((out / "metrics.json").read_text())["points"][0]
    assert point["num_empty"] == 2
    assert point["correct"][:2] == [0.0, 0.0]
    assert point["solutions"] == pytest.approx(1 / 3)
    assert "2 of 3 problems have no solution" in (out / "report.md").read_text()
    words = ["rerank", str(out / "pools" / "first-n4.jsonl"), "--out", str(out / "again"), "--set", "judges=1"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_problems_done_are_not_done_again(
    command: list[str], prms: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*command, "--prm", str(prms[0]), "--method", "beam", "-n", "4", "--set", "at_once=3"]
    whole = run([*command[:6], str(Path(command[6]).with_name("whole")), *command[7:]])
    real, searched, found_before = SearchEngine.run, [], []

    def dying(self: SearchEngine, problems: Any, keys: Any = None) -> Any:
        for event in real(self, problems, keys):
            if isinstance(event, SearchResult):
                if len(found_before) == 4:
                    raise KeyboardInterrupt
                found_before.append(event)
            yield event

    def counting(self: SearchEngine, problems: Any, keys: Any = None) -> Any:
        searched.append(list(problems))
        return real(self, problems, keys)

    monkeypatch.setattr(SearchEngine, "run", dying)
    assert CliRunner().invoke(app, command).exit_code != 0
    out = Path(command[6])
    journal = out / "journal" / "first-n4.jsonl"
    assert len(journal.read_text().splitlines()) == 1 + 4
    with journal.open("a") as file:
        file.write('{"problem": "1+1", "found": {"solut')  # a line that was being written
    monkeypatch.setattr(SearchEngine, "run", counting)
    run(command)
    assert sum(map(len, searched)) == NUM_PROBLEMS - 4
    pools = [folder / "pools" / "first-n4.jsonl" for folder in (out, whole)]
    assert [s.steps for s in read_pool(pools[0]).solutions] == [s.steps for s in read_pool(pools[1]).solutions]
    run(command)
    assert sum(map(len, searched)) == NUM_PROBLEMS - 4, "all is done: nothing is searched a third time"


def test_what_a_search_scored_is_in_the_store(
    command: list[str], prms: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run([*command, "--prm", str(prms[0]), "--method", "beam", "-n", "4", "--store", str(tmp_path / "store")])
    pool = read_pool(out / "pools" / "first-n4.jsonl")
    prm = load_prm(prms[0], on_too_long="skip")
    expected = [scores.probability for scores in prm.score_trees(pool.trees())]
    monkeypatch.setattr(prm, "score_trees", None)
    found = scores_by_prm(ScoreStore(tmp_path / "store", prm), pool)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)  # type: ignore[arg-type]


def test_other_settings_need_another_folder_and_more_problems_do_not(command: list[str]) -> None:
    run([*command, "--method", "sample", "-n", "2", "--limit", "2"])
    with pytest.raises(PrismError, match=r"other settings; now: settings.seed = 5 \(was 0\)"):
        run([*command, "--method", "sample", "-n", "2", "--limit", "2", "--seed", "5"])
    out = run([*command, "--method", "sample", "-n", "2", "--limit", "3"])
    assert len((out / "journal" / "n2.jsonl").read_text().splitlines()) == 1 + 3, "one more problem is one more line"


def test_answers_under_a_name_of_your_own(command: list[str], task: Path, tmp_path: Path) -> None:
    gold = tmp_path / "gold.jsonl"
    gold.write_text(task.read_text().replace('"answer"', '"gold"'))
    command[command.index(str(task))] = str(gold)
    with pytest.raises(DataError, match=r"gold\.jsonl:1: no reference answer .*--set answer_field=gold"):
        CliRunner().invoke(app, [*command, "--method", "greedy"], catch_exceptions=False)
    out = run([*command, "--method", "greedy", "--limit", "2", "--set", "answer_field=gold"])
    answers = [json.loads(line)["gold"] for line in gold.read_text().splitlines()]
    assert [entry.problem.answer for entry in read_pool(out / "pools" / "n1.jsonl").problems] == answers[:2]


def test_a_recipe_with_overrides(command: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('n = [2, 3]\n[search]\nmethod = "sample"\n[search.sampling]\ntop_p = 0.9\n')
    out = run([*command, "--recipe", str(recipe), "--limit", "2", "--set", "search.seed=3"])
    settings = json.loads((out / "metrics.json").read_text())["settings"]
    assert settings["n"] == [2, 3]
    assert settings["search"]["sampling"]["top_p"] == 0.9
    assert settings["search"]["sampling"]["temperature"] == 1.0
    assert settings["search"]["seed"] == 3
    assert 'method = "sample"' in (out / "settings.toml").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "beam"], "give a PRM with --prm"),
        (["--method", "sample", "--select", "argmax"], "needs a PRM's scores"),
        (["--method", "sample", "-n", "x"], "-n x: each of the list must be a whole number"),
        (["--method", "sample", "--set", "search.temprature=1"], "Did you mean search.sampling.temperature?"),
        (["--method", "sample", "-P", "user=solve it"], "must contain {problem}"),
    ],
)
def test_wrong_options(more: list[str], message: str, command: list[str]) -> None:
    with pytest.raises(PrismError, match=message):
        run([*command, *more])


def test_an_error_ends_with_status_2(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["nowhere" if word.startswith("hf:") else word for word in command]
    monkeypatch.setattr(sys, "argv", ["prism", *words, "--method", "sample"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "'nowhere' is not a policy" in capsys.readouterr().err


def test_each_prm_is_opened_with_its_own_family(
    command: list[str], prms: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {}

    def load_prm(place: str, *, family: str | None, **options: Any) -> Any:
        opened[Path(place).name] = family
        return load(place, **options)

    load = scorer_load.load_prm
    monkeypatch.setattr(scorer_load, "load_prm", load_prm)
    named = ["--prm", f"a={prms[0]}", "--prm", f"b={prms[1]}", "--set", "family=skywork,b=rlhflow"]
    run([*command, *named, "--method", "best-of-n", "-n", "1", "--limit", "1"])
    assert opened == {"first": "skywork", "second": "rlhflow"}
