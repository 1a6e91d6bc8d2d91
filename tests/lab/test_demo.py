"""The demo end to end, as `prism demo --quick` runs it, and its arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from docs_code import run_tutorial
from prism_prm.cli import app
from prism_prm.data.pools import read_pool
from prism_prm.data.tables import iter_trees
from prism_prm.evaluate.benchmarks import Item
from prism_prm.evaluate.score_files import collect_steps
from prism_prm.lab.demo.findings import BASE, differences, find, measure_steps, summary
from prism_prm.lab.demo.reinforcement import rl_problems
from prism_prm.lab.demo.report import QUICK, make_report
from prism_prm.lab.demo.run_demo import run_demo, run_seed
from prism_prm.lab.demo.settings import ARMS, TrainingBudget, demo_settings
from prism_prm.lab.world.build import build_world
from prism_prm.lab.world.policy import TinyPolicySettings, shown_problems
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.tree import Step, StepTree


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


def test_without_out_it_goes_to_prism_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make demo` calls it."""
    monkeypatch.chdir(tmp_path)

    class Called(Exception):  # noqa: N818
        pass

    def called(out: Path, **_: object) -> None:
        raise Called(out)

    monkeypatch.setattr("prism_prm.lab.demo.run_demo.run_demo", called)
    result = CliRunner().invoke(app, ["demo"])
    assert isinstance(result.exception, Called), result.output
    assert result.exception.args == (Path("prism-demo"),)


def test_the_tutorial_runs_on_what_the_demo_leaves(out: Path, tmp_path: Path) -> None:
    run_tutorial(out, tmp_path)
    for page in ("eval-base", "eval-mine", "comparison", "rerank", "beam"):
        assert (tmp_path / "runs" / "tutorial" / page / "report.html").exists()


def test_quick_demo_writes_a_report_with_every_prm(out: Path) -> None:
    page = (out / "report.html").read_text()
    assert QUICK in page
    for title in ("base PRM", *(ARMS[name].title for name in demo_settings(quick=True).names)):
        assert title in page
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["seeds"] == [0]
    numbers = metrics["steps"][0]
    assert list(numbers) == ["base", *demo_settings(quick=True).names]
    for found in numbers.values():
        assert set(found["fpr_at_tpr_90"]) == {"natural", *PERTURBATIONS}
        assert 0 <= found["fpr"] <= 1
    assert numbers["base"]["auroc"] > 0.6
    weights = {json.dumps(found, sort_keys=True) for found in numbers.values()}
    assert len(weights) == len(numbers), "every arm is another PRM"


def test_curves_start_at_the_policys_accuracy_and_end_below_the_oracle(out: Path) -> None:
    curves = {
        (c["method"], c["prm"], c["aggregator"]): c for c in json.loads((out / "metrics.json").read_text())["pool"][0]
    }
    one = curves["mean", "", ""]["accuracy"][0]
    oracle = curves["oracle", "", ""]["accuracy"]
    for (method, _, _), curve in curves.items():
        assert curve["accuracy"][0] == pytest.approx(one), method
        assert all(value <= top + 1e-9 for value, top in zip(curve["accuracy"], oracle, strict=True))


def test_over_optimization_is_measured_from_the_untrained_policy(out: Path) -> None:
    metrics = json.loads((out / "metrics.json").read_text())
    pool = {(c["method"], c["prm"], c["aggregator"]): c for c in metrics["pool"][0]}
    assert list(metrics["over_optimization"]) == ["base", *demo_settings(quick=True).names]
    for prm, lines in metrics["over_optimization"].items():
        best, policy = lines["Best-of-n"], metrics["policies"][0][f"{prm}-outcome-0"]["looks"]
        assert best["gold"] == pytest.approx(pool["best-of-n", prm, "min"]["accuracy"])
        assert best["sqrt_kl"][:2] == pytest.approx([0, np.sqrt(np.log(2) - 0.5)])
        assert (np.diff(best["proxy"]) >= 0).all(), "the best of more has the higher score"
        assert lines["GRPO"]["sqrt_kl"] == pytest.approx([max(look["kl"], 0) ** 0.5 for look in policy])
        assert lines["GRPO"]["proxy"] == pytest.approx([look["proxy"] for look in policy])
    drawn = ElementTree.fromstring((out / "figures" / "over-optimization-1.svg").read_text())
    plotted = [one for one in drawn.iter("{http://www.w3.org/2000/svg}g") if "line2d" in one.get("id", "")]
    ways = [one for one in plotted if len(one.findall(".//{*}use")) == len(best["gold"])]
    looks = [one for one in plotted if len(one.findall(".//{*}use")) == len(lines["GRPO"]["gold"])]
    assert all(any("clip-path" in path.attrib for path in one.findall("{*}path")) for one in ways), "lines of Best-of-n"
    assert not any("clip-path" in path.attrib for one in looks for path in one.findall("{*}path")), "GRPO's are points"
    assert (len(ways), len(looks)) == (2, 2)


