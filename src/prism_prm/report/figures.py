"""Figures as SVG with light and dark colors; the only module that imports matplotlib.

Ink, grid and series are drawn in fixed colors that become CSS variables with a light and a dark value. Text stays text.
Nothing depends on the clock or on global state, so the same data gives the same bytes.
"""

from __future__ import annotations

import contextlib
import html
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.stats import Interval


@dataclass(frozen=True, slots=True)
class Style:
    """The color, line and marker of one system in every figure; lines and markers also differ without color."""

    color: str
    line: str | tuple[int, tuple[int, ...]]
    """A line style of matplotlib: a name, or (offset, dashes)."""
    marker: str

    @property
    def line_kwargs(self) -> dict[str, Any]:
        """Arguments of `axes.plot`."""
        return {"color": self.color, "linestyle": self.line, "marker": self.marker}


STYLES: tuple[Style, ...] = (
    Style("#0072b2", "-", "o"),
    Style("#d55e00", "--", "s"),
    Style("#009e73", "-.", "^"),
    Style("#aa4499", ":", "D"),
    Style("#b07d00", (0, (5, 1)), "v"),
    Style("#3d8fc4", (0, (3, 1, 1, 1)), "P"),
    Style("#6b6b6b", (0, (1, 1)), "X"),
)
"""Colors after Okabe and Ito, some darkened for white paper; distinguishable with common color blindness."""

_SERIES_IN_DARK = ("#58b0ea", "#f28e4c", "#2fcf9f", "#dd8fc4", "#e6b83c", "#9ad2f7", "#b8b8b8")
_INK, _GRID = "#010203", "#040506"
_THEME = {
    # drawn as → (variable, light, dark)
    _INK: ("--ink", "#1f2328", "#e6edf3"),
    _GRID: ("--grid", "#d8dee4", "#3a424c"),
    **{
        style.color: (f"--series-{i}", style.color, dark)
        for i, (style, dark) in enumerate(zip(STYLES, _SERIES_IN_DARK, strict=True), 1)
    },
}

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.loc": "upper right",  # the default searches for a free place, which is slow with many points
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.parse_math": False,  # dollar signs in names and titles are plain text
}


