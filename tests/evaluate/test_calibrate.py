"""`prism calibrate`: thresholds with intervals against loops written out, and where the result goes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from eval_helpers import write_jsonl
from test_eval_published_scores import MODELS, published

from killing import run_killed
from prism_prm import CalibrateSettings, Step, StepTree, calibrate_prm, calibrate_steps, init_prm, load_prm, metrics
from prism_prm.aggregate import log_score
from prism_prm.calibration import Calibration, Method, sigmoid
from prism_prm.cli import app
from prism_prm.data.tables import write_trees
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.measure import Steps, shown
from prism_prm.evaluate.score_files import read_scored_problems
from prism_prm.models.card import read_calibration, read_card
from prism_prm.report import percent, signed_percent
from prism_prm.stats import cluster_draws
from prism_prm.tree import Estimate

DRAWS = ("--set", "num_draws=100")


def prism(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def told(result: Result) -> list[str]:
    if result.exception is not None:
        raise result.exception
    return result.stdout.strip().splitlines()


def made(rows: list[list[tuple[int, float]]]) -> Steps:
    """Steps of problems, each a list of (right, score)."""
    lengths = [len(row) for row in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    flat = [step for row in rows for step in row]
    parent = np.arange(len(flat)) - np.repeat(starts, lengths) - 1
    num = len(rows)
    return Steps(
        tuple(f"p{i}" for i in range(num)), ("all",), np.zeros(num, np.int64), np.arange(num), num,
        np.full(num, -1, np.int8), starts, parent, np.array([right for right, _ in flat], np.int8),
        np.array([score for _, score in flat]),
    )  # fmt: skip


ROWS = [
    [(1, 0.9), (0, 0.3)], [(1, 0.8), (1, 0.7)], [(0, 0.75), (1, 0.95)], [(1, 0.6), (0, 0.2)], [(1, 0.85), (0, 0.1)],
]  # fmt: skip


def test_a_threshold_and_its_interval_by_hand() -> None:
    steps = made(ROWS)
    found = calibrate_steps(steps, CalibrateSettings("tpr=0.8", num_draws=200, seed=3))
    # Right steps: 0.95 0.9 0.85 0.8 0.7 0.6. Five of six are kept above 0.65, the middle of 0.7 and 0.6.
    assert found.threshold.value == pytest.approx(0.65)
    distinct = sorted({score for row in ROWS for _, score in row}, reverse=True)
    middles = [distinct[0], *((a + b) / 2 for a, b in itertools.pairwise(distinct)), 0.1]
    drawn = []
    for draw in cluster_draws(5, 200, 3):
        kept = [score for times, row in zip(draw, ROWS, strict=True) for right, score in row * int(times) if right]
        drawn.append(max(t for t in middles if sum(score > t for score in kept) >= 0.8 * len(kept) - 1e-9))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.threshold.low, found.threshold.high) == pytest.approx((low, high))
    assert found.calibration == Calibration("held-out steps", "tpr=0.8", found.threshold.value, low, high)
    assert found.before["tpr"].value == 1.0
    assert found.before["fpr"].value == pytest.approx(1 / 4)


def test_each_problem_is_judged_by_what_was_fitted_to_the_others() -> None:
    steps, settings = made(ROWS), CalibrateSettings("tpr=0.8", num_draws=100, folds=5)
    found = calibrate_steps(steps, settings)
    good = []
    for left_out, row in enumerate(ROWS):
        rest = [step for i, other in enumerate(ROWS) if i != left_out for step in other]
        right, scores = np.array([r for r, _ in rest], bool), np.array([s for _, s in rest])
        threshold = metrics.Ranking.of(right, scores).threshold(metrics.Target("tpr", 0.8))
        good += [(right, score > threshold) for right, score in row]
    kept = [is_good for right, is_good in good if right]
    assert found.after["tpr"].value == pytest.approx(sum(kept) / len(kept))
    assert found.after["calibration_error"].value == found.before["calibration_error"].value, "no map"


def test_what_cannot_be_fitted() -> None:
    for rows, words in (
        ([[(1, 0.9)], [(1, 0.8)]], "only right steps"),
        ([[(0, 0.9)], [(0, 0.8)]], "only wrong steps"),
        ([[(-1, 0.9)]], "no step has a label"),
    ):
        with pytest.raises(DataError, match=words):
            calibrate_steps(made(rows), CalibrateSettings("f1", num_draws=100))
    backward = made([[(1, 0.1), (0, 0.9)], [(1, 0.2), (0, 0.8)]])
    with pytest.raises(DataError, match="right steps do not score higher"):
        calibrate_steps(backward, CalibrateSettings("f1", "platt", num_draws=100))
    # Two problems, of which one has the only wrong step: neither can be judged by the other.
    assert calibrate_steps(made([[(1, 0.9)], [(0, 0.2)]]), CalibrateSettings("f1", num_draws=100)).after == {}


# Real scores: docs/guides/evaluate.md has these numbers.


def both_splits(real_data: Path, model: str) -> Steps:
    a, b = (published(real_data, model, split) for split in ("gsm8k", "math"))
    return Steps(
        a.items + b.items, ("gsm8k", "math"), np.concatenate([a.item_group, b.item_group + 1]),
        np.concatenate([a.item_cluster, b.item_cluster + a.num_clusters]), a.num_clusters + b.num_clusters,
        np.concatenate([a.item_contaminated, b.item_contaminated]), np.concatenate([a.starts, b.starts + len(a.label)]),
        np.concatenate([a.parent, b.parent]), np.concatenate([a.label, b.label]),
        np.concatenate([a.probability, b.probability]),
    )  # fmt: skip


PUBLISHED = {
    ("Qwen2.5-Math-PRM-7B", "tpr=0.9"): ("0.9395 [0.9121, 0.959]", "90.2", "8.4", "82.7", "−5.3 [−7.5, −3.0]"),
    ("Qwen2.5-Math-PRM-7B", "prm-score"): ("0.3994 [0.3525, 0.7598]", "98.4", "25.6", "88.9", "+0.9 [0.2, 1.7]"),
    ("Qwen2.5-Math-7B-PRM800K", "tpr=0.9"): ("0.8574 [0.8301, 0.877]", "90.1", "17.6", "79.9", "+0.2 [−2.5, 3.2]"),
    ("Qwen2.5-Math-7B-PRM800K", "prm-score"): ("0.6914 [0.5957, 0.7598]", "95.7", "31.9", "82.3", "+2.6 [0.6, 5.1]"),
}
"""(PRM, target) → threshold, and TPR, FPR, PRMScore and its gain on problems that were not fitted."""


@pytest.mark.parametrize("model", MODELS)
def test_published_scores(real_data: Path, model: str) -> None:
    steps = both_splits(real_data, model)
    right, scores = steps.right.tolist(), steps.probability.tolist()
    distinct = sorted(set(scores), reverse=True)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(distinct)]
    num = sum(right)
    for target in ("tpr=0.9", "prm-score"):
        found = calibrate_steps(steps, CalibrateSettings(target))
        rates = [percent(found.after[name].value) for name in ("tpr", "fpr", "prm_score")]
        gain = signed_percent(found.after["prm_score"].minus(found.before["prm_score"]))
        assert (found.shown_threshold(), *rates, gain) == PUBLISHED[model, target]
        if target == "tpr=0.9":
            kept = {t: sum(r and s > t for r, s in zip(right, scores, strict=True)) for t in middles}
            assert found.threshold.value == max(t for t in middles if kept[t] >= 0.9 * num)
        else:
            best = {}
            for t in middles:
                counts = [0, 0, 0, 0]
                for r, s in zip(right, scores, strict=True):
                    counts[(0 if s > t else 3) if r else (1 if s > t else 2)] += 1
                tp, fp, tn, fn = counts
                best[t] = tp / (2 * tp + fp + fn) + tn / (2 * tn + fp + fn)
            top = max(best.values())
            assert found.threshold.value == max(t for t in middles if best[t] > top - 1e-12)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.parametrize("model", MODELS)
def test_calibration_error_of_published_scores_by_hand(real_data: Path, model: str, method: Method) -> None:
    """The error before, from loops over bins, and after, by folds."""
    steps = both_splits(real_data, model)
    found = calibrate_steps(steps, CalibrateSettings("tpr=0.9", method))

    def error(right: list[bool], probability: list[float]) -> float:
        gaps = [0.0] * 10
        for r, p in zip(right, probability, strict=True):
            gaps[min(int(10 * p), 9)] += p - r
        return sum(map(abs, gaps)) / len(right)

    assert found.before["calibration_error"].value == pytest.approx(
        error(steps.right.tolist(), steps.probability.tolist())
    )
    before, after = found.before["calibration_error"], found.after["calibration_error"]
    expected = {
        ("Qwen2.5-Math-PRM-7B", "platt"): ("1.8 [1.5, 3.0]", "0.8", "−1.0 [−1.6, 0.0]"),
        ("Qwen2.5-Math-PRM-7B", "isotonic"): ("1.8 [1.5, 3.0]", "0.6", "−1.2 [−1.8, −0.2]"),
        ("Qwen2.5-Math-7B-PRM800K", "platt"): ("1.8 [1.4, 3.0]", "0.9", "−0.9 [−1.2, 0.2]"),
        ("Qwen2.5-Math-7B-PRM800K", "isotonic"): ("1.8 [1.4, 3.0]", "0.8", "−1.0 [−1.7, 0.3]"),
    }
    assert (shown(before), percent(after.value), signed_percent(after.minus(before))) == expected[model, method]


@pytest.mark.parametrize(("method", "changed"), [("platt", 58), ("isotonic", 75)])
def test_choices_among_solutions(real_data: Path, method: Method, changed: int) -> None:
    """Of 32 solutions of 250 MATH-500 problems: never another one by min and last, but by product."""
    found = calibrate_steps(both_splits(real_data, MODELS[0]), CalibrateSettings("tpr=0.9", method, num_draws=100))
    file = real_data / "best_of_n_prm" / "math500_scores_qwen2.5-math-prm-7b.jsonl"
    problems = [[np.array(steps) for steps in own if steps] for _, own in read_scored_problems(file).values()]
    for how, expected in (("min", 0), ("last", 0), ("product", changed)):
        count = 0
        for solutions in problems:
            raw = [log_score(steps, how) for steps in solutions]
            mapped = [log_score(found.calibration.of_probability(steps), how) for steps in solutions]
            count += raw[int(np.argmax(mapped))] < max(raw)
        assert count == expected, how


# Where it goes.


@pytest.fixture(scope="module")
def small(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A PRM and labeled data, on which right steps score higher."""
    folder = tmp_path_factory.mktemp("calibrate")
    prm = init_prm(tiny_lm("qwen2"), family="qwen")
    prm.save(folder / "prm")
    texts = [[f"{i}+{k}={i + k}" for k in range(4)] for i in range(12)]
    scores = prm.score_many([(f"problem {i}?", steps) for i, steps in enumerate(texts)])
    middle = float(np.median(np.concatenate(scores)))
    labels = [[(s > middle) != ((i + k) % 5 == 0) for k, s in enumerate(own)] for i, own in enumerate(scores)]
    rows = [
        {"prompt": f"problem {i}?", "completions": steps, "labels": own}
        for i, (steps, own) in enumerate(zip(texts, labels, strict=True))
    ]
    write_jsonl(folder / "held-out.jsonl", rows)
    return folder / "prm", folder / "held-out.jsonl"


