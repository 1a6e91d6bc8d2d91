from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prism_prm import init_prm, load_prm
from prism_prm.aggregate import log_score
from prism_prm.cli import app, main
from prism_prm.cli.options import families_of
from prism_prm.data.pools import read_pool
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.paths import named_places
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool

RECORDS = [
    {
        "problem": f"What is {i} + {i}?",
        "answer": str(2 * i),
        "name": f"sum-{i}",
        "solutions": [
            f"We add.\n\nSo it is \\boxed{{{2 * i}}}.",
            f"We guess.\n\nSo it is \\boxed{{{2 * i + 1}}}.",
            ["Let x be it.", f"The answer is {2 * i}.0"],
            {"text": f"x = {i}\n\n\\boxed{{\\frac{{{4 * i}}}{{2}}}}"},
            "" if i == 0 else f"I think\n\n{2 * i - 1}",
        ],
    }
    for i in range(4)
]


@pytest.fixture(scope="module")
def prm_folders(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("prms")
    folders = [root / "first", root / "second"]
    for seed, folder in enumerate(folders):
        init_prm(tiny_lm("qwen2"), family="qwen", seed=seed).save(folder, aggregator="mean" if seed else None)
    return folders


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["rerank", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def metrics_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return found


def test_without_a_prm(pool: Path, tmp_path: Path) -> None:
    output = run(pool, "--out", tmp_path / "out", "--set", "judges=1")
    metrics = metrics_of(tmp_path / "out")
    assert not list((tmp_path / "out").glob("grading-*")), "filed only until all is graded"
    assert "majority vote" in output
    assert metrics["answers_found_by"] == {"boxed": 12, "answer is": 4, "last number": 3, "none": 1}
    assert metrics["answer_status"] == {"ok": 19, "no answer": 1}
    values = {(curve["method"], curve["n"]): curve["value"] for curve in metrics["curves"]}
    assert values["mean", 1] == values["majority", 1] == values["oracle", 1] == pytest.approx(0.6)
    assert values["majority", 5] == values["oracle", 5] == 1.0
    assert values["oracle", 2] == pytest.approx(1 - 1 / 10)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "curves.parquet", "figures", "metrics.json", "report.html", "report.md", "selected.jsonl", "solutions.parquet"
    }  # fmt: skip


def test_answers_under_a_name_of_your_own(pool: Path, tmp_path: Path) -> None:
    renamed = [{"gold" if key == "answer" else key: value for key, value in record.items()} for record in RECORDS]
    gold, problems = tmp_path / "gold.jsonl", tmp_path / "problems.jsonl"
    gold.write_text("".join(json.dumps(record) + "\n" for record in renamed))
    problems.write_text("".join(json.dumps({"problem": r["problem"], "gold": r["gold"]}) + "\n" for r in renamed))
    run(pool, "--out", tmp_path / "plain", "--set", "judges=1")
    run(gold, "--out", tmp_path / "gold", "--set", "judges=1", "--answer-field", "gold")
    run(gold, "--task", problems, "--out", tmp_path / "task", "--set", "judges=1", "--answer-field", "gold")
    expected = metrics_of(tmp_path / "plain")["curves"]
    assert metrics_of(tmp_path / "gold")["curves"] == metrics_of(tmp_path / "task")["curves"] == expected


def test_problems_without_a_solution_are_counted_and_shown(pool: Path, tmp_path: Path, prm_folders: list[Path]) -> None:
    """As a search leaves them whose budget was too small for them."""
    with pool.open("a") as file:
        for name in "xy":
            file.write(json.dumps({"problem": name, "answer": "1", "solutions": []}) + "\n")
    out = tmp_path / "out"
    output = run(pool, "--out", out, "--prm", prm_folders[0], "--set", "judges=1")
    metrics = metrics_of(out)
    assert (metrics["num_problems"], metrics["problems_without_solution"], metrics["num_solutions"]) == (6, 2, 20)
    values = {(curve["method"], curve["n"]): curve["value"] for curve in metrics["curves"]}
    assert values["mean", 1] == pytest.approx(0.6 * 4 / 6)
    assert values["oracle", 5] == pytest.approx(4 / 6)
    assert "2 of 6 problems have no solution and count as unsolved." in output
    assert "2 of 6 problems have no solution and count as unsolved." in (out / "report.md").read_text()
    again = run(pool, "--out", out, "--prm", prm_folders[0], "--set", "judges=1")
    assert "Reusing the grades in" in again


def test_a_table_of_two_prms_is_refused(pool: Path, tmp_path: Path, prm_folders: list[Path]) -> None:
    """Both scored the same solutions: whose rows come last must not decide whose scores are used."""
    for name, folder in zip(("a", "b"), prm_folders, strict=True):
        run(pool, "--out", tmp_path / "out", "--prm", f"{name}={folder}", "--set", "judges=1")
    tables = [pq.read_table(tmp_path / "out" / "scores" / f"{name}.parquet") for name in ("a", "b")]
    pq.write_table(pa.concat_tables(tables), tmp_path / "both.parquet")
    with pytest.raises(DataError, match=r"both\.parquet: has scores of 2 models; name a table of one model"):
        rerank_pool(pool, tmp_path / "again", scores={"both": tmp_path / "both.parquet"})
    assert not (tmp_path / "again").exists(), "refused before anything is judged"


def test_two_prms_on_one_pool(pool: Path, tmp_path: Path, prm_folders: list[Path]) -> None:
    out = tmp_path / "out"
    both = ["--prm", prm_folders[0], "--prm", f"b={prm_folders[1]}"]
    run(pool, "-o", out, *both, "--aggregators", "min,product", "-n", "1,4")
    metrics = metrics_of(out)
    assert metrics["unscored_solutions"] == {"first": 1, "b": 1}, "the empty solution"
    pairs = {(d["a"], d["b"], d["method"], d["aggregator"], d["n"]) for d in metrics["differences"]}
    methods = [(method, how, n) for method in ("best-of-n", "weighted") for how in ("min", "product") for n in (1, 4)]
    assert pairs == {(a, b, *rest) for a, b in (("first", ""), ("b", ""), ("b", "first")) for rest in methods}
    table = pq.read_table(out / "solutions.parquet").to_pylist()
    prm = load_prm(prm_folders[0])
    for row, solution in zip(table, read_pool(pool).solutions, strict=True):
        steps = list(solution.steps)
        problem = RECORDS[row["problem_id"]]["problem"]
        expected = log_score(prm.score(str(problem), steps), "product") if steps else None
        assert row["first/product"] == (None if expected is None else pytest.approx(expected, rel=1e-4))
    report = (out / "report.md").read_text()
    assert "PRMs compared on the same pool" in report
    winner = (
        r"> Of 4 solutions, the majority vote is right on 100.0 % of the problems, the [\w -]+ by (first|b) on [\d.]+ %"
    )
    assert re.search(winner, report)
    assert (
        report.index("> Of 4") < report.index("figures/accuracy-1.svg") < report.index("| selection | n = 1 | n = 4 |")
    )
    assert "An example: the wrong solution on which the PRMs differ most." in report


def selected(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "selected.jsonl").read_text().splitlines()]


