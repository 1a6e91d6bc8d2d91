from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from prism_prm import __version__
from prism_prm.report import (
    Figure,
    Report,
    escaped,
    finish,
    most_telling,
    nested,
    number,
    p_value,
    percent,
    plain_json,
    signed_percent,
    styles,
    telling,
)
from prism_prm.stats import Comparison, Interval


def small_report() -> Report:
    report = Report("A <title>", subtitle="200 items & more")
    report.text("## Section\nSome *words* with <script>alert(1)</script>.")
    report.table(["class", "FPR | x"], [["circular", percent(0.305)], ["<b>", percent(math.nan)]], caption="Rates")
    with report.figure("curve", caption="Falls.", alt="A falling line > 0") as axes:
        axes.plot([0, 1], [1, 0], color=styles(["a"])["a"].color, label="a")
        finish(axes, "FPR (%)")
    with report.figure("two", caption="Two.", alt="Two panels", panels=2) as panels:
        for axes in panels:
            axes.hist([0.1, 0.2, 0.2])
    report.metrics["fpr"] = Interval(0.305, math.nan, 1.0, 3)
    return report


def test_write_gives_all_files(tmp_path: Path) -> None:
    page = small_report().write(tmp_path / "out")
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    figures = ["figures/curve.svg", "figures/two-1.svg", "figures/two-2.svg"]
    assert names == [*figures, "metrics.json", "report.html", "report.md"]
    assert page == tmp_path / "out" / "report.html"
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics == {"fpr": {"value": 0.305, "low": None, "high": 1.0, "num_clusters": 3}}


def test_page_is_self_contained_and_escaped() -> None:
    html = small_report().html()
    assert "<script" not in html
    assert "&lt;title&gt;" in html
    assert not re.search(r'(src|href)="(?!#)', html), "nothing is fetched"
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html
    assert 'aria-label="A falling line &gt; 0"' in html
    assert "<td>–</td>" in html, "no data is a dash"


def test_ids_in_a_page_are_unique() -> None:
    ids = re.findall(r'\bid="([^"]+)"', small_report().html())
    assert len(ids) == len(set(ids))
    assert any(name.startswith("curve-") for name in ids)


def test_figures_are_valid_themed_and_without_fixed_size() -> None:
    [curve, *two] = [svg for block in small_report().blocks if isinstance(block, Figure) for svg in block.svgs]
    assert len(two) == 2, "a panel is a picture by itself"
    for svg in (curve, *two):
        root = ElementTree.fromstring(svg)
        assert "viewBox" in root.attrib
        assert "width" not in root.attrib
        assert "height" not in root.attrib
        assert "var(--ink" in svg
        assert "#010203" not in svg
    assert "var(--series-1" in curve
    assert "FPR (%)" in curve, "text stays text"


def test_output_is_deterministic() -> None:
    assert small_report().html() == small_report().html()


def test_markdown_has_tables_and_figures() -> None:
    text = small_report().markdown()
    assert "| class | FPR \\| x |\n| --- | ---: |\n| circular | 30.5 |" in text
    assert "![A falling line > 0](figures/curve.svg)" in text


def test_rows_must_fit_headers_and_names_must_be_new() -> None:
    report = small_report()
    with pytest.raises(AssertionError, match="3 cells under 1"):
        report.table(["a"], [["1", "2", "3"]], caption="")
    with pytest.raises(AssertionError, match="two 'curve'"), report.figure("curve", caption="", alt=""):
        pass


def test_numbers_for_people() -> None:
    assert percent(0.6113) == "61.1"
    assert percent(Interval(0.6113, 0.59, 0.63, 9)) == "61.1 [59.0, 63.0]"
    assert percent(Interval(0.6113, math.nan, math.nan, 1)) == "61.1"
    assert percent(Interval(0.001, -0.0001, 0.002, 9)) == "0.1 [0.0, 0.2]"
    assert percent(Interval(0.01, -0.02, 0.04, 9)) == "1.0 [−2.0, 4.0]"
    assert percent(None) == percent(math.nan) == number(None) == p_value(math.nan) == "–"
    assert signed_percent(Comparison(-0.082, -0.091, -0.073, 0.01, 9)) == "−8.2 [−9.1, −7.3]"
    assert signed_percent(0.01) == "+1.0"
    assert signed_percent(Comparison(-0.0001, -0.0502, 0.0, 0.4, 9)) == "0.0 [−5.0, 0.0]"
    assert number(1234567) == "1,234,567"
    assert number(0.12345) == "0.123"
    assert (p_value(0.002), p_value(0.25)) == ("< 0.01", "0.25")


def test_plain_json_knows_numpy_and_nan() -> None:
    assert plain_json({"a": np.array([1.0, math.nan]), 2: (np.int64(3),)}) == {"a": [1.0, None], "2": [3]}


def test_styles_stay_with_their_names() -> None:
    found = styles([f"prm-{i}" for i in range(9)])
    assert found["prm-0"] == found["prm-7"]
    assert len({style.color for style in found.values()}) == 7


@pytest.mark.parametrize(
    "name", ["../../x", "[/b]", "_hidden_", "my_prm_2", "*a*|b", "`x` <b>", "a&b", "a\\*", "[x](y)", "[1.0, 2.0]"]
)
def test_escaped_text_is_shown_as_it_is(name: str) -> None:
    from html import unescape

    report = Report("t")
    report.text(f"- {escaped(name)} is better")
    assert f"<li>{name} is better</li>" in unescape(report.html())
    assert escaped("my_prm-2 [1.0, 2.0]") == "my_prm-2 [1.0, 2.0]", "nothing is escaped without need"


