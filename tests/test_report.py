from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from prism_prm.report import Report, escaped, looks, number, p_value, percent, plain_json, signed_percent
from prism_prm.statistics import Interval


def small_report() -> Report:
    report = Report("A <title>", subtitle="200 items & more")
    report.text("## Section\nSome *words* with <script>alert(1)</script>.")
    report.table(["class", "FPR | x"], [["circular", percent(0.305)], ["<b>", percent(math.nan)]], caption="Rates")
    with report.figure("curve", caption="Falls.", alt="A falling line > 0") as axes:
        axes.plot([0, 1], [1, 0], color=looks(["a"])["a"].colour, label="a")
        axes.set_xlabel("FPR (%)")
        axes.legend()
    with report.figure("two", caption="Two.", alt="Two panels", panels=2) as panels:
        for axes in panels:
            axes.hist([0.1, 0.2, 0.2])
    report.metrics["fpr"] = Interval(0.305, math.nan, 1.0, 3)
    return report


def test_write_gives_all_files(tmp_path: Path) -> None:
    page = small_report().write(tmp_path / "out")
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert names == ["figures/curve.svg", "figures/two.svg", "metrics.json", "report.html", "report.md"]
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
    for block in small_report().blocks:
        if hasattr(block, "svg"):
            root = ElementTree.fromstring(block.svg)
            assert "viewBox" in root.attrib
            assert "width" not in root.attrib
            assert "height" not in root.attrib
            assert "var(--ink" in block.svg
            assert "#010203" not in block.svg
    curve = small_report().blocks[2]
    assert "var(--series-1" in curve.svg  # type: ignore[union-attr]
    assert "FPR (%)" in curve.svg, "text stays text"  # type: ignore[union-attr]


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
    assert percent(0.6113, 0.59, 0.63) == "61.1 [59.0, 63.0]"
    assert percent(0.6113, math.nan, math.nan) == "61.1"
    assert percent(0.001, -0.0001, 0.002) == "0.1 [0.0, 0.2]"
    assert percent(0.01, -0.02, 0.04) == "1.0 [−2.0, 4.0]"
    assert percent(None) == percent(math.nan) == number(None) == p_value(math.nan) == "–"
    assert signed_percent(-0.082, -0.091, -0.073) == "−8.2 [−9.1, −7.3]"
    assert signed_percent(0.01) == "+1.0"
    assert signed_percent(-0.0001, -0.0502, 0.0) == "0.0 [−5.0, 0.0]"
    assert number(1234567) == "1,234,567"
    assert number(0.12345) == "0.123"
    assert (p_value(0.002), p_value(0.25)) == ("< 0.01", "0.25")


def test_plain_json_knows_numpy_and_nan() -> None:
    assert plain_json({"a": np.array([1.0, math.nan]), 2: (np.int64(3),)}) == {"a": [1.0, None], "2": [3]}


def test_looks_stay_with_their_names() -> None:
    found = looks([f"prm-{i}" for i in range(9)])
    assert found["prm-0"] == found["prm-7"]
    assert len({look.colour for look in found.values()}) == 7


@pytest.mark.parametrize(
    "name", ["../../x", "[/b]", "_hidden_", "my_prm_2", "*a*|b", "`x` <b>", "a&b", "a\\*", "[x](y)", "[1.0, 2.0]"]
)
def test_escaped_text_is_shown_as_it_is(name: str) -> None:
    from html import unescape

    report = Report("t")
    report.text(f"- {escaped(name)} is better")
    assert f"<li>{name} is better</li>" in unescape(report.html())
    assert escaped("my_prm-2 [1.0, 2.0]") == "my_prm-2 [1.0, 2.0]", "nothing is escaped without need"