@pytest.fixture
def prm(small: tuple[Path, Path], tmp_path: Path) -> Path:
    return shutil.copytree(small[0], tmp_path / "prm")


@pytest.fixture
def data(small: tuple[Path, Path]) -> Path:
    return small[1]


def test_the_card_of_a_folder(prm: Path, data: Path, tmp_path: Path) -> None:
    weights = {path.name: path.read_bytes() for path in prm.glob("*.safetensors")}
    common = ["calibrate", "--prm", prm, "--data", data, *DRAWS]
    *_, written, page = told(prism(*common, "--target", "tpr=0.8", "--method", "isotonic"))
    assert (Path(written), Path(page)) == (prm / "prism.json", prm / "calibration" / "report.html")
    card = read_card(prm)
    assert card is not None
    assert card.calibration is not None
    assert (card.calibration.on, card.calibration.method) == ("held-out.jsonl (12 problems, 48 steps)", "isotonic")
    assert card.threshold == card.calibration.threshold
    assert card.calibration.model_hash == load_prm(prm).model_hash()
    assert {path.name: path.read_bytes() for path in prm.glob("*.safetensors")} == weights

    # The same from scores that were written before, by Python, with a calibrated PRM: it is fitted to its own scores.
    found = calibrate_prm(prm, data, settings=CalibrateSettings("tpr=0.8", "isotonic", num_draws=100))
    assert found.calibration == card.calibration
    assert read_card(prm) == card

    # eval uses it, and says so.
    told(prism("eval", "--prm", prm, "--bench", "labeled", "--data", data, "--out", tmp_path / "eval", *DRAWS))
    run = json.loads((tmp_path / "eval" / "metrics.json").read_text())["benchmarks"]["labeled"]
    assert run["threshold"]["value"] == card.threshold
    assert run["threshold"]["origin"] == f"from the PRM's card, calibrated on {card.calibration.on}"
    before, after = (
        run["reliability"][name]["calibration_error"]["value"] for name in ("before calibration", "after calibration")
    )
    assert before == pytest.approx(found.before["calibration_error"].value)
    assert after < before
    rates = run["subsets"]["all"]["metrics"]["steps"]
    assert rates["calibration_error"]["value"] == pytest.approx(after)
    assert rates["tpr"]["value"] >= 0.8
    assert "calibrated on held-out.jsonl" in (tmp_path / "eval" / "report.md").read_text()
    refused = prism("calibrate", "--run", tmp_path / "eval", "--target", "f1", *DRAWS)
    assert "its scores are calibrated already" in str(refused.exception)


