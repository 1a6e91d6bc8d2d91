"""Scores of a pool in JSON lines, one per problem by name: on pools that a person can compute, and on real ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prism_prm.backends.ensemble import Ensemble
from prism_prm.cli import app
from prism_prm.data.pools import read_pool
from prism_prm.errors import ConfigError, DataError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.search.adaptive import AdaptiveSettings
from prism_prm.search.grade_pool import scores_in_file
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool
from prism_prm.tree import StepTree

POOL: list[dict[str, Any]] = [
    {"name": "a", "problem": "1?", "answer": "1", "solutions": [
        {"steps": ["x", "y"], "answer": "1"}, {"steps": ["x", "z"], "answer": "2"}, {"steps": ["w"], "answer": "2"}]},
    {"name": "b", "problem": "5?", "answer": "5", "solutions": [
        {"steps": ["x"], "answer": "5"}, {"steps": ["y"], "answer": "5"}, {"steps": ["z"], "answer": "6"}]},
]  # fmt: skip
# Best-of-3 by min: the first is right on a alone; the second is wrong on a, and two solutions of b are tied.
FIRST = [{"name": "b", "scores": [[0.2], [0.3], [0.9]]}, {"name": "a", "scores": [[0.9, 0.8], [0.7, 0.95], [0.6]]}]
SECOND = [{"name": "a", "scores": [[0.5, 0.5], [0.9, 0.9], [0.9]]}, {"name": "b", "scores": [[0.9], None, [0.9]]}]


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, records in {"pool": POOL, "first": FIRST, "second": SECOND}.items():
        write_lines(tmp_path / f"{name}.jsonl", records)
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_two_files_are_compared(files: Path) -> None:
    """They are in another order than the pool; a file without a name of its own is called by its file's."""
    run("rerank", files / "pool.jsonl", "--scores", files / "first.jsonl", "--scores", f"b={files / 'second.jsonl'}",
        "--set", "judges=1", "--out", files / "out")  # fmt: skip
    metrics = json.loads((files / "out" / "metrics.json").read_text())
    values = {(c["method"], c["prm"], c["aggregator"]): c["value"] for c in metrics["curves"] if c["n"] == 3}
    assert values["majority", "", ""] == 0.5
    assert values["best-of-n", "first", "min"] == 0.5
    assert values["best-of-n", "first", "last"] == 0.0
    assert values["best-of-n", "b", "min"] == 0.25
    assert values["weighted", "first", "min"] == 0.0, "2 has 1.3 of 2.1, 6 has 0.9 of 1.4"
    assert metrics["unscored_solutions"] == {"first": 0, "b": 1}
    assert metrics["own_aggregator"]["first"] == {"value": "min", "origin": "the default, since no card sets it"}
    differences = {
        (d["a"], d["b"], d["method"], d["aggregator"], d["n"]): d["difference"] for d in metrics["differences"]
    }
    assert differences["b", "first", "best-of-n", "min", 3] == -0.25


def test_whether_a_scorer_pays(files: Path) -> None:
    """An ensemble of scores that are named in the same call, the selectors with their cost, and adaptive budgets."""
    run("rerank", files / "pool.jsonl", "--scores", files / "first.jsonl", "--scores", f"b={files / 'second.jsonl'}",
        "--prm", "both=ensemble:mean:first,b", "--aggregators", "min", "--adaptive", "0.05", "--set", "judges=1",
        "--out", files / "out")  # fmt: skip
    metrics = json.loads((files / "out" / "metrics.json").read_text())
    found = {(one["method"], one["prm"]): one for one in metrics["selectors"]}
    by_scores = [(how, prm) for prm in ("first", "b", "both") for how in ("best-of-n", "weighted")]
    assert list(found) == [("mean", ""), ("majority", ""), *by_scores, ("oracle", "")]
    # Log-odds of a: (2.2 + 0) / 2 and (1.4 + 0) / 2, lowest 0.7; 2.2 and 2.9 against 2.2 each, so z is best, and wrong.
    # b: the second has no score, and of 0.2 with 0.9 and 0.9 with 0.9 the last is best, and wrong.
    assert found["best-of-n", "both"]["accuracy"]["value"] == 0.0
    assert found["best-of-n", "both"]["gain"]["difference"] == -0.5
    assert found["majority", ""]["gain"] is None
    # 8 characters are written, and "1?" and "5?" read with each: 2 tokens, and (8 + 12) // 4 more per member.
    assert found["majority", ""]["tokens"] == 2 / 2
    assert found["weighted", "first"]["tokens"] == (2 + 2 + 3) / 2
    assert found["weighted", "both"]["tokens"] == (2 + 2 * (2 + 3)) / 2
    assert {(one["rule"], one["prm"]) for one in metrics["adaptive"]} >= {
        ("safe", ""),
        ("early-scores", "both"),
    }
    majority = metrics["adaptive"][0]
    assert majority["differing"]["value"] == 0.0, "of three votes none is safe before the last"
    assert majority["saved"]["value"] == 0.0
    report = (files / "out" / "report.md").read_text()
    winner = "Of 3 solutions, the majority vote is right on 50.0 % of the problems, the Best-of-n by first on 50.0 %"
    assert winner in report, "a scorer that is only as good does not win"
    assert "does not demonstrably beat the vote" in report
    assert report.index("Does a scorer pay?") < report.index("figures/accuracy-1.svg")


