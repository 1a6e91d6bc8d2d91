"""Searches, runs and programs as documents of the page."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism_prm.backends.policy import PolicySettings
from prism_prm.errors import DataError
from prism_prm.rl.alarm import POINTS, EvalPoint, SamplesFile, write_points
from prism_prm.search import rounds
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_task import search_task
from prism_prm.serve.page_documents import Document, ShownResults, encode, find_documents, listing
from shown_results import programs
from worlds import FakePolicy, FakePrm

CHANCES = {"good": 0.5, "bad": 0.3, "\\boxed{1}.": 0.2}
SCORES = {"good": 0.9, "bad": 0.2, "\\boxed{1}.": 0.8}
BEAM = SearchSettings("beam", n=4, expand=2, max_steps=3)


def options(steps: tuple[str, ...]) -> dict[str, float]:
    return {"\\boxed{1}.": 0.7, "\\boxed{2}.": 0.3} if len(steps) > 1 else CHANCES


def score(steps: tuple[str, ...]) -> float:
    return SCORES.get(steps[-1], 0.4)


def searched(folder: Path, settings: SearchSettings = BEAM, prm: FakePrm | None = None) -> Path:
    task = folder / "task.jsonl"
    task.write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in ("one", "two", "one")))
    recipe = SearchRecipe(
        task=str(task), policy=PolicySettings("hf:x"), search=settings, n=(settings.n,), prm=("mine",), at_once=1
    )
    search_task(recipe, folder / "out", policy=FakePolicy(options), prms={"mine": prm or FakePrm(score)}, judges=1)
    return folder / "out"


def documents(place: Path) -> dict[str, Document]:
    return find_documents(ShownResults.named([place]))


def body(found: dict[str, Document], name: str) -> Any:
    return json.loads(encode(found[name].body()))


def test_a_search_is_an_overview_and_a_tree_for_each_problem(tmp_path: Path) -> None:
    found = documents(searched(tmp_path))
    assert [(name, one.kind, one.listed) for name, one in found.items()] == [
        ("0-mine-n4", "search", True), *((f"0-mine-n4-{i}", "tree", False) for i in range(3)),
    ]  # fmt: skip
    assert found["0-mine-n4"].title == "out: beam, n = 4, mine"
    overview = body(found, "0-mine-n4")
    assert [(one["id"], one["text"], one["running"]) for one in overview["problems"]] == [
        ("0-mine-n4-0", "one", False), ("0-mine-n4-1", "two", False), ("0-mine-n4-2", "one#1", False),
    ]  # fmt: skip
    assert (overview["how"]["aggregator"], overview["how"]["threshold"]) == ("min", 0.5)
    solved = json.loads((tmp_path / "out" / "metrics.json").read_text())["points"][0]["correct"]
    for number, right in enumerate(solved):
        tree = body(found, f"0-mine-n4-{number}")
        assert overview["problems"][number]["right"] == bool(right)
        assert tree["grades"][tree["chosen"]]["correct"] == bool(right)
        assert len(tree["texts"]) == len(set(tree["texts"])), "no text twice"
        paths: list[list[float]] = [[]]
        for parent, text, own, value, *_ in tree["steps"]:
            assert own == score((tree["texts"][text],))
            paths.append([*paths[parent], own])
            assert value == pytest.approx(min(paths[-1]), abs=1e-4)
        best = tree["result"][tree["chosen"]]
        assert tree["steps"][best - 1][3] == max(tree["steps"][leaf - 1][3] for leaf in tree["result"])


def test_sampled_solutions_are_shown_with_the_scores_of_every_prm(tmp_path: Path) -> None:
    out = searched(tmp_path, replace(BEAM, method="best-of-n"))
    found = documents(out)
    assert found["0-n4"].title == "out: best-of-n, n = 4, mine"
    tree = body(found, "0-n4-1")
    assert [step[2] for step in tree["steps"]] == [score((tree["texts"][step[1]],)) for step in tree["steps"]]
    assert len(tree["result"]) == 4
    (out / "pools" / "mine-n4.jsonl").unlink()
    unscored = documents(out)
    assert list(unscored) == list(found), "ids stay the same while results grow"
    assert unscored["0-n4"].title == "out: sample, n = 4"
    assert {step[2] for step in body(unscored, "0-n4-1")["steps"]} == {None}


def test_likelihoods_are_shown_where_they_rank(tmp_path: Path) -> None:
    tree = body(documents(searched(tmp_path, replace(BEAM, prm_weight=0.5))), "0-mine-n4-0")
    assert {len(step) for step in tree["steps"]} == {8}
    assert all(step[7] < 0 for step in tree["steps"])


class StoppingPrm(FakePrm):
    """Ends the process' work in the middle of the second problem."""

    def judge(self, problem: str, steps: tuple[str, ...]) -> float:
        if problem == "two" and len(steps) == 2:
            raise KeyboardInterrupt
        return super().judge(problem, steps)