def test_a_page_opens_with_the_finding() -> None:
    report = small_report()
    report.finding = "FPR *falls* to 30.5 %."
    page, text = report.html(), report.markdown()
    assert '<div class="finding">\n<p>FPR <em>falls</em> to 30.5\u00a0%.</p>' in page
    assert page.index('class="finding"') < min(page.index("<figure>"), page.index("<table"))
    assert text.startswith("# A <title>\n\n200 items & more\n\n> FPR *falls* to 30.5 %.\n\n## Section")


def test_the_footer_has_version_date_and_command_and_metrics_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/prism", "rerank", "my pool.jsonl", "--out", "o"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    small_report().write(tmp_path)
    made = f"prism-prm {__version__} · 2023-11-14 · prism rerank 'my pool.jsonl' --out o"
    assert (tmp_path / "report.md").read_text().endswith(f"*{made}*\n")
    assert f"<footer>{made.replace(chr(39), '&#39;')}</footer>" in (tmp_path / "report.html").read_text()
    assert "2023" not in (tmp_path / "metrics.json").read_text()
    monkeypatch.setattr("sys.argv", ["/somewhere/pytest", "--secret"])
    small_report().write(tmp_path)
    assert (tmp_path / "report.md").read_text().endswith(f"*prism-prm {__version__} · 2023-11-14*\n")


def bold(report: Report) -> list[str]:
    return re.findall(r"\*\*([^*]+)\*\* \|", report.markdown())


def test_the_best_of_each_column_is_bold() -> None:
    report = Report("t")
    rows = [["a", "30.5 [1.0, 2.0]", "9.0", "7"], ["b", "9.5 [8.0, 9.0]", "10.0", "8"], ["oracle", "0.0", "99.0", "9"]]
    report.table(["PRM", "FPR ↓", "AUROC ↑", "steps"], rows, caption="Rates", best="columns", apart=("oracle",))
    assert bold(report) == ["9.5 [8.0, 9.0]", "10.0"], "numbers, not texts, are compared; no arrow, nothing is best"
    assert '<td class="best">9.5 <span class="interval">[8.0, 9.0]</span></td>' in report.html()


def test_the_best_of_each_row_and_ties() -> None:
    report = Report("t")
    rows = [["FPR ↓", "−8.2", "+1.0", "–"], ["F1", "1,000.5", "2.0", "1,000.5"], ["same", "5.0", "5.0", "5.0"]]
    report.table(["metric", "a", "b", "c"], rows, caption="All else ↑", best="rows")
    assert bold(report) == ["−8.2", "1,000.5", "1,000.5"], "where all are alike, none is best"


def test_an_example_shows_every_score() -> None:
    report = Report("t")
    scores = {"base": [0.999, 0.9], "mine": [0.5, 0.0]}
    report.example("1+1+\n1", ["1+1=2", "2<3"], scores, truths=["right", "wrong"], caption="Where they differ")
    page = report.html()
    assert '<span class="chip" style="--right: 100%">base 99.9</span>' in page
    assert '<span class="chip" style="--right: 0%">mine 0.0</span>' in page
    assert '<span class="truth wrong">wrong</span>' in page
    assert "2&lt;3" in page
    assert "| 1+1+ 1 | truth | base | mine |" in report.markdown()
    assert "| 2<3 | wrong | 90.0 | 0.0 |" in report.markdown()


def test_the_example_that_tells_most() -> None:
    letters = [5, 6, 7, 9999]
    one = np.array([0.2, 0.991, 0.9905, 1.0])
    assert most_telling({"a": one}, letters) == 2, "highest; longer, where alike; nothing that nobody reads"
    assert most_telling({"a": one, "b": np.array([0.9, 0.9, math.nan, 0.0])}, letters) == 0, "they differ most"
    assert most_telling({"a": np.array([math.nan])}, [1]) is None
    assert most_telling({"a": np.array([])}, []) is None
    assert telling("wrong step", ["a"]) == "An example: the wrong step that a scores highest. P(right) of each step (%)"


def test_pages_have_no_fixed_width() -> None:
    page = small_report().html()
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"(?<!max-)(?<!min-)\bwidth: *[0-9.]+(px|rem|pt)", style)
    assert 'style="width: min(100%, ' in page, "a figure is never wider than the page"
    assert "border-collapse: separate" in style


def test_lines_that_meet_are_all_seen_and_named_apart() -> None:
    report = Report("r")
    names = ["base", "pointwise", "prism", "paper"]
    with report.figure("lines", caption="c", alt="a") as axes:
        for style in nested(styles(names)).values():
            axes.plot([1, 2], [0.5, 0.9], **style)
        axes.set_ylim(0, 1)
        finish(axes, "x", names_at_ends=True)
        widths = [line.get_linewidth() for line in axes.get_lines()]
        assert widths == sorted(set(widths), reverse=True), "each is wider than those on top of it"
        places = [text.get_position()[1] for text in axes.texts]
        assert [text.get_text() for text in axes.texts] == names
        assert np.diff(places).min() > 0.06
        assert (min(places) >= 0, max(places) <= 1) == (True, True)
    assert all(f">{name}</text>" in report.html() for name in names)


def test_legends_are_placed_and_not_searched_for() -> None:
    searched = 0  # matplotlib's code of loc="best", which is slow with many points
    report = Report("t")
    with report.figure("a", caption="", alt="", panels=2) as (with_ours, with_theirs):
        for axes in (with_ours, with_theirs):
            axes.plot([0, 1], label="a")
        finish(with_ours, "x")
        assert with_ours.get_legend() is None, "it is the figure's, outside the axes"
        assert with_theirs.legend()._loc != searched
