from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from eval_helpers import prmbench_row, processbench_row, write_jsonl
from test_eval_evaluate import FAST, noisy, run, score_with

from prism_prm.console import Console, shown_on
from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.evaluate.benchmarks import read_benchmark
from prism_prm.evaluate.benchmarks.prmbench import CLASSES
from prism_prm.evaluate.compare import (
    build_comparison,
    compare_bench,
    compare_runs,
    load_run,
    load_runs,
    load_steps,
    shared_benches,
)
from prism_prm.evaluate.evaluate_prm import evaluate_prm
from prism_prm.evaluate.report import RunInfo, write_run
from prism_prm.lab.theory.dominance import VERDICTS, add_dominance
from prism_prm.lab.theory.report_theory import report_theory
from prism_prm.report import Report
from prism_prm.serve.page_html import view_results


def make_run(
    tmp_path: Path, name: str, seed: int, *, num: int = 30, flip: bool = False, bench: str = "both", about: str = ""
) -> Path:
    data = tmp_path / f"data-{num}-{flip}-{about}"
    rows = [
        processbench_row(f"math-{i}", 4, ((i % 5) - 1) if not flip else (i % 4), f"Problem {i} {about}?")
        for i in range(num)
    ]
    write_jsonl(data / "processbench" / "math.jsonl", rows)
    nine = [
        prmbench_row(kind, f"{i}", 4, [2] if kind != "multi_solutions" else []) for kind in CLASSES for i in range(6)
    ]
    write_jsonl(data / "prmbench" / "all.jsonl", nine)
    names = ["prmbench", "processbench"] if bench == "both" else [bench]
    evaluations = []
    for one in names:
        benchmark = read_benchmark(one, [data])
        evaluations.append(run(benchmark, score_with(benchmark, noisy(seed))))
    write_run(tmp_path / name, RunInfo(name, f"runs/{name}"), evaluations, FAST)
    return tmp_path / name


def test_comparison_is_paired_and_complete(tmp_path: Path) -> None:
    base, other = make_run(tmp_path, "base", 0), make_run(tmp_path, "other", 1)
    runs = load_runs([str(base), f"PRISM={other}"])
    assert [one.name for one in runs] == ["base", "PRISM"]
    shared, left_out = shared_benches(runs)
    assert (shared, left_out) == (["prmbench", "processbench"], [])
    compared = [compare_bench(runs, bench, num_draws=200) for bench in shared]
    stored = json.loads((other / "metrics.json").read_text())["benchmarks"]["prmbench"]["subsets"]["all"]["metrics"]
    assert compared[0].tables["PRISM"]["overall"]["prm_score"].value == stored["overall"]["prm_score"]["value"]
    report = build_comparison(runs, compared, left_out=left_out, rounds=True)
    page = report.write(tmp_path / "cmp").read_text()
    for expected in ("PRISM minus base", "FPR reduction", "NCL", "math TPR", "Training rounds", "mean F1"):
        assert expected in page
    differences = json.loads((tmp_path / "cmp" / "metrics.json").read_text())["benchmarks"]["prmbench"]["differences"]
    fpr = [compared[0].tables[name]["steps"]["fpr"].value for name in ("base", "PRISM")]
    assert differences["PRISM"]["fpr"]["difference"] == pytest.approx(fpr[1] - fpr[0])
    assert 0 < differences["PRISM"]["fpr"]["p"] <= 1


def test_a_run_equals_itself(tmp_path: Path) -> None:
    base = make_run(tmp_path, "base", 0, bench="processbench")
    runs = load_runs([f"a={base}", f"b={base}"])
    tables = compare_bench(runs, "processbench", num_draws=100).tables
    for metric, measured in tables["a"]["steps"].items():
        found = measured.minus(tables["b"]["steps"][metric])
        if metric == "auroc_prefix":
            assert np.isnan(found.difference), "plain solutions have no two candidates after a prefix"
        else:
            assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1), metric


def test_runs_on_other_data_cannot_be_compared(tmp_path: Path) -> None:
    base = make_run(tmp_path, "base", 0, bench="processbench")
    fewer = make_run(tmp_path, "fewer", 0, num=20, bench="processbench")
    with pytest.raises(DataError, match=r"base has 10 of 30 items that the other run does not have \(math-20, math-21"):
        load_steps(load_runs([str(base), str(fewer)]), "processbench")
    flipped = make_run(tmp_path, "flipped", 0, flip=True, bench="processbench")
    with pytest.raises(DataError, match="26 of 30 items with the same names but other texts or labels"):
        load_steps(load_runs([str(base), str(flipped)]), "processbench")


def test_runs_on_other_texts_under_the_same_names_cannot_be_compared(tmp_path: Path) -> None:
    base = make_run(tmp_path, "base", 0, bench="processbench")
    other = make_run(tmp_path, "other", 0, bench="processbench", about="of another set")
    said = "base and other have 30 of 30 items with the same names but other texts or labels"
    with pytest.raises(DataError, match=said):
        compare_runs([base, other], tmp_path / "cmp", num_draws=100)
    with pytest.raises(DataError, match=said):
        report_theory(tmp_path / "theory", simulate=False, runs=[base, other])


