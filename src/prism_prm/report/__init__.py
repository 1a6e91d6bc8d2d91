"""Reports with a finding, figures and tables, as one HTML page, as Markdown and as JSON.

    report = Report("PRMBench", subtitle="my-prm, 2,290 items", finding="my-prm passes 30.5 % of the wrong steps.")
    with report.figure("fpr-fnr", caption="…", alt="…") as axes:
        axes.plot(x, y, label="my-prm")
        finish(axes, "FNR (%)", "FPR (%)")
    report.table(["PRM", "FPR ↓"], [["a", percent(0.3)], ["b", percent(0.2)]], caption="Rates", best="columns")
    report.text("How it was measured, in *Markdown*.")
    report.metrics["fpr"] = 0.3
    report.write("out")

`write` creates `report.html` (self-contained, light and dark), `report.md`, `figures/*.svg` and `metrics.json`. The
first two end with the version, the date and the command; `metrics.json` depends only on the data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from prism_prm import __version__
from prism_prm.files import write_text, writing
from prism_prm.report.figures import (
    STYLES,
    Style,
    draw_curve,
    draw_groups,
    drawing,
    finish,
    nested,
    styles,
)
from prism_prm.report.tables import (
    NO_DATA,
    Example,
    Table,
    best_cells,
    header,
    markdown_table,
    most_telling,
    number,
    p_value,
    percent,
    signed_percent,
    split_interval,
    telling,
    unbroken_parts,
)
from prism_prm.stats import Comparison

__all__ = [
    "NO_DATA",
    "PAGE",
    "STYLES",
    "Report",
    "Style",
    "draw_curve",
    "draw_groups",
    "escaped",
    "finish",
    "most_telling",
    "nested",
    "number",
    "p_value",
    "percent",
    "plain_json",
    "remove_report",
    "signed_percent",
    "styles",
    "telling",
]

PAGE = "report.html"
"""The file name of the page."""
METRICS = "metrics.json"
REM_PER_INCH = 6.4
"""The scale of figures: at this size their text is about as large as the page's."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels side by side, or stacked on narrow screens; `alt` describes them."""

    name: str
    svgs: tuple[str, ...]
    width: float
    """The width of a panel in inches."""
    caption: str
    alt: str

    @property
    def files(self) -> dict[str, str]:
        """File name → SVG, one file per panel."""
        if len(self.svgs) == 1:
            return {f"{self.name}.svg": self.svgs[0]}
        return {f"{self.name}-{i}.svg": svg for i, svg in enumerate(self.svgs, 1)}