def test_benchmarks_with_a_rule_measure_raw_scores(prm: Path, data: Path, tmp_path: Path) -> None:
    rows = [{"id": f"m-{i}", "problem": f"{i}?", "steps": ["a", "b", "c"], "label": i % 4 - 1} for i in range(8)]
    file = write_jsonl(tmp_path / "processbench" / "math.jsonl", rows)
    common = ["eval", "--prm", prm, "--bench", "processbench", "--data", file, "--out", tmp_path / "out", *DRAWS]

    def measured(*more: str) -> dict[str, Any]:
        told(prism(*common, *more))
        found: dict[str, Any] = json.loads((tmp_path / "out" / "metrics.json").read_text())["benchmarks"][
            "processbench"
        ]
        return found

    raw = measured()
    told(prism("calibrate", "--prm", prm, "--data", data, "--target", "f1", "--method", "platt", *DRAWS))
    after = measured()
    assert after["threshold"] == raw["threshold"]
    assert after["subsets"] == raw["subsets"]
    assert after["threshold"]["origin"] == "the benchmark's rule"
    own = measured("--threshold", "prm")
    assert own["threshold"]["value"] == read_card(prm).threshold  # type: ignore[union-attr]
    assert own["histogram"] != raw["histogram"], "calibrated scores"