def test_problems_without_solutions_count_in_adaptive_budgets_too(files: Path) -> None:
    write_lines(files / "pool.jsonl", [*POOL, {"name": "c", "problem": "9?", "answer": "9", "solutions": []}])
    settings = RerankSettings(judges=1, num_draws=10, adaptive=AdaptiveSettings(error=0.05))
    results = rerank_pool(files / "pool.jsonl", files / "out", settings=settings)
    [safe] = results.adaptive
    assert safe.accuracy.value == results.curve("majority").points[-1].value == pytest.approx(1 / 3)
    assert safe.solutions.value == 2.0
    assert (safe.saved.value, safe.saved.low, safe.saved.high) == (0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="rerank simulates all"):
        RerankSettings(adaptive=AdaptiveSettings(rule="early-scores"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("a,pool", "--prm both: the member 'pool' stands for the pool's own scores, but it has none"),
        ("a,both", "--prm both: its member 'both' is an ensemble of names; name single scorers"),
        ("a,prms/other", "'a' is a name of this command, and 'prms/other' is not; give it a name, too"),
    ],
)
def test_members_that_are_no_scores(files: Path, members: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rerank_pool(
            files / "pool.jsonl", files / "out", prms={"both": f"ensemble:mean:{members}"},
            scores={"a": files / "first.jsonl"},
        )  # fmt: skip
    assert not (files / "out").exists(), "refused before anything is judged"


class BySize(Scorer):
    """Log-odds of 10 for each character of a step, and 10 more if one is z."""

    def identity(self) -> str:
        return "by size"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:  # noqa: ARG002
        odds = [[10.0 * len(step.text) + 10.0 * ("z" in step.text) for step in tree.nodes] for tree in trees]
        return [TreeScores(self.outputs, np.array(own)[:, None]) for own in odds]


def test_an_ensemble_of_names_has_the_scores_of_one_of_scorers(files: Path) -> None:
    """Also far from 0, where outcome reward models have their log-odds."""
    write_lines(files / "pool.jsonl", [{"problem": "1?", "answer": "1", "solutions": ["x", "zz", "yy"]}])
    one = BySize()
    results = rerank_pool(
        files / "pool.jsonl", files / "out", settings=RerankSettings(judges=1, num_draws=10),
        prms={"one": one, "two": one, "named": "ensemble:mean:one,two", "direct": Ensemble([one, one])},
    )  # fmt: skip
    for named, direct in zip(results.scores["named"], results.scores["direct"], strict=True):
        assert 1 - named == pytest.approx(1 - direct, rel=0.01, abs=0), "1 - P, because P is close to 1"  # type: ignore[operator]


def test_theory_takes_the_same_file(files: Path) -> None:
    run("theory", "--no-simulate", "--pool", files / "pool.jsonl", "--scores", files / "first.jsonl", "--out",
        files / "out")  # fmt: skip
    found = json.loads((files / "out" / "metrics.json").read_text())["pool"]
    assert (found["p"]["value"], found["alpha"]["value"], found["beta"]["value"]) == (0.5, 1.0, pytest.approx(2 / 3))
    assert found["measured_by_score"][-1]["value"] == 0.5


def test_names_are_the_pools_even_with_a_task(files: Path) -> None:
    task = write_lines(files / "task.jsonl", [{"problem": p["problem"], "answer": "2", "name": "t"} for p in POOL])
    results = rerank_pool(
        files / "pool.jsonl", files / "out", scores={"first": files / "first.jsonl"}, task=str(task),
        settings=RerankSettings(judges=1, num_draws=10),
    )  # fmt: skip
    assert results.curve("best-of-n", "first", "min").points[-1].value == 0.0, "the answers are the task's"
    assert results.curve("best-of-n", "first", "last").points[-1].value == 0.5


def test_scores_of_other_problems_are_counted(files: Path) -> None:
    write_lines(files / "more.jsonl", [*FIRST, {"name": "c", "scores": [[0.5]]}])
    output = run("rerank", files / "pool.jsonl", "--scores", files / "more.jsonl", "--set", "judges=1", "--out",
                 files / "out")  # fmt: skip
    assert "scores of 1 problems that are not in the pool are not used" in " ".join(output.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "b"}, r"pool\.jsonl:2: the name 'b' occurs twice, but .*scores by name; give each problem its own"),
        ({"name": ""}, r"pool\.jsonl:1: the problem has no `name`, but .*first\.jsonl has scores by name"),
        ({"name": "c"}, r"first\.jsonl: no scores for 1 of the pool's 2 problems \(c\); score them too"),
        ({"solutions": POOL[0]["solutions"][:2]}, r"first\.jsonl:2: 3 lists of scores for the 2 solutions of 'a'"),
        (
            {"solutions": [*POOL[0]["solutions"][:2], "one\n\ntwo"]},
            r"first\.jsonl:2: solution 2 of 'a': 1 scores for 2",
        ),
    ],
)
def test_a_pool_that_does_not_fit(files: Path, change: dict[str, Any], message: str) -> None:
    """tests/bad_inputs has the files of scores that do not."""
    write_lines(files / "pool.jsonl", [POOL[0] | change, POOL[1]])
    with pytest.raises(DataError, match=message):
        rerank_pool(files / "pool.jsonl", files / "out", scores={"first": files / "first.jsonl"})
    assert not (files / "out").exists(), "refused before anything is judged"


