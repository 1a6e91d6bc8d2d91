"""What commands measure: `metrics.json` of `prism eval`, `compare`, `theory` and `rerank`, and what is selected.

Most scores are made up, so that every decision is the same on every CPU; the PRMs that ship with the package are
measured by what does not depend on the last digits of a score.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from golden_commands import digest, prism, read_json, read_lines, rows, write_lines
from golden_world import made_up, made_up_values, predictions, write_world

from golden import FLOAT32, FLOAT64, check
from prism_prm import example_folder

BENCHES = ("prmbench", "processbench", "labeled", "pairs")
PRMS = ("base", "prism")
RANKED = (
    "auroc_prefix",
    "auroc_problem",
    "auroc",
    "auprc",
    "auprc_errors",
    "fpr_at_tpr_80",
    "fpr_at_tpr_90",
    "fpr_at_tpr_95",
    "calibration_error",
)
"""Metrics that two nearly equal scores can change."""

ROUNDING = 1e-4
"""Scores of the shipped PRMs differ by 1e-5 between CPUs: they are sure of themselves, so float32's rounding grows."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Benchmarks, a pool, evaluations by the shipped PRMs, and made-up scores (PRM-BENCH.parquet) with theirs."""
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    prism(folder, "pairs", "labeled", "--split", "train=0.5,test=0.5", "--out", "pairs")
    for prm in PRMS:
        (folder / f"{prm}-prm").symlink_to(example_folder(prm))
        prism(folder, "eval", "--prm", f"{prm}-prm", "--bench", ",".join(BENCHES), "--data", ".", "--out", prm)
        prism(folder, "score", "pool.jsonl", "--prm", f"{prm}-prm", "--out", f"{prm}/pool.scores.parquet")
        for bench in (*BENCHES, "pool"):
            made_up(folder / prm / f"{bench}.scores.parquet", folder / f"{prm}-{bench}.parquet")
        for bench in BENCHES:
            scored = ("--data", ".", "--scores", f"{prm}-{bench}.parquet", "--set", "num_draws=200")
            prism(folder, "eval", "--bench", bench, *scored, "--out", f"{prm}-{bench}")
    return folder


def metrics_of(out: Path) -> Any:
    """The metrics without what names the version or the weights."""
    metrics = read_json(out / "metrics.json")
    metrics.pop("prism_prm", None)
    for run in [*metrics.get("runs", {}).values(), metrics.get("run", {})]:
        run.pop("model_hash", None)
    return metrics


@pytest.mark.parametrize("bench", BENCHES)
def test_eval_of_made_up_scores(bench: str, world: Path) -> None:
    check(f"eval_{bench}", metrics_of(world / f"base-{bench}"), tolerance=FLOAT64)


@pytest.mark.parametrize("bench", BENCHES)
def test_compare_of_made_up_scores(bench: str, world: Path, tmp_path: Path) -> None:
    prism(world, "compare", f"base-{bench}", f"mine=prism-{bench}", "--set", "num_draws=200", "--out", tmp_path / "out")
    check(f"compare_{bench}", metrics_of(tmp_path / "out"), tolerance=FLOAT64)


def test_compare_of_rounds(world: Path, tmp_path: Path) -> None:
    runs = ["base=base-labeled", "CL1=prism-labeled", "CL2=base-labeled"]
    prism(world, "compare", *runs, "--rounds", "--set", "num_draws=100", "--set", "seed=3", "--out", tmp_path / "out")
    check("compare_rounds", metrics_of(tmp_path / "out"), tolerance=FLOAT64)