def test_an_eval_folder_is_enough(prm: Path, data: Path, tmp_path: Path) -> None:
    told(prism("eval", "--prm", prm, "--bench", "labeled", "--data", data, "--out", tmp_path / "eval", *DRAWS))
    direct = calibrate_prm(prm, data, settings=CalibrateSettings("f1", "platt", num_draws=100), out=tmp_path / "direct")
    *_, written, _ = told(prism("calibrate", "--run", tmp_path / "eval", "--target", "f1", "--method", "platt", *DRAWS))
    assert Path(written) == prm / "prism.json", "the PRM that was evaluated"
    card = read_card(prm)
    assert card is not None
    assert card.calibration is not None
    assert asdict(card.calibration) == asdict(direct.calibration) | {"model_hash": ""}
    for more in (["--data", data], ["--bench", "processbench"], ["--prm", prm]):
        refused = prism("calibrate", "--run", tmp_path / "eval", "--target", "f1", *more)
        assert isinstance(refused.exception, ConfigError), more


@pytest.mark.parametrize("change", ["fewer", "relabeled"])
def test_an_eval_folder_of_data_that_changed_is_refused(prm: Path, data: Path, tmp_path: Path, change: str) -> None:
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    file = write_jsonl(tmp_path / "changing.jsonl", rows)
    told(prism("eval", "--prm", prm, "--bench", "labeled", "--data", file, "--out", tmp_path / "eval", *DRAWS))
    relabeled = [row | {"labels": [not label for label in row["labels"]]} for row in rows]
    write_jsonl(file, rows[:-1] if change == "fewer" else relabeled)
    refused = prism("calibrate", "--run", tmp_path / "eval", "--target", "f1", *DRAWS)
    assert isinstance(refused.exception, DataError)
    assert "changed since the evaluation" in str(refused.exception)