@dataclass
class Report:
    """Collects the blocks of a page, in order, and metrics for metrics.json."""

    title: str
    subtitle: str = ""
    finding: str = ""
    """The main result in one sentence of Markdown, at the top of the page."""
    metrics: dict[str, Any] = field(default_factory=dict)
    blocks: list[str | Table | Figure | Example] = field(default_factory=list)
    """The content; a string is Markdown."""

    def text(self, markdown: str) -> None:
        """Add Markdown; headings start at ##."""
        self.blocks.append(markdown.strip())

    def notes(self, lines: Iterable[str]) -> None:
        """Add a list of remarks, if there are any."""
        if shown := [f"- {line}" for line in lines if line]:
            self.text("\n".join(shown))

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        caption: str,
        best: Literal["columns", "rows"] | None = None,
        apart: Collection[str] = (),
    ) -> None:
        """Add a table of plain-text cells, with the best of each column (or row) in bold.

        An arrow in the header, else in the caption, tells which way is better (↑ or ↓). Rows (or columns) named in
        `apart`, such as an oracle, are never the best.
        """
        for row in rows:
            assert len(row) == len(headers), f"a row of {len(row)} cells under {len(headers)} headers: {row}"
        table = Table(tuple(headers), tuple(tuple(row) for row in rows), caption)
        marked = frozenset() if best is None else best_cells(table, by_row=best == "rows", apart=apart)
        self.blocks.append(replace(table, best=marked))

    def differences(
        self, headers: Sequence[str], rows: Iterable[tuple[Sequence[str], Comparison | None]], *, caption: str
    ) -> None:
        """Add a table of paired differences in percentage points with intervals and p-values, if there are any."""
        shown = [[*cells, signed_percent(found), p_value(None if found is None else found.p)] for cells, found in rows]
        if shown:
            self.table([*headers, "difference", "p"], shown, caption=caption)

    def counts(
        self, name: str, counts: Mapping[str, float | None], *, caption: str, unit: str = "count", of: int | None = None
    ) -> None:
        """Add a table of counts, if there are any, e.g. of skipped items by reason; `of` adds a column of shares."""
        rows = [[what, number(count), percent(count and of and count / of)] for what, count in counts.items()]
        if rows:
            columns = 2 if of is None else 3
            self.table([name, unit, "%"][:columns], [row[:columns] for row in rows], caption=caption)

    @contextlib.contextmanager
    def figure(
        self, name: str, *, caption: str, alt: str, size: tuple[float, float] | None = None, panels: int | None = None
    ) -> Iterator[Any]:
        """Yield matplotlib axes (a list of axes with `panels`) and add the figure that was drawn on them.

        `name` is the name of the file. `size` is the size of one panel in inches: a phone is about four wide, a page
        ten. The default size fits two panels in a row, or three if there are more than two.
        """
        size = size or ((4.4, 3.3) if (panels or 1) <= 2 else (3.1, 2.8))
        assert re.fullmatch(r"[a-z0-9-]+", name), f"a figure's name is a file name: {name!r}"
        assert all(not (isinstance(block, Figure) and block.name == name) for block in self.blocks), f"two {name!r}"
        with drawing(name, alt, size, panels or 1) as picture:
            yield picture.axes if panels else picture.axes[0]
        self.blocks.append(Figure(name, tuple(picture.svgs), size[0], caption, alt))

    def example(
        self,
        problem: str,
        steps: Sequence[str],
        scores: Mapping[str, Sequence[float]],
        *,
        caption: str,
        truths: Sequence[str] = (),
    ) -> None:
        """Add a solution with its steps colored by each PRM's score; `truths` are "right", "wrong" or ""."""
        self.blocks.append(Example(problem, steps, scores, truths or [""] * len(steps), caption))

    def markdown(self, made: str = "") -> str:
        """The report as Markdown, with figures as separate files; `made` is the last line."""
        parts = [f"# {self.title}", self.subtitle, self.finding and f"> {self.finding}"]
        for block in self.blocks:
            match block:
                case str():
                    parts.append(block)
                case Table():
                    parts.append(markdown_table(block))
                case Figure():
                    alt = re.sub(r"([\\\[\]])", r"\\\1", block.alt)
                    images = "\n".join(f"![{alt}](figures/{file})" for file in block.files)
                    parts.append(f"{images}\n\n*{block.caption}*")
                case Example():
                    parts.append(markdown_table(block.as_table()))
        parts.append(made and f"*{escaped(made)}*")
        return "\n\n".join(part for part in parts if part) + "\n"

    def html(self, made: str = "") -> str:
        """The report as one self-contained page; `made` is the last line."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markdown_it import MarkdownIt
        from markupsafe import Markup

        renderer = MarkdownIt("commonmark", {"html": False}).enable("table")

        def rendered(markdown: str) -> Markup:
            # Wide tables scroll, so that the page never scrolls sideways. No line starts with a percent sign.
            html = renderer.render(re.sub(r"(?<=\d) %", "\u00a0%", markdown))
            return Markup(html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>"))

        environment = Environment(
            loader=PackageLoader("prism_prm.report", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("template.html").render(
            report=self, blocks=[(type(block).__name__, block) for block in self.blocks], made=made, markdown=rendered,
            safe=Markup, rem=REM_PER_INCH, percent=percent, split_interval=split_interval,
            header=header, unbroken_parts=unbroken_parts,
        )  # fmt: skip

    def write(self, folder: str | Path) -> Path:
        """Write report.html, report.md, figures/ and metrics.json to `folder`; returns the page's path.

        An earlier report is removed first and metrics.json is written last, so a killed process never leaves a mixture.
        """
        folder, made = Path(folder), _made()
        page = self.html(made)
        remove_report(folder)
        for block in self.blocks:
            if isinstance(block, Figure):
                for file, svg in block.files.items():
                    write_text(folder / "figures" / file, svg)
        write_text(folder / "report.md", self.markdown(made))
        write_text(folder / PAGE, page)
        metrics = json.dumps(plain_json(self.metrics), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(folder / METRICS, metrics + "\n")
        return folder / PAGE


def remove_report(folder: str | Path) -> None:
    """Remove the report in a folder, if there is one, before the files it describes are replaced."""
    for name in (METRICS, PAGE, "report.md"):
        with writing(path := Path(folder) / name):
            path.unlink(missing_ok=True)


def _made() -> str:
    """Version, date and the `prism` command, if there is one; SOURCE_DATE_EPOCH makes the date reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.now(UTC) if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    program = Path(sys.argv[0])
    called = program.name == "prism" or (program.name == "__main__.py" and program.parent.name == "prism_prm")
    command = [shlex.join(["prism", *sys.argv[1:]])] if called else []
    return " · ".join([f"prism-prm {__version__}", f"{now:%Y-%m-%d}", *command])


def plain_json(value: Any) -> Any:
    """Convert dataclasses, tuples and numpy values to JSON types; NaN ("no data") becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain_json(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def escaped(text: str) -> str:
    """Escape plain text, such as a PRM's name, for Markdown."""
    return re.sub(r"([\\`*<&]|(?<!\w)_|_(?!\w)|\](?=\())", r"\\\1", text)
