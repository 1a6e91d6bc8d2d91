"""A benchmark that another package adds: the one of docs/guides/evaluate.md, installed as a package would be."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from eval_helpers import write_jsonl
from test_eval_cli import metrics, output, prism

from installing import install
from prism_prm.errors import ConfigError
from prism_prm.evaluate.benchmarks import BENCHMARKS, Benchmark, find_benchmark

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "evaluate.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    return tmp_path


def test_the_benchmark_of_the_docs(site: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## A benchmark of your own\n")[1].split("\n## ")[0]
    code, toml = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[0] for kind in ("python", "toml"))
    assert "[project.entry-points." in toml
    install(site, "my_package", {"my_package.py": code}, toml)

    rows = [
        {"id": f"q{i}", "topic": f"t{i % 2}", "problem": f"What is {i}?", "steps": ["a", "b"], "right": [True, i < 3]}
        for i in range(6)
    ]
    data = write_jsonl(site / "mine.jsonl", rows)
    # The last step of three of six items is right; the PRM takes that of four for right, and of two it errs.
    for name, good in (("base", (0, 1, 3, 4)), ("better", (0, 1, 2, 3))):
        scores = [{"id": f"q{i}", "scores": [0.9, 0.9 if i in good else 0.1]} for i in range(6)]
        predictions = write_jsonl(site / f"{name}.jsonl", scores)
        result = prism("eval", "--bench", "last-step", "--data", data, "--predictions", predictions, "--set",
                       "num_draws=100", "--out", site / name)  # fmt: skip
        output(result)
        assert "Last step judged rightly ↑" in result.output
    values = {
        name: metrics(site / name)["benchmarks"]["last-step"]["subsets"]["all"]["metrics"]["last"]["accuracy"]["value"]
        for name in ("base", "better")
    }
    assert values == {"base": pytest.approx(3 / 6), "better": pytest.approx(5 / 6)}
    report = (site / "base" / "report.md").read_text(encoding="utf-8")
    assert re.search(r"Last step judged rightly ↑ \| 50.0 \[", report)
    output(prism("compare", site / "base", site / "better", "--set", "num_draws=100", "--out", site / "compared"))
    compared = (site / "compared" / "report.md").read_text(encoding="utf-8")
    assert re.search(r"Last step judged rightly ↑ \| \+33.3 \[", compared)


def test_a_benchmark_may_have_any_name(site: Path) -> None:
    code = "from prism_prm.evaluate.benchmarks import Benchmark, read_labeled\nMINE = Benchmark(read_labeled)\n"
    install(site, "my_package", {"my_package.py": code}, "[prism_prm.benchmarks]\nMy_bench = my_package:MINE\n")
    rows = [{"prompt": f"{i}?", "completions": ["a", "b"], "labels": [True, False]} for i in range(4)]
    data = write_jsonl(site / "mine.jsonl", rows)
    predictions = write_jsonl(site / "p.jsonl", [{"id": f"tree-{i}", "scores": [0.9, 0.2 * i]} for i in range(4)])
    for name in ("a", "b"):
        output(prism("eval", "--bench", "My_bench", "--data", data, "--predictions", predictions, "--set",
                     "num_draws=100", "--out", site / name))  # fmt: skip
    output(prism("compare", site / "a", site / "b", "--set", "num_draws=100", "--out", site / "compared"))


def test_what_is_wrong_with_an_entry_point_is_said(site: Path) -> None:
    entries = "[prism_prm.benchmarks]\npairs = my_package:ONE\none = my_package:ONE\ntwo = my_package:TWO\n"
    install(site, "my_package", {"my_package.py": "ONE = 1\n"}, f"{entries}three = no_such_package:THREE\n")
    known = r".* Known: prmbench, processbench, labeled, pairs, one, three, two\.$"
    for name, message in [
        ("pairs", "The benchmark 'pairs' is defined 2 times: prism-prm, my_package:ONE"),
        ("one", "my_package:ONE is of type int, not a Benchmark"),
        ("two", "cannot be loaded from my_package:TWO: AttributeError: .*no attribute 'TWO'"),
        ("three", "cannot be loaded from no_such_package:THREE: ModuleNotFoundError: No module named"),
        ("four", "Unknown benchmark 'four'."),
    ]:
        with pytest.raises(ConfigError, match=message + known):
            find_benchmark(name)


def test_ours_are_found_without_any() -> None:
    assert list(BENCHMARKS) == ["prmbench", "processbench", "labeled", "pairs"]
    assert all(isinstance(find_benchmark(name), Benchmark) for name in BENCHMARKS)