def test_one_array_is_read_too(files: Path) -> None:
    (files / "first.json").write_text(json.dumps(FIRST))
    pool = read_pool(files / "pool.jsonl")
    (lines, _), (array, card) = (scores_in_file(files / name, pool) for name in ("first.jsonl", "first.json"))
    assert card is None
    assert [own.tolist() for own in lines if own is not None] == [own.tolist() for own in array if own is not None]
    assert np.asarray(lines[0]).tolist() == [0.9, 0.8]


REAL = {"math500": ("qwen2.5-math-prm-7b",), "gsm8k": ("qwen2.5-math-prm-7b", "skywork-o1-prm-7b")}
ALONE = {"min": np.min, "last": lambda steps: steps[-1], "product": np.prod, "mean": np.mean}


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL)
def test_real_scores_on_twenty_problems(name: str, real_data: Path, tmp_path: Path) -> None:
    """Grades are ours; everything after them is computed here again from the raw files, without our code."""
    folder = real_data / "best_of_n_prm"
    lines = (folder / f"{name}_pool_250x32.jsonl").read_text().splitlines()[:20]
    (tmp_path / "pool.jsonl").write_text("\n".join(lines) + "\n")
    files = {prm: folder / f"{name}_scores_{prm}.jsonl" for prm in REAL[name]}
    settings = RerankSettings(judges=1, ns=(1, 32))
    results = rerank_pool(tmp_path / "pool.jsonl", tmp_path / "out", scores=files, settings=settings)
    table = pq.read_table(tmp_path / "out" / "solutions.parquet").to_pydict()
    right, groups = (np.array(table[column]).reshape(20, 32) for column in ("correct", "group"))

    def at_32(method: str, prm: str = "", aggregator: str = "") -> float:
        return results.curve(method, prm, aggregator).points[-1].value

    assert results.curve("mean").points[-1].value == pytest.approx(right.mean())
    assert at_32("oracle") == pytest.approx(right.any(axis=1).mean())
    for prm, path in files.items():
        scored = [json.loads(line) for line in path.read_text().splitlines()[:20]]
        assert [one["name"] for one in scored] == [json.loads(line)["name"] for line in lines]
        for aggregator, alone in ALONE.items():
            scores = np.array([[alone(np.array(steps)) for steps in one["scores"]] for one in scored])
            best = [own[score == score.max()].mean() for own, score in zip(right, scores, strict=True)]
            assert at_32("best-of-n", prm, aggregator) == pytest.approx(np.mean(best))
            votes = []
            for own, group, score in zip(right, groups, scores, strict=True):
                totals = [score[group == key].sum() for key in range(group.max() + 1)]
                top = [key for key, total in enumerate(totals) if total >= max(totals) * (1 - 1e-9)]
                votes.append(np.mean([own[group == key].mean() for key in top]))
            assert at_32("weighted", prm, aggregator) == pytest.approx(np.mean(votes), abs=0.01)


def test_the_arithmetic_of_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "experiments"))
    real_pools = __import__("real_pools")
    assert real_pools.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    files = {
        "p": write_lines(tmp_path / "p.jsonl", [{"name": "a", "scores": [[0.5, 1.0]]}]),
        "q": write_lines(tmp_path / "q.jsonl", [{"name": "a", "scores": [[0.1, 0.5]]}]),
    }
    mean, of_log_odds = (
        json.loads(path.read_text())["scores"][0] for path in real_pools.write_ensembles(files, tmp_path).values()
    )
    assert mean == pytest.approx([0.3, 0.75])
    assert of_log_odds == pytest.approx([0.25, 1 / (1 + np.exp(-3.5))]), "odds 1 and 1/9 have the mean 1/3"
    assert real_pools._mentions("She eats 7 dozen in 4 weeks.", "7")
    assert real_pools._mentions("It costs $1,400.", "1400")
    assert real_pools._mentions("So it is **Evelyn**.", r"\text{Evelyn}")
    assert not real_pools._mentions("She eats 17 dozen in 4 weeks.", "7")
    sys.modules.pop("real_pools")