def test_scores_from_elsewhere(small: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    prm = load_prm(small[0])
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    found = [{"id": f"tree-{i}", "scores": prm.score(row["prompt"], row["completions"])} for i, row in enumerate(rows)]
    predictions = write_jsonl(tmp_path / "predictions.jsonl", found)
    common = ["--predictions", predictions, "--data", data, *DRAWS]
    refused = prism("calibrate", *common, "--target", "f1")
    assert "--predictions names no PRM, so there is no card to write to; give --out" in str(refused.exception)
    told(prism("calibrate", *common, "--target", "cost=2:1", "--method", "platt", "--out", tmp_path / "out"))
    calibration = read_calibration(tmp_path / "out")
    assert (calibration.model_hash, calibration.target) == ("", "cost=2:1")
    cost = json.loads((tmp_path / "out" / "metrics.json").read_text())["before"]["cost"]["value"]
    labels, scores = (
        np.concatenate([row[key] for row in rows_]) for key, rows_ in (("labels", rows), ("scores", found))
    )
    good = scores > 0.5
    assert cost == pytest.approx(np.mean(2 * (good & ~labels) + 1 * (~good & labels)))
    # It is used where it is named: by a PRM, and for the scores themselves.
    told(prism("eval", "--bench", "labeled", *common, "--out", tmp_path / "eval",
               "--set", f"load.calibration={tmp_path / 'out'}"))  # fmt: skip
    run = json.loads((tmp_path / "eval" / "metrics.json").read_text())["benchmarks"]["labeled"]
    assert run["threshold"]["value"] == calibration.threshold
    assert "after calibration" in run["reliability"]
    (scored,) = prm.score_trees([StepTree.chain(rows[0]["prompt"], rows[0]["completions"])])
    named = load_prm(small[0], calibration=tmp_path / "out")
    assert named.score(rows[0]["prompt"], rows[0]["completions"]) == pytest.approx(
        sigmoid(calibration.apply(scored.log_odds_NO[:, 0])), abs=1e-9
    )


def test_problems_of_training_are_refused(
    prm: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = prism("calibrate", "--prm", prm, "--data", data, "--target", "f1", "--trained-on", data)
    assert isinstance(refused.exception, DataError)
    assert "the PRM was trained on 12 of the problems (in " in str(refused.exception)
    # A PRM of a training run: the run knows its data.
    run = tmp_path / "run"
    shutil.move(prm, run / "rounds" / "1")
    (run / "recipe.toml").write_text("")
    (run / "run.json").write_text(
        json.dumps({"best": "rounds/1", "criterion": "auroc", "beats_base": True, "rounds": {}})
    )
    told(prism("pairs", data, "--out", run / "data", "--split", "train=0.5,validation=0.5", "--set", "lookahead=none"))
    monkeypatch.chdir(run / "rounds" / "1")  # a relative path names no folder above it
    for place in (run, run / "rounds" / "1", "."):
        refused = prism("calibrate", "--prm", place, "--data", data, "--target", "f1", *DRAWS)
        assert isinstance(refused.exception, DataError)
        assert "the PRM was trained on" in str(refused.exception)
    assert "calibration" not in (run / "rounds" / "1" / "prism.json").read_text()
    told(prism("calibrate", "--prm", run, "--data", run / "data", "--split", "validation", "--target", "f1", *DRAWS))
    card = read_card(run / "rounds" / "1")
    assert card is not None
    assert card.calibration is not None
    assert "split validation" in card.calibration.on


def test_labels_of_rollouts_are_not_used(prm: Path, tmp_path: Path) -> None:
    guess = Estimate(0.75, 4, 0.3, 0.95)
    exact = [(0.0, None), (1.0, None)]

    def tree(number: int, labels: list[tuple[float, Estimate | None]]) -> StepTree:
        steps = tuple(Step(f"{number}.{i}", label, estimate=of) for i, (label, of) in enumerate(labels))
        return StepTree(number, f"problem {number}?", steps, (-1, 0), (0, 1), f"t{number}")

    write_trees(tmp_path / "trees.parquet", [tree(0, exact), tree(1, exact), tree(2, [(1.0, guess), (0.0, guess)])])
    found = calibrate_prm(prm, tmp_path, settings=CalibrateSettings("f1", num_draws=100))
    assert found.calibration.on.endswith("(3 problems, 4 steps)")
    assert "2 labels come from rollouts" in (prm / "calibration" / "report.md").read_text()
    write_trees(tmp_path / "trees.parquet", [tree(2, [(1.0, guess), (0.0, guess)])])
    with pytest.raises(DataError, match="has only labels of rollouts"):
        calibrate_prm(prm, tmp_path, settings=CalibrateSettings("f1", num_draws=100))


@pytest.mark.parametrize("before", ["prism_prm.evaluate.calibrate_prm:rewrite_card", "prism_prm.report:write_text"])
def test_a_killed_run_leaves_the_card_and_can_be_repeated(prm: Path, data: Path, before: str) -> None:
    card = (prm / "prism.json").read_bytes()
    words = ["calibrate", "--prm", prm, "--data", data, "--target", "f1", *DRAWS]
    assert run_killed(words, before).returncode != 0
    assert (prm / "prism.json").read_bytes() == card
    told(prism(*words))
    assert (prm / "prism.json").read_bytes() != card