def test_each_prm_selects_as_its_card_says(pool: Path, tmp_path: Path, prm_folders: list[Path]) -> None:
    out = tmp_path / "out"
    few = ["--set", "judges=1", "--set", "num_draws=10"]
    both = ["--prm", prm_folders[0], "--prm", prm_folders[1], *few]
    output = run(pool, "-o", out, *both)
    metrics = metrics_of(out)
    card = "from the PRM's card"
    assert metrics["own_aggregator"] == {
        "first": {"value": "product", "origin": card}, "second": {"value": "mean", "origin": card}
    }  # fmt: skip
    text = " ".join((out / "report.md").read_text().split())
    assert f"Step scores become a solution's score by: first: product, {card}; second: mean, {card}." in text
    assert "Aggregator of second: mean, from the PRM's card." in " ".join(output.split())
    shown = [line for line in output.splitlines() if "Best-of-n" in line]
    assert len(shown) == 2, "a row per PRM, by its own aggregator"
    assert "soft-min" not in output, "the others are in the report"
    assert "first · Best-of-n · soft-min" in text
    own = [d for d in metrics["differences"] if d["b"] and d["aggregator"] != d["b_aggregator"]]
    assert {(d["a"], d["b"], d["aggregator"], d["b_aggregator"]) for d in own} == {
        ("second", "first", "mean", "product")
    }
    values = {(c["method"], c["prm"], c["aggregator"], c["n"]): c["value"] for c in metrics["curves"]}
    at_5 = next(d for d in own if (d["method"], d["n"]) == ("best-of-n", 5))
    expected = values["best-of-n", "second", "mean", 5] - values["best-of-n", "first", "product", 5]
    assert at_5["difference"] == pytest.approx(expected)
    assert {(row["prm"], row["aggregator"]) for row in selected(out)} == {
        ("", ""), ("first", "product"), ("second", "mean")
    }  # fmt: skip
    run(pool, "-o", tmp_path / "given", *both, "--aggregators", "last,min")
    assert metrics_of(tmp_path / "given")["own_aggregator"]["second"] == {"value": "last", "origin": "as given"}
    # A table knows what its PRM's card said.
    run(pool, "-o", tmp_path / "again", "--scores", out / "scores" / "second.parquet", *few)
    assert metrics_of(tmp_path / "again")["own_aggregator"] == {"second": {"value": "mean", "origin": card}}


