"""Names that are paths, mark-up or formulas: every command that takes named PRMs shows them as they are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from prism_prm import init_prm
from prism_prm.cli import app, ui
from prism_prm.report import STYLES, Report, draw_curve, finish

HOSTILE = ["../../x", "[/b]", "$\\frac$", ".", "_hidden", ":smile: [red]*a*|b"]


def prism(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def legends(folder: Path) -> str:
    """All texts of all figures."""
    roots = [ElementTree.parse(path).getroot() for path in sorted((folder / "figures").glob("*.svg"))]
    return "\n".join(text for root in roots for text in root.itertext())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Deep enough for `../../x` to end inside tmp_path, where it would be seen."""
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    return deep


@pytest.fixture
def evaluated(tmp_path: Path) -> list[str]:
    rows = [{"id": f"math-{i}", "problem": f"p {i}?", "steps": ["a", "b", "c"], "label": i % 4 - 1} for i in range(12)]
    data = write_jsonl(tmp_path / "math.jsonl", rows)
    scores = [{"id": f"math-{i}", "scores": [0.9, 0.2 + 0.05 * i, 0.7]} for i in range(12)]
    predictions = write_jsonl(tmp_path / "predictions.jsonl", scores)
    return [
        "eval",
        "--bench",
        "processbench",
        "--data",
        str(data),
        "--predictions",
        str(predictions),
        "--set",
        "num_draws=100",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_eval_compare_and_theory(name: str, evaluated: list[str], place: Path, tmp_path: Path) -> None:
    before = files_in(tmp_path)
    prism(*evaluated, "--set", f"name={name}", "--out", place / "one")
    assert json.loads((place / "one" / "metrics.json").read_text())["run"]["name"] == name
    prism(*evaluated, "--out", place / "two")
    runs = [f"{name}={place / 'one'}", f"other={place / 'two'}"]
    prism("compare", *runs, "--rounds", "--set", "num_draws=100", "--out", place / "compared")
    assert list(json.loads((place / "compared" / "metrics.json").read_text())["runs"]) == [name, "other"]
    prism("theory", "--no-simulate", "--runs", runs[0], "--runs", runs[1], "--out", place / "theory")
    for out in ("one", "compared"):
        assert name in legends(place / out)
    assert all(path.is_relative_to(place) for path in files_in(tmp_path) - before)


@pytest.fixture(scope="module")
def prm(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prm") / "tiny"
    init_prm(tiny_lm("qwen2"), family="qwen").save(folder)
    return folder


@pytest.mark.parametrize("name", HOSTILE)
def test_rerank(name: str, prm: Path, place: Path, tmp_path: Path) -> None:
    solutions = [["We add.", f"It is \\boxed{{{i}}}"] for i in (2, 3)]
    pool = write_jsonl(tmp_path / "pool.jsonl", [{"problem": "1+1?", "answer": "2", "solutions": solutions}])
    before = files_in(tmp_path)
    out = place / "out"
    shown = prism("rerank", pool, "--prm", f"{name}={prm}", "--out", out, "--set", "judges=1", "--aggregators", "min")
    assert name in shown
    assert set(json.loads((out / "metrics.json").read_text())["unscored_solutions"]) == {name}
    assert name in legends(out)
    assert all(path.is_relative_to(out) for path in files_in(tmp_path) - before)
    (table,) = (out / "scores").iterdir()
    prism("rerank", pool, "--scores", f"{name}={table}", "--out", place / "again", "--set", "judges=1")
    assert name in legends(place / "again")


def test_search(memorising_policy: Path, tmp_path: Path, place: Path) -> None:
    names = HOSTILE[:4]
    prm = tmp_path / "prm"
    init_prm(memorising_policy, family="qwen").save(prm)
    task = write_jsonl(tmp_path / "task.jsonl", [{"problem": "3+4-2", "answer": "5"}])
    before = files_in(tmp_path)
    common = ["search", "--policy", f"hf:{memorising_policy}", "--task", task, "-P", "template=none", "-n", "2"]
    given = [word for name in names for word in ("--prm", f"{name}={prm}")]
    for method in ("beam", "best-of-n"):
        out = place / method
        shown = prism(*common, *given, "--method", method, "--set", "expand=2", "--set", "judges=1", "--out", out)
        assert [point["prm"] for point in json.loads((out / "metrics.json").read_text())["points"]] == names
        assert all(name in shown and name in legends(out) for name in names)
    assert all(path.is_relative_to(place) for path in files_in(tmp_path) - before)
    assert len(files_in(place / "best-of-n" / "pools")) == len(names) + 1, "a pool for each, and one without scores"


def test_tables_and_bars_show_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(ui, "standard_error", lambda: console)
    ui.print_table("[/b]:smile:", ["[red] a wide column"], [["[/i]"]])
    ui.Terminal().say("saying [/b]:smile:")
    with ui.Terminal().progress("scoring [/b]", 2, unit="[/i]") as advance:
        advance(2)
    for text in ("[/i]", "scoring [/b]", "saying [/b]:smile:"):
        assert text in screen.getvalue()
    table = capsys.readouterr().out
    assert all(text in table for text in ("[/b]:smile:", "[red]", "[/i]"))


def test_figures_show_dollars_and_underscores() -> None:
    report = Report("$t$")
    with report.figure("f", caption="c", alt="a [link](x) \\") as axes:
        draw_curve(axes, [0, 1], [1, 2], "_$\\frac$", STYLES[0])
        axes.set_xticks([0, 1], ["$a$", "$\\b$"])
        finish(axes, "$x$", title="$\\frac$")
    (figure,) = report.blocks
    texts = "".join(ElementTree.fromstring(figure.svgs[0]).itertext())  # type: ignore[union-attr]
    assert all(text in texts for text in ("_$\\frac$", "$a$", "$\\b$"))
    assert "![a \\[link\\](x) \\\\](figures/f.svg)" in report.markdown()
