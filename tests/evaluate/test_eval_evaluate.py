from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_helpers import prmbench_row, processbench_row, score_with, write_jsonl

from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import Item, ItemSet, read_benchmark, read_labeled
from prism_prm.evaluate.evaluate_prm import EvalSettings, Evaluation, evaluate_steps
from prism_prm.evaluate.measure import AUROCS, Measurer, Steps, measure_pairs, sibling_pairs
from prism_prm.evaluate.report import RunInfo, WrongStep, find_wrong_step, read_wrong_step, write_run
from prism_prm.evaluate.score_files import collect_steps
from prism_prm.report import percent
from prism_prm.tree import Step, StepTree

FAST = EvalSettings(num_draws=100)


def run(benchmark: ItemSet, steps: Steps, settings: EvalSettings = FAST) -> Evaluation:
    return evaluate_steps(benchmark, steps, settings)


def processbench(tmp_path: Path, num: int = 40) -> ItemSet:
    rows = [processbench_row(f"math-{i}", 4, (i % 5) - 1) for i in range(num)]
    return read_benchmark("processbench", [write_jsonl(tmp_path / "math.jsonl", rows)])


def noisy(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return lambda _name, _i, label: float(np.clip(0.5 + 0.3 * (2 * (label or 0) - 1) + 0.3 * rng.normal(), 0, 1))


def test_fixed_threshold_measures_everything(tmp_path: Path) -> None:
    benchmark = processbench(tmp_path)
    found = run(benchmark, score_with(benchmark, noisy(0)))
    whole = found.subsets["all"]
    assert (whole.num_items, whole.num_steps, whole.num_problems) == (40, 160, 40)
    assert sum(whole.counts.values()) == 8 * (1 + 2 + 3 + 4 + 4), "steps after a first error are not judged"
    steps = whole.tables["steps"]
    assert steps["fpr"].value == whole.counts["fp"] / (whole.counts["fp"] + whole.counts["tn"])
    assert steps["fpr"].interval().low <= steps["fpr"].value <= steps["fpr"].interval().high
    shares = [steps[f"first_error_{name}"].value for name in ("exact", "early", "late", "missed")]
    assert sum(shares) == pytest.approx(1)
    assert list(found.subsets) == ["all"], "nobody said what it was trained on"


def test_threshold_is_chosen_on_held_out_problems_only(tmp_path: Path) -> None:
    benchmark = processbench(tmp_path, 100)
    steps = score_with(benchmark, noisy(1))
    settings = EvalSettings(target_tpr=0.9, holdout=0.3, num_draws=100)
    found = run(benchmark, steps, settings)
    assert found.threshold.heldout_problems == 30
    assert found.subsets["all"].num_problems == 70
    assert found.threshold.heldout_tpr >= 0.9
    measured = {*found.steps.items}
    held = steps.only(np.array([name not in measured for name in steps.items]))
    assert len(held.items) == 30
    assert np.mean(held.probability[held.right] > found.threshold.value) == found.threshold.heldout_tpr
    assert run(benchmark, steps, settings).threshold == found.threshold, "the same seed holds out the same problems"


def test_verdicts_have_no_ranking_and_no_threshold_to_choose(tmp_path: Path) -> None:
    from dataclasses import replace

    benchmark = processbench(tmp_path)
    steps = replace(score_with(benchmark, lambda _n, _i, label: float(label != 0)), hard=True)
    found = run(benchmark, steps)
    assert "auroc" not in found.subsets["all"].tables["steps"]
    assert found.curve == {}
    with pytest.raises(ConfigError, match="can be chosen only for scores"):
        run(benchmark, steps, EvalSettings(target_tpr=0.9, num_draws=100))


def test_clean_and_contaminated_are_measured_apart(tmp_path: Path) -> None:
    rows = [prmbench_row("circular", f"{word} apples", 3, [2]) for word in ("two", "five", "nine", "many")]
    benchmark = read_benchmark("prmbench", [write_jsonl(tmp_path / "prmbench" / "a.jsonl", rows)])
    trained = write_jsonl(tmp_path / "train.jsonl", [{"problem": "What is  TWO apples?"}, {"problem": "Another one."}])
    checked = benchmark.checked_against([trained])
    assert [item.contaminated for item in checked.items] == [True, False, False, False]
    good_on_trained = score_with(checked, lambda name, _i, label: label if "two" in name else 0.9)
    found = run(checked, good_on_trained)
    assert {name: subset.num_items for name, subset in found.subsets.items()} == {
        "all": 4,
        "clean": 3,
        "contaminated": 1,
    }
    assert found.subsets["contaminated"].tables["overall"]["prm_score"].value == 1
    assert found.subsets["clean"].tables["steps"]["fpr"].value == 1
    assert math.isnan(found.subsets["contaminated"].tables["overall"]["prm_score"].interval().low), "one problem"


def test_a_limit_makes_a_part(tmp_path: Path) -> None:
    benchmark = processbench(tmp_path).some(3, seed=0)
    assert len(benchmark.items) == 3
    assert benchmark.complete is False
    assert benchmark.notes == {"items left out by the limit of 3 per group": 37}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 1.5}, "threshold = 1.5: must be 0 or more and at most 1"),
        ({"target_tpr": 0.0}, "target_tpr = 0.0: must be above 0"),
        ({"holdout": 1.0}, "holdout = 1.0: must be above 0 and below 1"),
        ({"num_draws": 20}, "num_draws = 20: must be 100 or more"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalSettings(**given)


def test_unknown_benchmarks_and_missing_data() -> None:
    with pytest.raises(ConfigError, match=r"Unknown benchmark 'prmbanch'. Known: prmbench, processbench"):
        read_benchmark("prmbanch", ["x"])
    with pytest.raises(ConfigError, match=r"^The benchmark 'labelled' is now spelled 'labeled': use --bench labeled"):
        read_benchmark("labelled", [])
    with pytest.raises(ConfigError, match="--bench labeled needs --data"):
        read_benchmark("labeled", [])


def test_an_empty_file_and_data_without_labels_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="empty"):
        read_benchmark("processbench", [tmp_path / "empty.jsonl"])
    row = {"prompt": "P?", "completions": ["a", "b"], "labels": [None, None]}
    with pytest.raises(DataError):
        read_benchmark("labeled", [write_jsonl(tmp_path / "no.jsonl", [row])])


