"""`prism view`: results as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude, tell
from prism_prm.config import check
from prism_prm.console import say

LARGE = 20 * 10**6
"""Bytes of a page that browsers open slowly."""


@dataclass(frozen=True, slots=True)
class ViewCommand:
    """The settings of `prism view`."""

    results: tuple[str, ...] = ()
    """Results, or NAME=RESULT: folders of `prism eval`, `search`, `grpo` and `rerank` (of programs), and tables of
    `prism score`, which are shown side by side."""
    data: tuple[str, ...] = ()
    """The texts: the benchmark's files, or the solutions that were scored. By default those that the results name."""
    split: str | None = None
    """For labeled and pairs: the split that was measured, if the results do not name it."""

    def __post_init__(self) -> None:
        check(self)


def view(settings: ViewCommand, out: Path) -> None:
    """Write results as one HTML page, to look at in a browser.

    The page needs no server and loads nothing from elsewhere. It shows the errors of an evaluation with their texts,
    solutions with the score of each step, searches as trees, policies in training, and programs with their verdicts.
    """
    from prism_prm.serve.page_html import view_results

    documents = view_results(settings.results, out, data=settings.data, split=settings.split)
    size = out.stat().st_size
    if size > LARGE:
        say(
            f"{out} has {size / 1e6:,.0f} MB, which browsers open slowly; name fewer results, or look at them with "
            "`prism serve --results`"
        )
    facts = {"out": str(out), "documents": [{"kind": one.kind, "title": one.title} for one in documents.values()]}
    conclude(lambda: facts, lambda: tell(out))


COMMAND = Command(
    ViewCommand,
    view,
    argument="results",
    out=Out("The page to write.", ".html"),
    options={"--data": "data", "--split": "split"},
    examples={
        "The errors of an evaluation, with their texts": "prism view eval/my-prm --out page.html",
        "Scored solutions of two PRMs, side by side":
            "prism view base=base.parquet prism=prism.parquet --data solutions.jsonl --out page.html",
        "A search, round by round (live: prism serve --results runs/beam)": "prism view runs/beam --out page.html",
    },
)  # fmt: skip