def test_what_is_selected_is_written_and_given_back(pool: Path, tmp_path: Path) -> None:
    results = rerank_pool(pool, tmp_path / "out", settings=RerankSettings(judges=1, num_draws=10))
    rows = selected(tmp_path / "out")
    assert [(row["name"], row["rule"], row["solution"], row["answer"], row["correct"]) for row in rows] == [
        (f"sum-{i}", "majority", 0, str(2 * i), True) for i in range(4)
    ]
    assert rows[1]["steps"] == ["We add.", "So it is \\boxed{2}."]
    assert [one.share for one in results.selections] == [row["share"] for row in rows]
    assert rows[0]["share"] == pytest.approx(3 / 4), "the empty solution casts no vote"


def test_a_pool_without_references_is_selected_from_and_not_measured(tmp_path: Path) -> None:
    solutions = [{"steps": [c], "answer": c, "scores": [p]} for c, p in (("1", 0.2), ("2", 0.9), ("1", 0.3))]
    path, out = tmp_path / "pool.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"problem": name, "solutions": solutions}) + "\n" for name in "pq"))
    output = " ".join(run(path, "-o", out, "--set", "judges=1").split())
    note = "2 of 2 problems have no reference answer: solutions are selected, but there is nothing to measure."
    assert note in output
    assert note in (out / "report.md").read_text()
    assert [(row["rule"], row["prm"], row["answer"], row["correct"]) for row in selected(out)[:3]] == [
        ("majority", "", "1", None), ("best-of-n", "pool", "2", None), ("weighted", "pool", "2", None)
    ]  # fmt: skip
    metrics = metrics_of(out)
    assert (metrics["curves"], metrics["differences"], metrics["problems_without_reference"]) == ([], [], 2)
    assert not (out / "curves.parquet").exists()
    # A third problem has a reference: it alone is measured.
    with path.open("a") as file:
        file.write(json.dumps({"problem": "r", "answer": "2", "solutions": solutions}) + "\n")
    output = " ".join(run(path, "-o", out, "--set", "judges=1").split())
    assert "2 of 3 problems have no reference answer: solutions are selected, but not measured." in output
    values = {(c["method"], c["aggregator"], c["n"]): c["value"] for c in metrics_of(out)["curves"]}
    assert (values["mean", "", 1], values["best-of-n", "min", 3]) == (pytest.approx(1 / 3), 1.0)
    by_problem = pq.read_table(out / "curves.parquet").to_pylist()[0]["by_problem"]
    assert by_problem == [None, None, pytest.approx(1 / 3)]