def test_a_search_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.toml").write_text("[search]\n")
    assert documents(tmp_path / "out") == {}, "it has just begun"
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, prm=StoppingPrm(score))
    found = documents(tmp_path / "out")
    assert [(one["text"], one["running"]) for one in body(found, "0-mine-n4")["problems"]] == [
        ("one", False), ("two", True),
    ]  # fmt: skip
    half = body(found, "0-mine-n4-1")
    assert (half["result"], half["chosen"], half["grades"]) == (None, None, [])
    assert len(half["steps"]) == 4
    before = found["0-mine-n4-1"].stamp()
    searched(tmp_path)
    now = documents(tmp_path / "out")
    assert now["0-mine-n4-1"].stamp() != before
    assert body(now, "0-mine-n4-1")["result"]
    assert len(body(now, "0-mine-n4")["problems"]) == 3


def test_many_searches_are_watched_without_reading_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = searched(tmp_path)
    places = [shutil.copytree(out, tmp_path / f"copy{number}") for number in range(8)]
    read = []
    lines = rounds._lines
    monkeypatch.setattr(rounds, "_lines", lambda path, *rest: read.append(path) or lines(path, *rest))
    for _ in range(2):
        found = find_documents(ShownResults.named(places))
        assert len(found) == 8 * 4
    assert len(read) == 8, "each once"
    assert [one["id"] for one in listing(found)] == [f"{number}-mine-n4" for number in range(8)], "trees are not listed"


def test_a_search_without_rounds_is_refused(tmp_path: Path) -> None:
    out = searched(tmp_path)
    (out / "rounds" / "mine-n4.jsonl").unlink()
    with pytest.raises(DataError, match="without its rounds; run it again with another --out"):
        documents(out)


def test_other_folders_are_no_searches(tmp_path: Path) -> None:
    (tmp_path / "rounds").mkdir()  # as in a run of `prism train`
    (tmp_path / "journal").mkdir()  # as `prism label` writes it
    (tmp_path / "settings.toml").write_text('task = "mine"\n')
    with pytest.raises(DataError, match="no results to show; expected"):
        documents(tmp_path)


def test_a_run_of_training(tmp_path: Path) -> None:
    falling = [
        EvalPoint(i, {"proxy": [0.5 + i / 20] * 40, "answer": [float(k > 10 * i) for k in range(40)]}) for i in range(4)
    ]
    falling = [replace(look, numbers={"kl": float(look.update), "entropy": float("nan")}) for look in falling]
    write_points(tmp_path / POINTS, falling)
    file = SamplesFile(tmp_path, ["p", "q"], up_to=-1)
    for look in falling:
        file.add(look.update, [[{"text": f"p at {look.update}", "reward": 0.5, "right": True}], []])
    found = documents(tmp_path)
    assert [one.kind for one in found.values()] == ["grpo"]
    run = body(found, "0")
    assert run["updates"] == [0, 1, 2, 3]
    assert [line["title"] for line in run["lines"]] == ["mean reward", "solved, sampled"]
    assert [point[0] for point in run["lines"][1]["points"]] == pytest.approx([39 / 40, 29 / 40, 19 / 40, 9 / 40])
    assert run["numbers"]["kl"] == [0, 1, 2, 3]
    assert run["numbers"]["entropy"] == [None] * 4
    assert (run["alarms"][0]["raised"], run["alarms"][0]["update"]) == (True, 1)
    assert [look["solutions"][0][0]["text"] for look in run["samples"]] == [f"p at {i}" for i in range(4)]
    (tmp_path / "samples.jsonl").unlink()
    assert body(documents(tmp_path), "0")["samples"] == [], "runs of earlier versions kept none"


def test_programs_have_a_verdict_for_every_test_and_no_hidden_test(tmp_path: Path) -> None:
    programs(tmp_path)
    found = documents(tmp_path)
    kinds = [(one.kind, one.listed) for one in found.values()]
    assert kinds == [("programs", True), ("program", False), ("program", False)]
    overview = body(found, "0-programs-programs")
    assert [(one["name"], one["solutions"], one["right"]) for one in overview["problems"]] == [
        ("double-0", 5, 1), ("double-1", 4, 1),
    ]  # fmt: skip
    problem = body(found, overview["problems"][0]["id"])
    second = problem["solutions"][1]
    assert second["public"] == ["passed"] * 2
    assert second["hidden"] == [*["passed"] * 6, "failed", *["not run"] * 5]
    assert "best-of-n (mine)" in problem["solutions"][0]["selected"]
    assert problem["problem"] == "Read a number and print its double. (1)"
    assert not any("SECRET" in encode(one.body()).decode() for one in found.values())