# ---- trees with alternatives --------------------------------------------------------------------------------------


def prm800k_record() -> dict[str, Any]:
    def completion(text: str, rating: int) -> dict[str, Any]:
        return {"text": text, "rating": rating, "flagged": None}

    steps = [
        {"completions": [completion("a", 1), completion("b", -1), completion("c", -1)], "human_completion": None,
         "chosen_completion": 0},
        {"completions": [completion("d", 1), completion("e", 1), completion("f", -1), completion("g", 0)],
         "human_completion": None, "chosen_completion": 0},
    ]  # fmt: skip
    return {
        "labeler": "x", "timestamp": "t", "generation": None, "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": "P?", "ground_truth_answer": "1"},
        "label": {"steps": steps, "total_time": 1, "finish_reason": "found_error"},
    }  # fmt: skip


def test_pairs_stand_under_the_same_prefix(tmp_path: Path) -> None:
    benchmark = read_labeled([write_jsonl(tmp_path / "prm800k.jsonl", [prm800k_record()])])
    steps = score_with(benchmark, lambda _n, i, _l: i / 10)
    tree = benchmark.items[0].tree
    text = [node.text for node in tree.nodes]
    chosen, rejected = sibling_pairs(steps)
    found = {(text[c], text[r]) for c, r in zip(chosen, rejected, strict=True)}
    assert found == {("a", "b"), ("a", "c"), ("d", "f"), ("e", "f")}
    table = measure_pairs(steps, num_draws=100)
    assert table is not None
    assert table.num_pairs == 4
    # Later nodes score higher here, so every wrong step that was listed later wins.
    expected = np.mean([steps.probability[c] > steps.probability[r] for c, r in zip(chosen, rejected, strict=True)])
    assert table.overall.value == expected
    assert sum(table.bin_sizes) == 4


def test_auroc_in_three_parts(tmp_path: Path) -> None:
    """Of the tree: a 0.9 against b 0.5, c 0.95; d 0.6 and e 0.3 against f 0.4. Within prefix 2 of 4. Within problem
    {.9, .6, .3} against {.5, .95, .4}: 2 + 2 + 0 of 9. Of a second problem, all right: nothing within, but pooled."""
    other = prm800k_record()
    other["question"]["problem"] = "Q?"
    other["label"]["steps"] = [
        {"completions": [{"text": "h", "rating": 1, "flagged": None}], "human_completion": None, "chosen_completion": 0}
    ]
    benchmark = read_labeled([write_jsonl(tmp_path / "x.jsonl", [prm800k_record(), other])])
    scores = {"a": 0.9, "b": 0.5, "c": 0.95, "d": 0.6, "e": 0.3, "f": 0.4, "g": 0.2, "h": 0.99}
    texts = {item.tree.name: [node.text for node in item.tree.nodes] for item in benchmark.items}
    steps = score_with(benchmark, lambda name, i, _l: scores[texts[name][i]])
    found = Measurer(steps, 0.5, num_draws=200).rankings(names=tuple(AUROCS))
    assert {name: measured.value for name, measured in found.items()} == {
        "auroc_prefix": 2 / 4, "auroc_problem": 4 / 9, "auroc": 7 / 12,
    }  # fmt: skip
    table = measure_pairs(steps, num_draws=200)
    assert table is not None
    assert table.overall == found["auroc_prefix"].interval(), "pairs ranked right are those within a prefix"
    drawn = found["auroc_prefix"].replicates
    assert set(drawn[~np.isnan(drawn)]) == {0.5}, "every draw with the first problem has the same pairs"