@dataclass
class Picture:
    """Axes to draw on, one per panel; `svgs` is filled when the block ends."""

    axes: list[Any]
    svgs: list[str] = field(default_factory=list)


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each system, in order; after seven systems they repeat."""
    return {name: STYLES[i % len(STYLES)] for i, name in enumerate(names)}


def draw_curve(
    axes: Any,
    x: Sequence[float] | Floats,
    points: Sequence[Interval | float],
    name: str,
    style: Style,
    *,
    band: bool = True,
    mark: int | None = None,
) -> None:
    """Draw a line, with a band if the values have intervals; with markers at all points, or only at `mark`."""
    values = [point.value if isinstance(point, Interval) else point for point in points]
    only = {} if mark is None else {"markevery": [mark], "markersize": 8}
    axes.plot(x, values, label=_label(name), **style.line_kwargs, **only)
    if band and len(points) and isinstance(points[0], Interval):
        low, high = ([getattr(point, side) for point in points] for side in ("low", "high"))
        axes.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)


def draw_groups(axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[Interval]]) -> None:
    """Draw values with intervals by group, the systems side by side."""
    places = np.arange(len(groups), dtype=float)
    for i, (name, style) in enumerate(styles(list(series)).items()):
        value, low, high = np.array([[v.value, v.low, v.high] for v in series[name]]).T
        spread = np.nan_to_num(np.maximum([value - low, high - value], 0))
        axes.errorbar(
            places + 0.7 * ((i + 0.5) / len(series) - 0.5), value, yerr=spread, fmt=style.marker, color=style.color,
            capsize=2, linewidth=1.2, label=_label(name),
        )  # fmt: skip
    axes.set_xticks(places, groups)
    axes.grid(visible=False, axis="x")


def draw_dots(axes: Any, rows: Mapping[str, Sequence[float]]) -> None:
    """Draw a row per system, with a dot per world or seed and a bar at their mean."""
    for place, values in enumerate(rows.values()):
        axes.plot(values, [place] * len(values), "o", markersize=4, alpha=0.7, color=STYLES[0].color)
        axes.plot([np.mean(values)], [place], "|", markersize=12, markeredgewidth=2, color=STYLES[1].color)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()


def _label(name: str) -> str:
    """The label of a curve; matplotlib would omit one that starts with an underscore from the legend."""
    return f"\u200b{name}" if name.startswith("_") else name


def nested(drawn: Mapping[str, Style]) -> dict[str, dict[str, Any]]:
    """Plot arguments for several lines that may overlap, such that none hides another.

    The first is the widest and at the bottom; markers are hollow, each larger than the one on top of it.
    """
    last = len(drawn) - 1
    return {
        name: {
            **style.line_kwargs, "linewidth": 1.4 + 0.4 * (last - place), "zorder": 2 + place,
            "markersize": 4 + (last - place), "markerfacecolor": "none", "markeredgewidth": 1.3, "label": name,
        }
        for place, (name, style) in enumerate(drawn.items())
    }  # fmt: skip


def finish(
    axes: Any,
    x: str,
    y: str = "",
    *,
    title: str = "",
    percent: str = "y",
    ns: Sequence[float] = (),
    names_at_ends: bool = False,
) -> None:
    """Add labels, ticks and the legend.

    Args:
        axes: the axes that were drawn on.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        title: the title above the axes.
        percent: "x", "y", "xy" or "": the axes whose shares are shown as percent, without the sign.
        ns: counts along x that roughly double; each is a tick.
        names_at_ends: name the lines at their right ends instead of in a legend.
    """
    axes.set(xlabel=x, ylabel=y, title=title)
    for axis in percent:
        getattr(axes, f"{axis}axis").set_major_formatter(lambda value, _: f"{100 * value:.4g}".replace("-", "−"))
    if len(ns):
        axes.set_xscale("log", base=2)
        # 32 and 40 would overlap; the last one matters more.
        crowded = {n for n, after in itertools.pairwise(ns) if after < 1.5 * n}
        axes.set_xticks(ns, ["" if n in crowded else f"{n:,.0f}" for n in ns])
        axes.minorticks_off()
    (_name_lines if names_at_ends else _legend)(axes)


def _name_lines(axes: Any) -> None:
    """Write each line's name at its right end instead of a legend, moved apart where they would overlap.

    Call it after the limits of the axes are set.
    """
    low, high = axes.get_ylim()
    gap = 0.062 * (high - low)
    lines = sorted((line for line in axes.get_lines() if len(line.get_xdata())), key=lambda line: line.get_ydata()[-1])
    ends = [float(line.get_ydata()[-1]) for line in lines]
    places = list(ends)
    for _ in range(200):  # push neighbors apart until all have room, within the axes
        for i in range(len(places) - 1):
            short = gap - (places[i + 1] - places[i])
            if short > 0:
                places[i] -= short / 2
                places[i + 1] += short / 2
        places = [min(max(place, low + gap * i), high - gap * (len(places) - 1 - i)) for i, place in enumerate(places)]
    for line, end, place in zip(lines, ends, places, strict=True):
        axes.annotate(
            line.get_label(), (line.get_xdata()[-1], end), (1.05, (place - low) / (high - low)),
            textcoords=axes.transAxes, va="center", fontsize=9, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 1.2, "shrinkA": 1, "shrinkB": 3},
        )  # fmt: skip


def _legend(axes: Any) -> None:
    """Add a legend below the axes, where it covers no curves, in as many columns as fit."""
    names = axes.get_legend_handles_labels()[1]
    if not names:
        return
    longest = max(map(len, names))
    room = 72 * axes.figure.get_figwidth() / (5.5 * longest + 40)  # points per letter, and for the line sample
    axes.figure.legend(loc="outside lower center", ncols=max(1, min(len(names), 3, int(room))))


@contextlib.contextmanager
def drawing(name: str, alt: str, size: tuple[float, float], panels: int) -> Iterator[Picture]:
    """Yield axes in the style of reports. Each panel is a separate SVG, so that a page can arrange them."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE, "svg.hashsalt": name, "backend": "agg"}):
        drawn = [Figure(figsize=size, layout="constrained") for _ in range(panels)]
        picture = Picture([figure.subplots() for figure in drawn])
        yield picture
        for i, figure in enumerate(drawn, 1):
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
            own, about = (name, alt) if panels == 1 else (f"{name}-{i}", f"{alt} ({i} of {panels})")
            picture.svgs.append(_themed(buffer.getvalue(), own, about))


def _themed(svg: str, name: str, alt: str) -> str:
    """A bare `<svg>` with colors as variables and unique ids, so that one page can hold many."""
    svg = svg[svg.index("<svg") :]
    for drawn, (variable, light, _) in _THEME.items():
        svg = svg.replace(drawn, f"var({variable}, {light})")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    light = ";".join(f"{variable}:{value}" for variable, value, _ in _THEME.values())
    dark = ";".join(f"{variable}:{value}" for variable, _, value in _THEME.values())
    style = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    # matplotlib's fixed size would overflow a phone; the view box keeps the proportions.
    for fixed in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {fixed}="[^"]*"', r"\1", svg, count=1)
    opening = f'<svg role="img" aria-label="{html.escape(alt)}"'
    svg = svg.replace("<svg", opening, 1)
    return svg.replace(">", ">" + style, 1)