OPTIONS: dict[str, list[object]] = {
    "verdicts": ["--bench", "processbench", "--predictions", "verdicts.jsonl", "--set", "name=verdicts"],
    "redundancy": ["--bench", "prmbench", "--predictions", "redundancy.jsonl", "--set", "redundancy_threshold=0.3"],
    "chosen_threshold": [
        "--bench", "labeled", "--scores", "prism-labeled.parquet", "--target-tpr", 0.9, "--set", "holdout=0.3",
        "--set", "seed=5",
    ],
    "one_split": ["--bench", "pairs", "--split", "test", "--scores", "prism-pairs.parquet", "--threshold", 0.6],
    "card": ["--bench", "processbench", "--scores", "prism-processbench.parquet", "--threshold", "prm"],
    "part": [
        "--bench", "processbench", "--scores", "prism-processbench.parquet", "--limit", 5, "--trained-on", "seen.jsonl",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_eval_with_options(name: str, world: Path, tmp_path: Path) -> None:
    write_lines(world / "verdicts.jsonl", predictions(world / "prism-processbench.parquet", as_labels=True))
    write_lines(world / "redundancy.jsonl", predictions(world / "base-prmbench.parquet"))
    seen = read_lines(world / "processbench" / "all.jsonl")[::3]
    write_lines(world / "seen.jsonl", [{"problem": record["problem"]} for record in seen])
    prism(world, "eval", *OPTIONS[name], "--data", ".", "--set", "num_draws=100", "--out", tmp_path / "out")
    found = metrics_of(tmp_path / "out")
    for bench in found["benchmarks"].values():
        for part in ("curve", "histogram"):  # they depend on the scores alone
            del bench[part]
    check(f"eval_with_{name}", found, tolerance=FLOAT64)


def robust(metrics: dict[str, Any]) -> dict[str, Any]:
    """What the last digits of scores do not change, where none is near a threshold."""
    for bench in metrics["benchmarks"].values():
        for part in ("curve", "histogram", "pairs", "example"):
            del bench[part]
        for subset in bench["subsets"].values():
            for table in [*subset["metrics"].values(), *subset["groups"].values()]:
                for name in RANKED:
                    table.pop(name, None)
    return metrics


@pytest.mark.parametrize("prm", PRMS)
def test_eval_of_shipped_prms(prm: str, world: Path) -> None:
    found, scores = robust(metrics_of(world / prm)), {}
    for bench in BENCHES:
        scores[bench] = [row["probability"] for row in rows(world / prm / f"{bench}.scores.parquet")]
        threshold = found["benchmarks"][bench]["threshold"]["value"]
        assert min(abs(score - threshold) for score in scores[bench]) > 2 * ROUNDING, "no step is near the threshold"
    check(f"eval_shipped_{prm}", found, tolerance=FLOAT32)
    check(f"scores_shipped_{prm}", scores, tolerance=ROUNDING)


THEORY: dict[str, list[object]] = {
    "closed_forms": ["--p", 0.2, "--alpha", 0.1, "--beta", 0.35, "--set", "seed=2"],
    "runs": ["--runs", "base=base-processbench", "--runs", "prism=prism-processbench"],
    "pool": ["--pool", "pool.jsonl"],
    "scored_pool": [
        "--pool", "pool.jsonl", "--scores", "prism-pool.parquet", "--aggregator", "mean", "--threshold", 0.4,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", THEORY)
def test_theory(name: str, world: Path, tmp_path: Path) -> None:
    prism(world, "theory", "--no-simulate", *THEORY[name], "--out", tmp_path / "out")
    check(f"theory_{name}", metrics_of(tmp_path / "out"), tolerance=FLOAT64)


SELECTED = (
    "problem_id",
    "rule",
    "prm",
    "aggregator",
    "num_solutions",
    "solution",
    "answer",
    "score",
    "share",
    "correct",
)
ANSWER = SELECTED.index("answer")
GRADED = ("problem_id", "solution", "answer", "method", "status", "correct", "group", "num_steps")
RERANK: dict[str, list[object]] = {
    "pool": ["--set", "num_draws=100"],
    "two_prms": [
        "--scores", "base=base-pool.parquet", "--scores", "prism=prism-pool.parquet", "--aggregators", "last,soft-min",
        "-n", "1,3,6", "--set", "num_draws=50", "--set", "seed=7",
    ],
}  # fmt: skip


def reranked(out: Path) -> dict[str, Any]:
    """The metrics, the grades, and which solutions are selected; no texts.

    Without p-values: means over problems that differ by 0 may also differ by the rounding of a sum, which CPUs do in
    different orders, and then a draw counts for one side instead of both.
    """
    selected = read_lines(out / "selected.jsonl")
    graded = rows(out / "solutions.parquet")
    metrics = metrics_of(out)
    for difference in metrics["differences"]:
        del difference["p"]
    return {
        "metrics": metrics,
        "selected": [[one[key] for key in SELECTED] for one in selected],
        "graded": {key: [row[key] for row in graded] for key in GRADED},
    }


@pytest.mark.parametrize("name", RERANK)
def test_rerank(name: str, world: Path, tmp_path: Path) -> None:
    prism(world, "rerank", "pool.jsonl", *RERANK[name], "--set", "judges=1", "--out", tmp_path / "out")
    check(f"rerank_{name}", reranked(tmp_path / "out"), tolerance=FLOAT64)


def test_rerank_by_shipped_prms(world: Path, tmp_path: Path) -> None:
    prms = [word for prm in PRMS for word in ("--prm", f"{prm}={prm}-prm")]
    options = ("--aggregators", "product,mean", "--set", "num_draws=100", "--set", "judges=1")
    prism(world, "rerank", "pool.jsonl", *prms, *options, "--out", tmp_path / "out")
    graded = rows(tmp_path / "out" / "solutions.parquet")
    for column in (f"{prm}/{how}" for prm in PRMS for how in ("product", "mean")):
        scores = sorted((row["problem_id"], row[column]) for row in graded)
        gaps = [b - a for (of_a, a), (of_b, b) in pairwise(scores) if of_a == of_b]
        assert min(gaps) > 1e-5, "no two solutions of a problem are nearly equal"
    check("rerank_shipped", reranked(tmp_path / "out"), tolerance=FLOAT32)


MODELS = ("Qwen2.5-Math-PRM-7B", "Qwen2.5-Math-7B-PRM800K")


@pytest.fixture(scope="module")
def published(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of step scores that others published, in MODEL/; as they have no texts, a wrong step ends an item."""
    folder = tmp_path_factory.mktemp("published")
    for model in MODELS:
        scored: list[dict[str, Any]] = []
        for split in ("gsm8k", "math"):
            stored = read_json(real_data / "prm_scores" / model / f"{split}.json")
            items: list[list[tuple[bool, float]]] = [[]]
            for right, score in zip(stored["y_true_step_level"], stored["y_pred_step_level"], strict=True):
                items[-1].append((bool(right), score))
                if not right:
                    items.append([])
            items = [item for item in items if item]
            labeled = [
                {
                    "prompt": f"{split} {number}",
                    "completions": [f"step {at}" for at in range(len(item))],
                    "labels": [right for right, _ in item],
                }
                for number, item in enumerate(items)
            ]
            write_lines(folder / "data" / f"{split}.jsonl", labeled)
            scored += [
                {"id": f"tree-{len(scored) + i}", "scores": [s for _, s in item]} for i, item in enumerate(items)
            ]
        write_lines(folder / f"{model}.jsonl", scored)
        words = ("--bench", "labeled", "--data", "data", "--predictions", f"{model}.jsonl")
        prism(folder, "eval", *words, "--set", "num_draws=200", "--out", model)
    return folder


@pytest.mark.real_data
def test_eval_of_published_scores(published: Path) -> None:
    for model in MODELS:
        check(f"eval_published_{model}", metrics_of(published / model), tolerance=FLOAT64)


@pytest.mark.real_data
def test_compare_of_published_scores(published: Path, tmp_path: Path) -> None:
    prism(published, "compare", *reversed(MODELS), "--set", "num_draws=200", "--out", tmp_path / "out")
    check("compare_published", metrics_of(tmp_path / "out"), tolerance=FLOAT64)


@pytest.mark.real_data
def test_theory_of_published_scores(published: Path, tmp_path: Path) -> None:
    runs = [word for model in MODELS for word in ("--runs", model)]
    prism(published, "theory", "--no-simulate", *runs, "--out", tmp_path / "out")
    check("theory_published", metrics_of(tmp_path / "out"), tolerance=FLOAT64)


REAL_BENCHES: dict[str, list[object]] = {"prmbench": [], "processbench": ["--trained-on", "math500/test.jsonl"]}


@pytest.mark.real_data
@pytest.mark.parametrize("bench", REAL_BENCHES)
def test_eval_of_real_benchmarks(bench: str, real_data: Path, tmp_path: Path) -> None:
    """Their items with made-up scores; the example is left out for its text."""
    for name in (bench, "math500"):
        (tmp_path / name).symlink_to(real_data / name)
    scored = []
    for file in sorted((real_data / bench).iterdir()):
        for record in read_json(file) if file.suffix == ".json" else read_lines(file):
            scored += made_up_predictions(bench, record)
    write_lines(tmp_path / "predictions.jsonl", {one["id"]: one for one in reversed(scored)}.values())
    words = ("--bench", bench, "--data", bench, "--predictions", "predictions.jsonl", *REAL_BENCHES[bench])
    prism(tmp_path, "eval", *words, "--set", "num_draws=100", "--out", "out")
    found = metrics_of(tmp_path / "out")
    found["benchmarks"][bench]["example"] = found["benchmarks"][bench]["example"]["item"]
    check(f"eval_real_{bench}", found, tolerance=FLOAT64)


def made_up_predictions(bench: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    if bench == "processbench":
        lengths = {record["id"]: len(record["steps"])}
    else:
        lengths = {f"{record['classification']}_{record['idx']}": len(record["modified_process"])}
        if record["classification"] == "redundency":
            lengths[f"correct_{record['idx']}"] = len(record["original_process"])
    return [{"id": name, "scores": made_up_values(name, length)} for name, length in lengths.items()]


REAL_POOLS: dict[str, tuple[str, str | None, int]] = {
    "math500": ("best_of_n/math500_pool_100.jsonl", None, 12),
    "math500_qwen": ("best_of_n_prm/math500_pool_250x32.jsonl", "math500_scores_qwen2.5-math-prm-7b.jsonl", 12),
    "gsm8k_skywork": ("best_of_n_prm/gsm8k_pool_250x32.jsonl", "gsm8k_scores_skywork-o1-prm-7b.jsonl", 20),
}
"""Name → a pool, scores that were published with it, and how many of its problems are taken."""


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL_POOLS)
def test_rerank_of_real_pools(name: str, real_data: Path, tmp_path: Path) -> None:
    place, scores, count = REAL_POOLS[name]
    problems = read_lines(real_data / place)[:count]
    if scores is not None:
        for problem, scored in zip(problems, read_lines(real_data / "best_of_n_prm" / scores), strict=False):
            assert problem["name"] == scored["name"]
            for solution, given in zip(problem["solutions"], scored["scores"], strict=True):
                solution["scores"] = given
    write_lines(tmp_path / "pool.jsonl", problems)
    prism(tmp_path, "rerank", "pool.jsonl", "--set", "num_draws=100", "--set", "judges=1", "--out", "out")
    found = reranked(tmp_path / "out")
    if scores is not None:
        prism(tmp_path, "theory", "--no-simulate", "--pool", "pool.jsonl", "--out", "theory")
        found["theory"] = metrics_of(tmp_path / "theory")
    # Which answers were found is kept as a hash: they are others' texts.
    texts = [found["graded"].pop(column) for column in ("answer", "method", "status")]
    found["graded"]["digest"] = digest(texts)
    found["selected"] = [[*row[:ANSWER], *row[ANSWER + 1 :]] for row in found["selected"]]
    check(f"rerank_real_{name}", found, tolerance=FLOAT64)