def test_one_small_problem_does_not_cut_the_curves(pool: Path, tmp_path: Path) -> None:
    with pool.open("a") as file:
        file.write(json.dumps({"problem": "one?", "answer": "1", "solutions": ["\\boxed{1}"]}) + "\n")
    out = tmp_path / "out"
    output = " ".join(run(pool, "-o", out, "--set", "judges=1").split())
    metrics = metrics_of(out)
    assert metrics["problems_with_fewer_solutions_than_n"] == {"2": 1, "4": 1, "5": 1}
    values = {(curve["method"], curve["n"]): curve["value"] for curve in metrics["curves"]}
    assert values["oracle", 2] == pytest.approx((4 * 0.9 + 1) / 5)
    note = (
        "The problems have 1 to 5 solutions. At each n, a problem with fewer uses all of them: 1 at n = 2, 1 at n = 4"
    )
    assert note in output
    assert note in (out / "report.md").read_text()


def test_an_interrupted_run_goes_on(
    pool: Path, tmp_path: Path, prm_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while scoring, the second start judges nothing and gives the same numbers as a run in one go."""
    import prism_prm.evaluate.score_files as table
    from prism_prm.grading.process_pool import ProcessPool

    arguments = (pool, "--prm", prm_folders[0], "--set", "judges=1")
    run(*arguments, "-o", tmp_path / "whole")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(table, "write_scores", stop)
        assert CliRunner().invoke(app, ["rerank", *map(str, arguments), "-o", str(tmp_path / "out")]).exit_code != 0
    assert not (tmp_path / "out" / "metrics.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "run", stop)
        assert "Reusing the grades in" in run(*arguments, "-o", tmp_path / "out")
    assert metrics_of(tmp_path / "out") == metrics_of(tmp_path / "whole")


def test_scores_made_before(pool: Path, tmp_path: Path, prm_folders: list[Path]) -> None:
    run(pool, "-o", tmp_path / "out", "--prm", prm_folders[0])
    table = tmp_path / "out" / "scores" / "first.parquet"
    run(pool, "-o", tmp_path / "again", "--scores", table)
    made, read = metrics_of(tmp_path / "out"), metrics_of(tmp_path / "again")
    assert made.pop("tokens").keys() == {"first"}
    assert read.pop("tokens") == {}, "a table does not say what its scores took"
    for selector in (*made["selectors"], *read["selectors"]):
        assert selector.pop("tokens") > 0, "then they are estimated"
    assert read == made
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"problem": "q", "answer": "1", "solutions": ["a", "b"]}) + "\n")
    with pytest.raises(DataError, match="scores of none of the pool's 2 solutions"):
        run(other, "-o", tmp_path / "third", "--scores", table)


def test_scores_in_the_pool(tmp_path: Path) -> None:
    solutions = [{"steps": ["1"], "answer": "1", "scores": [0.9]}, {"steps": ["2"], "answer": "2", "scores": [0.2]}]
    path = tmp_path / "pool.jsonl"
    path.write_text(json.dumps({"problem": "q", "answer": "1", "solutions": solutions}) + "\n")
    run(path, "-o", tmp_path / "out", "--aggregators", "last")
    values = {(c["method"], c["prm"], c["n"]): c["value"] for c in metrics_of(tmp_path / "out")["curves"]}
    assert values["best-of-n", "pool", 2] == values["weighted", "pool", 2] == 1.0
    assert values["majority", "", 2] == pytest.approx(0.5, abs=0.06)


def test_answers_from_a_task(pool: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.jsonl"
    task.write_text("".join(json.dumps({"problem": r["problem"], "answer": "none of it"}) + "\n" for r in RECORDS))
    run(pool, "-o", tmp_path / "out", "--task", task)
    assert {curve["value"] for curve in metrics_of(tmp_path / "out")["curves"]} == {0.0}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--aggregators", "max"], ConfigError, "Unknown aggregator 'max'"),
        (["-n", "1,x"], ConfigError, "-n 1,x: each of the list must be a whole number"),
        (["-n", "6"], ConfigError, "no problem of this pool has more than 5 solutions"),
        (["--aggregators", ","], ConfigError, "aggregators is empty. Known: last, min"),
        (["--set", "extract=box"], ConfigError, "Unknown methods to extract an answer"),
        (["--prm", "a=x", "--prm", "a=y"], ConfigError, "Two PRMs are called 'a'"),
        (["--prm", "a=x"], ModelError, "x: there is no such model folder"),
        (["--scores", "none.parquet"], DataError, "none.parquet: no such file or folder"),
        (["--task", "nonsense"], ConfigError, "Unknown task 'nonsense'"),
    ],
)
def test_mistakes_are_explained(
    pool: Path, tmp_path: Path, arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(pool, "-o", tmp_path / "out", *arguments)


def test_numbers_of_solutions_are_checked_before_the_work(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-n 1,x: each of the list must be a whole number"):
        run(tmp_path / "nowhere.jsonl", "-o", tmp_path / "out", "-n", "1,x")
    with pytest.raises(ConfigError, match="no problem of this pool has more than 5 solutions"):
        run(pool, "-o", tmp_path / "out", "-n", "100")
    assert not (tmp_path / "out").exists(), "nothing was judged"


def test_prms_are_called_by_their_folder_file_or_given_name() -> None:
    assert named_places(["Qwen/Qwen2.5-Math-PRM-7B", "b=prms/x", "old/scores.parquet"]) == {
        "Qwen2.5-Math-PRM-7B": "Qwen/Qwen2.5-Math-PRM-7B",
        "b": "prms/x",
        "scores": "old/scores.parquet",
    }


def test_a_mistake_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prism", "rerank", str(tmp_path / "no.jsonl"), "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no.jsonl: no such file" in capsys.readouterr().err


def test_library_functions_are_public() -> None:
    import prism_prm

    assert prism_prm.best_of_n([0.1, 0.7]) == 1
    assert prism_prm.weighted_vote(["1/2", "0.5", "3"], [0.3, 0.3, 0.5]).answer == "1/2"
    assert prism_prm.solution_score(np.array([0.5, 0.5]), "product") == 0.25
    assert prism_prm.extract_answer(r"\boxed{4}").answer == "4"


@pytest.fixture(scope="module")
def two_families(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Name → folder and family of PRMs whose folders do not say which family they are of."""
    root = tmp_path_factory.mktemp("families")
    found = {}
    for name, family in (("a", "qwen"), ("b", "token-classification")):
        init_prm(tiny_lm("qwen2"), family=family).save(root / name)
        (root / name / "prism.json").unlink()
        found[name] = root / name, family
    return found


def test_each_prm_can_have_a_family_of_its_own(
    two_families: dict[str, tuple[Path, str]], pool: Path, tmp_path: Path
) -> None:
    named = [word for name, (folder, _) in two_families.items() for word in ("--prm", f"{name}={folder}")]
    families = [word for name, (_, family) in two_families.items() for word in ("--family", f"{name}={family}")]
    run(pool, *named, *families, "--out", tmp_path / "out", "--set", "judges=1", "--aggregators", "min")
    for name, (folder, family) in two_families.items():
        found = pq.read_table(tmp_path / "out" / "scores" / f"{name}.parquet")
        assert set(found["model_hash"].to_pylist()) == {load_prm(folder, family=family).identity()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["c=qwen"], "--family c=qwen: no PRM is called 'c'. PRMs: a, b."),
        (["c=my.py:Mine"], "--family c=my.py:Mine: no PRM is called 'c'. PRMs: a, b."),
        (["qwen", "rlhflow"], "--family rlhflow: the PRM 'a' already has the family 'qwen'; give only one"),
        (["a=qwen", "a=rlhflow"], "--family a=rlhflow: the PRM 'a' already has the family 'qwen'; give only one"),
    ],
)
def test_a_family_that_fits_no_prm_or_comes_twice(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        families_of(given, ["a", "b"])
    assert str(found.value) == said


def test_families_of_prms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x=1").mkdir()
    Path("x=1/my.py").touch()
    assert families_of([], ["a", "b"]) == {}
    assert families_of(["b=skywork", "qwen"], ["a", "b"]) == {"a": "qwen", "b": "skywork"}
    assert families_of(["x=1/my.py:Mine"], ["a"]) == {"a": "x=1/my.py:Mine"}, "a file whose path has a ="
    assert families_of(["a=x=1/my.py:Mine"], ["a", "b"]) == {"a": "x=1/my.py:Mine"}
