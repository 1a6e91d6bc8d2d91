"""A report people like to read: text, tables and figures, written as one HTML page, as Markdown, and as JSON.

    report = Report("PRMBench", subtitle="my-prm, 2,290 items")
    report.text("What was measured, in *Markdown*.")
    report.table(["class", "FPR"], [["circular", percent(0.3)]], caption="False positives by class")
    with report.figure("fpr-fnr", caption="…", alt="…") as axes:
        axes.plot(x, y)
    report.metrics["fpr"] = 0.3
    report.write("out")

`write` makes `report.html` (self-contained, light and dark), `report.md`, `figures/*.svg` and `metrics.json`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from prism_prm.files import whole_file, write_text
from prism_prm.report.figures import LOOKS, Look, count_axis, drawing, label, looks, percent_axes

__all__ = [
    "LOOKS",
    "NO_DATA",
    "PAGE",
    "Look",
    "Report",
    "count_axis",
    "escaped",
    "label",
    "looks",
    "number",
    "p_value",
    "percent",
    "percent_axes",
    "plain_json",
    "signed_percent",
]

PAGE = "report.html"
"""The page of a report, in the folder that it is written to."""
NO_DATA = "–"
"""What a table shows where there is nothing to compute from."""


@dataclass(frozen=True, slots=True)
class Text:
    """Markdown."""

    markdown: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are plain text; the first column is left-aligned, the others right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing; `alt` says in words what it shows."""

    name: str
    svg: str
    caption: str
    alt: str


@dataclass
class Report:
    """Collects blocks in the order they are shown, and metrics for machines."""

    title: str
    subtitle: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    blocks: list[Text | Table | Figure] = field(default_factory=list)

    def text(self, markdown: str) -> None:
        """Add Markdown; headings start at ##."""
        self.blocks.append(Text(markdown.strip()))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str) -> None:
        """Add a table of plain-text cells."""
        for row in rows:
            assert len(row) == len(headers), f"a row of {len(row)} cells under {len(headers)} headers: {row}"
        self.blocks.append(Table(tuple(headers), tuple(tuple(row) for row in rows), caption))

    @contextlib.contextmanager
    def figure(
        self, name: str, *, caption: str, alt: str, size: tuple[float, float] = (5.2, 3.6), panels: int = 1
    ) -> Iterator[Any]:
        """Yield matplotlib axes (a list of them for several panels) and add what was drawn on them.

        `name` becomes the file's name; `size` is in inches, narrow enough to be read on a phone.
        """
        assert re.fullmatch(r"[a-z0-9-]+", name), f"a figure's name is a file name: {name!r}"
        assert all(not (isinstance(block, Figure) and block.name == name) for block in self.blocks), f"two {name!r}"
        with drawing(name, alt, size, panels) as picture:
            yield picture.axes
        self.blocks.append(Figure(name, picture.svg, caption, alt))

    def markdown(self) -> str:
        """The report as Markdown, with figures as files beside it."""
        parts = [f"# {self.title}"]
        if self.subtitle:
            parts.append(self.subtitle)
        for block in self.blocks:
            match block:
                case Text():
                    parts.append(block.markdown)
                case Table():
                    parts.append(_markdown_table(block))
                case Figure():
                    alt = re.sub(r"([\\\[\]])", r"\\\1", block.alt)
                    parts.append(f"![{alt}](figures/{block.name}.svg)\n\n*{block.caption}*")
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """The report as one page that needs nothing else."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markdown_it import MarkdownIt
        from markupsafe import Markup

        renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
        # Long tables scroll by themselves; the page never does sideways.
        as_html = {
            id(block): Markup(_wrap_tables(renderer.render(block.markdown)))
            for block in self.blocks
            if isinstance(block, Text)
        }
        environment = Environment(
            loader=PackageLoader("prism_prm.report", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        blocks = [
            {"kind": type(block).__name__, "block": block, "html": as_html.get(id(block), "")} for block in self.blocks
        ]
        template = environment.get_template("template.html")
        return template.render(title=self.title, subtitle=self.subtitle, blocks=blocks, safe=Markup)

    def write(self, folder: str | Path) -> Path:
        """Write report.html, report.md, figures/ and metrics.json into `folder`; returns the page's path."""
        folder = Path(folder)
        for block in self.blocks:
            if isinstance(block, Figure):
                write_text(folder / "figures" / f"{block.name}.svg", block.svg)
        write_text(folder / "report.md", self.markdown())
        with whole_file(folder / "metrics.json") as aside:
            text = json.dumps(plain_json(self.metrics), indent=2, ensure_ascii=False, allow_nan=False)
            aside.write_text(text + "\n", encoding="utf-8")
        write_text(folder / PAGE, self.html())
        return folder / PAGE


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rules = ["---"] + ["---:"] * (len(table.headers) - 1)
    lines = [line(table.headers), "| " + " | ".join(rules) + " |", *map(line, table.rows)]
    return f"**{table.caption}**\n\n" + "\n".join(lines)


def _wrap_tables(html: str) -> str:
    return html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def plain_json(value: Any) -> Any:
    """Records, tuples and numpy values as what JSON knows; NaN ("no data") becomes null."""
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
    """Text that is no Markdown, such as a PRM's name, as Markdown that shows it as it is."""
    return re.sub(r"([\\`*<&]|(?<!\w)_|_(?!\w)|\](?=\())", r"\\\1", text)


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals; whole numbers get thousands separators; "–" where there is none."""
    if value is None or math.isnan(value):
        return NO_DATA
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def percent(value: float | None, low: float | None = None, high: float | None = None, *, digits: int = 1) -> str:
    """A share as percent without the sign, with its interval where one is given: `61.1 [59.2, 63.0]`."""
    if value is None or math.isnan(value):
        return NO_DATA
    text = f"{100 * value:.{digits}f}"
    if low is not None and high is not None and not _missing(low) and not _missing(high):
        text += f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    return re.sub(r"-(0\.0*)(?![0-9])", r"\1", text).replace("-", "−")


def signed_percent(value: float | None, low: float | None = None, high: float | None = None, *, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign and interval: `−8.2 [−9.1, −7.3]`."""
    text = percent(value, low, high, digits=digits)
    if value is not None and round(100 * value, digits) > 0:
        text = "+" + text
    return text


def p_value(value: float | None) -> str:
    """A p-value as people write it."""
    if value is None or math.isnan(value):
        return NO_DATA
    return "< 0.01" if value < 0.01 else f"{value:.2f}"