def test_guided_search_solves_what_it_says(out: Path) -> None:
    """The share in metrics.json is that of the kept outcomes, one per problem of the pool."""
    found = json.loads((out / "metrics.json").read_text())["guided"][0]
    assert list(found) == ["base", *demo_settings(quick=True).names]
    shares = [share for by_n in found.values() for share in by_n.values()]
    assert np.mean(shares) > 0.4, "an answer at random is right one time in five"
    for name, by_n in found.items():
        for n, share in by_n.items():
            outcome = json.loads((out / "seed-0" / "guided" / f"{name}-beam-{n}.json").read_text())["result"]
            assert len(outcome) == demo_settings(quick=True).world.pool_problems
            assert share == pytest.approx(np.mean(outcome))


def test_a_second_demo_does_nothing_again(out: Path) -> None:
    def made() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.suffix in (".safetensors", ".parquet")}

    before = made()
    page = (out / "report.md").read_text().splitlines()[:-1]  # without the date
    result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert made() == before
    assert QUICK in result.output
    assert (out / "report.md").read_text().splitlines()[:-1] == page


def test_an_arm_without_data_is_named_and_left_out(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A curriculum bin that no pair falls into does not end the demo."""
    empty = replace(ARMS["paper"], bins=[[0.9999, 1.0], [0.9998, 0.9999]])
    monkeypatch.setitem(ARMS, "paper", empty)
    with quiet_transformers():
        result = run_seed(demo_settings(quick=True), 0, out)
    assert list(result.failed) == ["paper"]
    assert "have no pairs" in result.failed["paper"]
    found = find([result])
    assert found.prms == ["base", "pointwise", "prism"]
    text = make_report(found, "prism demo").markdown()
    assert (
        text.index("> With PRISM (ours), ")
        < text.index("figures/best-of-n-1.svg")
        < text.index("| PRM | AUROC within ")
    )
    assert "injected errors: FPR at TPR 90 ↓" in text
    assert text.index("The *embedded world* is a small synthetic task") < text.index("figures/best-of-n-1.svg")
    policies = {run.prm: [look.mean("answer") for look in result.policies[run].points] for run in found.runs}
    shares = {prm: f"{100 * curve[-1]:.1f} %" for prm, curve in policies.items()}
    assert (
        f"from {100 * policies['base'][0]:.1f} % solved to {shares['base']} with base PRM, "
        f"{shares['pointwise']} with pointwise, {shares['prism']} with PRISM (ours)." in text
    ), "the headline names RL"
    assert "An example: the wrong step on which the PRMs differ most. P(right) of each step (%)" in text
    assert "Not trained, so in no table" in text


def test_a_report_of_all_arms_lists_them_all(out: Path) -> None:
    """More arms than there are colours; lines are drawn for the first few only."""
    with quiet_transformers():
        result = run_seed(demo_settings(quick=True), 0, out)
    every = {name: result.scored[name if name in result.scored else BASE] for name in (BASE, *ARMS)}
    rounds = {name: result.rounds.get(name, result.rounds["prism"]) for name in ARMS}
    report = make_report(find([replace(result, scored=every, rounds=rounds)]), "prism demo --full")
    page, text = report.html(), report.markdown()
    for arm in ARMS.values():
        assert text.count(f"| {arm.title} |") >= 3, "summary, growth and classes"
    columns = [line.count(" | ") for line in text.splitlines() if line.startswith(("| PRM |", "| verdict |"))]
    assert max(columns) < 9, "wider tables do not fit a page, or break their headers into many lines"
    figure = page[page.index('aria-label="Accuracy against n') :]
    figure = figure[: figure.index("</svg>")]
    assert "PRISM (paper)" in figure
    assert "log-odds" not in figure


def test_a_report_of_two_worlds_shows_each(out: Path) -> None:
    """Dots for PRMs, and values for policies, whose ends are high or low."""
    with quiet_transformers():
        result = run_seed(demo_settings(quick=True), 0, out)
    text = make_report(find([result, replace(result, seed=1)]), "prism demo").markdown()
    assert "figures/seeds-1.svg" in text
    run = next(run for run in result.policies if run.prm == BASE)
    start, end = (f"{100 * result.policies[run].points[i].mean('answer'):.1f}" for i in (0, -1))
    assert f"| untrained | – | – | {start}, {start} |" in text
    assert any(line.startswith("| base PRM |") and f"| {end}, {end} |" in line for line in text.splitlines())


def test_arms_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    recipes = {n: arm.recipe(tmp_path / arm.trees, tmp_path / "b", TrainingBudget(1), 0) for n, arm in ARMS.items()}
    texts = {json.dumps(recipe, sort_keys=True) for recipe in recipes.values()}
    assert len(texts) == len(ARMS)
    pointwise, prism = ({**recipes[name], "objective": None} for name in ("pointwise", "prism"))
    for recipe in (pointwise, prism):
        recipe["train"] = {**recipe["train"], "lr": None}
    assert pointwise == prism, "pointwise trains on the same pairs with the same budget"
    continued, budget = recipes["continued"]["train"], pointwise["train"]
    assert continued["pairs_per_update"] == 2 * budget["pairs_per_update"], "a pair is two steps"
    equal = {
        arm.recipe(tmp_path, tmp_path, TrainingBudget(1, updates=7), 0)["train"]["updates"] for arm in ARMS.values()
    }
    assert equal == {7}


def test_policies_are_trained_with_every_prm_and_the_oracle(out: Path) -> None:
    settings = demo_settings(quick=True)
    assert settings.rl is not None
    metrics = json.loads((out / "metrics.json").read_text())
    runs = metrics["policies"][0]
    assert list(runs) == [f"{prm}-outcome-0" for prm in ("base", *settings.names, "oracle")]
    starts = {
        json.dumps({k: run["looks"][0][k] for k in ("answer", "steps", "greedy/answer")}) for run in runs.values()
    }
    assert len(starts) == 1, "all start from the same policy, watched on the same problems"
    for run in runs.values():
        assert [look["update"] for look in run["looks"]] == [0, 3, 6]
    for look in runs["oracle-outcome-0"]["looks"]:
        assert look["proxy"] == pytest.approx(look["steps"]), "the oracle rewards what is true"
    text = (out / "report.md").read_text()
    before, after = (round(100 * runs["base-outcome-0"]["looks"][i]["answer"]) for i in (0, -1))
    assert f"| {before} → {after} |" in text
    assert "figures/reinforcement-1.svg" in text


def test_rl_problems_are_new_to_every_model(out: Path) -> None:
    """Neither trained on nor measured by, in the world's own files and in the policy's own training."""
    settings = demo_settings(quick=True)
    assert settings.rl is not None
    world = build_world(settings.world, out / "world")
    train, held_out = ({problem.text for problem in some} for some in rl_problems(world, settings.rl))
    assert (len(train), len(held_out)) == (settings.rl.updates * settings.rl.prompts, settings.rl.held_out)
    seen = {tree.problem for name in ("base", "annotated", "natural", *PERTURBATIONS)
            for tree in iter_trees(world.trees(name))}  # fmt: skip
    seen |= {entry.problem.text for entry in read_pool(world.pool()).problems}
    made = json.loads((world.policy.parent / "settings.json").read_text())
    updates = made.pop("updates")
    seen |= {one.text for one in shown_problems(TinyPolicySettings(**made), settings.world.pretraining, updates)}
    assert not train & held_out
    assert not (train | held_out) & seen


def test_without_trl_the_last_act_is_skipped_and_says_how_to_install_it(
    out: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    kept = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    monkeypatch.setattr("prism_prm.lab.demo.run_demo.find_spec", lambda _: None)
    found = run_demo(out, quick=True)
    report = (out / "report.md").read_text()
    for path, content in kept.items():
        path.write_bytes(content)
    assert any("pip install 'prism-prm[rl]'" in line for line in said)
    assert found.runs == []
    assert "pip install 'prism-prm[rl]'" in report
    headers, _ = summary(found)
    assert "RL: solved" not in headers


def test_differences_are_paired() -> None:
    paired = differences([1.0, 2.0, 4.0], [0.5, 1.5, 3.5])
    assert (paired.value, paired.low, paired.high) == (0.5, 0.5, 0.5)


def test_false_positives_at_the_matched_threshold() -> None:
    """Ten right natural steps at 0.1 … 1.0: keeping 90 % of them puts the threshold between 0.1 and 0.2."""
    right = [Step(f"r{i}", label=1.0) for i in range(10)]
    natural = StepTree.chain("p", [*right, Step("w1", label=0.0), Step("w2", label=0.0)])
    scores = [np.array([*np.arange(1, 11) / 10, 0.05, 0.9])]
    items = [Item(natural, "natural", "p")]
    for kind in PERTURBATIONS:
        items.append(Item(StepTree.chain("p", [Step("w", label=0.0)]), kind, "p"))
        scores.append(np.array([0.8 if kind == "premature" else 0.12]))
    numbers = measure_steps(collect_steps(items, scores, None))
    assert numbers.natural == 0.5
    assert numbers.fpr_at_tpr_90["premature"] == 1.0
    assert numbers.fpr_at_tpr_90["circular"] == 0.0
    assert numbers.perturbed == pytest.approx(1 / 7)
    assert (numbers.fpr, numbers.fnr) == (0.5, 0.5)
    assert numbers.auroc == numbers.auroc_problem == pytest.approx((10 + 1.5) / 20), "one problem"
    assert np.isnan(numbers.auroc_prefix), "no siblings"