def test_steps_without_a_score_are_in_no_pair(tmp_path: Path) -> None:
    benchmark = read_labeled([write_jsonl(tmp_path / "x.jsonl", [prm800k_record()])])
    steps = score_with(benchmark, lambda _n, i, _l: i / 10)
    steps = replace(steps, probability=np.where(np.arange(len(steps.label)) == 0, np.nan, steps.probability))
    assert 0 not in np.concatenate(sibling_pairs(steps))
    assert measure_pairs(steps, num_draws=100) is not None


def test_plain_solutions_have_no_pairs(tmp_path: Path) -> None:
    benchmark = processbench(tmp_path)
    steps = score_with(benchmark, noisy(0))
    assert measure_pairs(steps, num_draws=100) is None
    prefix = Measurer(steps, 0.5, num_draws=100).rankings()["auroc_prefix"].interval()
    assert np.isnan([prefix.value, prefix.low, prefix.high]).all(), "no data, not zero"


def test_sibling_pairs_equal_the_obvious_loop(tmp_path: Path) -> None:
    benchmark = read_labeled([write_jsonl(tmp_path / "x.jsonl", [prm800k_record()] * 3)])
    steps = score_with(benchmark, noisy(0))
    slow = {
        (i, j)
        for i, j in product(range(len(steps.label)), repeat=2)
        if steps.step_item[i] == steps.step_item[j] and steps.parent[i] == steps.parent[j]
        and steps.right[i] and steps.wrong[j]
    }  # fmt: skip
    assert set(zip(*map(np.ndarray.tolist, sibling_pairs(steps)), strict=True)) == slow


# ---- the run folder -----------------------------------------------------------------------------------------------


def test_run_folder_holds_the_numbers(tmp_path: Path) -> None:
    benchmark = processbench(tmp_path)
    found = run(benchmark, score_with(benchmark, noisy(0)))
    write_run(tmp_path / "out", RunInfo("my-prm", "runs/my-prm", "abc"), [found], FAST)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    stored = metrics["benchmarks"]["processbench"]["subsets"]["all"]
    assert stored["metrics"]["steps"]["fpr"]["value"] == found.subsets["all"].tables["steps"]["fpr"].value
    assert stored["counts"] == found.subsets["all"].counts
    own = {"name": "my-prm", "source": "runs/my-prm", "model_hash": "abc"}
    assert metrics["run"] == {**own, "tokens": None, "critic": None}
    assert metrics["benchmarks"]["processbench"]["files"] == list(benchmark.files)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "part of processbench: 40 items" in page
    assert "This is only part of the benchmark" in page
    assert "Missing splits: gsm8k, olympiadbench, omnimath" in page
    rates = found.subsets["all"].tables["steps"]
    passed, lost = percent(rates["fpr"].value), percent(rates["fnr"].value)
    sentence = f"On processbench, my-prm lets {passed} % of the wrong steps pass and rejects {lost} % of the right ones"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "; Mean F1 of the splits is " in text
    assert text.index(sentence) < text.index("](figures/") < text.index("| --- |")


def test_the_example_is_the_wrong_step_that_scores_highest(tmp_path: Path) -> None:
    steps = [Step("a", 1.0), Step("b", 0.0), Step("c", 0.0)]
    trees = [StepTree.chain(f"p{i}", steps, tree_id=i, name=f"t{i}") for i in range(2)]
    items = ItemSet(tuple(Item(tree, "all", tree.problem) for tree in trees), ("x",), name="labeled")
    scores = [np.array([0.9, 0.1, 0.2]), np.array([0.8, 0.7, 0.3])]
    found = evaluate_steps(items, collect_steps(items.items, scores, None), FAST)
    assert found.example == WrongStep("t1", "p1", (0, 1), ("a", "b"))
    write_run(tmp_path, RunInfo("mine", "m"), [found], FAST)
    text = (tmp_path / "report.md").read_text()
    assert "An example: the wrong step that mine scores highest." in text
    assert "| p1 | truth | mine |\n| --- | ---: | ---: |\n| a | right | 80.0 |\n| b | wrong | 70.0 |" in text
    kept = json.loads((tmp_path / "metrics.json").read_text())["benchmarks"]["labeled"]["example"]
    assert read_wrong_step(kept) == found.example
    assert read_wrong_step(None) is None, "of an older run"
    unnamed = [StepTree.chain("p", steps)] * 2
    assert find_wrong_step(unnamed, {"mine": found.steps}) is None, "names do not tell them apart"


def test_without_data_the_hub_is_asked_and_its_absence_is_said() -> None:
    """Tests run without a network; the message must name the dataset and the way out."""
    with pytest.raises(DataError, match=r"Qwen/ProcessBench.*name a local file"):
        read_benchmark("processbench", [])


def test_a_limit_does_not_take_the_first_ones(tmp_path: Path) -> None:
    """Published files are sorted; the choice is by problem, so that groups keep the same problems."""
    benchmark = processbench(tmp_path)
    names = [[item.tree.name for item in benchmark.some(8, seed).items] for seed in (0, 1, 0)]
    first = [item.tree.name for item in benchmark.items[:8]]
    assert names[0] == names[2]
    assert len({tuple(first), tuple(names[0]), tuple(names[1])}) == 3