def test_runs_that_do_not_record_their_texts_cannot_be_compared(tmp_path: Path) -> None:
    base, old = (make_run(tmp_path, name, 0, bench="processbench") for name in ("base", "old"))
    table = old / "processbench.steps.parquet"
    pq.write_table(pq.read_table(table).drop_columns("content_hash"), table)
    with pytest.raises(DataError, match=r"old: .* without hashes of the texts.*rerun `prism eval`"):
        load_steps(load_runs([str(base), str(old)]), "processbench")


class Killed(BaseException):
    """In the place of a signal that ends the process."""


def test_a_killed_evaluation_never_leaves_the_numbers_of_two_prms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first file the folder is the old one; after it, whichever was the last, it is refused."""
    rows = [processbench_row(f"math-{i}", 2, (i % 3) - 1) for i in range(6)]
    data = write_jsonl(tmp_path / "math.jsonl", rows)

    def evaluate(score: float, out: Path) -> None:
        predictions = [{"id": row["id"], "scores": [score, score]} for row in rows]
        given, name = write_jsonl(tmp_path / f"{score}.jsonl", predictions), f"prm-{score}"
        evaluate_prm(
            None, "processbench", out, data=data, predictions=given, name=name, settings=FAST
        )  # fmt: skip

    class Killing(Console):
        def progress(self, *_: Any, **__: Any) -> Any:
            raise Killed

    evaluate(0.25, tmp_path / "first")
    with pytest.raises(Killed), shown_on(Killing()):
        evaluate(0.75, tmp_path / "first")
    load_run(str(tmp_path / "first"))
    replace, written = os.replace, 0
    last = len([file for file in (tmp_path / "first").rglob("*") if file.is_file()])

    def replace_some(source: Path, target: Path) -> None:
        nonlocal written
        if written == last:
            raise Killed
        written += 1
        replace(source, target)

    monkeypatch.setattr("os.replace", replace_some)
    while last:
        last, written, out = last - 1, 0, tmp_path / f"out-{last}"
        shutil.copytree(tmp_path / "first", out)
        with pytest.raises(Killed):
            evaluate(0.75, out)
        pages = {score for score in (0.25, 0.75) if any(f"prm-{score}" in p.read_text() for p in out.glob("report.*"))}
        assert len(pages) < 2, f"after {last} files there are pages of both"
        with pytest.raises(DataError, match="rerun `prism eval` if it was stopped"):
            load_run(str(out))


def test_runs_with_the_old_name_of_a_benchmark_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, 0, bench="processbench") for name in ("base", "old")]
    for folder in runs:
        (folder / "processbench.steps.parquet").rename(folder / "labelled.steps.parquet")
        metrics = folder / "metrics.json"
        metrics.write_text(metrics.read_text().replace('"processbench": {', '"labelled": {'))
    message = r"^The benchmark 'labelled' is now spelled 'labeled'.* rerun `prism eval`"
    with pytest.raises(ConfigError, match=message):
        compare_runs(runs, tmp_path / "cmp", num_draws=100)
    with pytest.raises(ConfigError, match=message):
        report_theory(tmp_path / "theory", simulate=False, runs=runs)
    with pytest.raises(PrismError, match=message):
        view_results(runs[0], tmp_path / "page.html")


def test_benchmarks_that_only_some_runs_have_are_left_out(tmp_path: Path) -> None:
    base = make_run(tmp_path, "base", 0)
    one = make_run(tmp_path, "one", 0, bench="processbench")
    assert shared_benches(load_runs([str(base), str(one)])) == (["processbench"], ["prmbench"])
    two = make_run(tmp_path, "two", 0, bench="prmbench")
    with pytest.raises(DataError, match="no benchmark is in all runs"):
        shared_benches(load_runs([str(one), str(two)]))


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    base = make_run(tmp_path, "base", 0, bench="processbench")
    with pytest.raises(ConfigError, match="at least two runs"):
        load_runs([str(base)])
    with pytest.raises(ConfigError, match="same name"):
        load_runs([str(base), str(base)])
    with pytest.raises(DataError, match="no such file; name folders written by `prism eval`"):
        load_runs([str(base), str(tmp_path)])
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "metrics.json").write_text('{"accuracy": 1}')
    with pytest.raises(DataError, match="not the metrics of `prism eval`"):
        load_runs([str(base), str(tmp_path / "odd")])
    for name, bench in (("\\ud800", "b"), ("n", "\\udfff")):
        metrics = f'{{"run": {{"name": "{name}"}}, "benchmarks": {{"{bench}": {{"threshold": {{"value": 0.5}}}}}}}}'
        (tmp_path / "odd" / "metrics.json").write_text(metrics)
        with pytest.raises(DataError, match=r"not the metrics of `prism eval` .*surrogates not allowed"):
            load_run(str(tmp_path / "odd"))


def test_dominance_section_states_what_was_found(tmp_path: Path) -> None:
    base, other = (
        make_run(tmp_path, "base", 0, bench="processbench"),
        make_run(tmp_path, "other", 1, bench="processbench"),
    )
    runs = load_runs([str(other), str(base)])
    steps = load_steps(runs, "processbench")
    report = Report("t")
    add_dominance(report, "processbench", "other", "base", steps["other"], steps["base"])
    found = report.metrics["dominance"]["processbench"]
    assert found["verdict"] in VERDICTS
    assert found["worst"] == pytest.approx(np.max(np.array(found["fpr_a"]) - np.array(found["fpr_b"])))
    assert VERDICTS[found["verdict"]].format(a="other", b="base")[1:] in report.markdown()
