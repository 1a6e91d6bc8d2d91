"""`prism view`: results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_prm.cli.options import out_file
from prism_prm.cli.ui import conclude, tell
from prism_prm.console import say

LARGE = 20 * 10**6
"""Bytes of a page that browsers open slowly."""

EXAMPLES = """
**Examples**

- The errors of an evaluation, with their texts:

  `prism view eval/my-prm --out page.html`

- Scored solutions of two PRMs, side by side:

  `prism view base=base.parquet prism=prism.parquet --data solutions.jsonl --out page.html`

- A search, round by round:

  `prism view runs/beam --out page.html`

The same views, live: `prism serve --results runs/beam`
"""


def view(
    *,
    results: Annotated[
        list[str],
        typer.Argument(
            help="Results to look at, or NAME=PLACE: folders of `prism eval`, `search`, `grpo` and `rerank` (of "
            "programs), and tables of `prism score`, which are shown side by side."
        ),
    ],
    out: Annotated[Path, out_file(".html", "The page to write (HTML).")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="The texts: the benchmark's files, or the solutions that were scored. By default those that the "
            "results name. May be repeated."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="For labelled and pairs: the split that was measured, if results do not say.")
    ] = None,
) -> None:
    """Look at results in a browser: write them as one HTML page.

    The page needs no server and loads nothing from elsewhere. It shows the errors of an evaluation with their texts,
    solutions with the score of each step, searches as trees, policies in training, and programs with their verdicts.
    """
    from prism_prm.serve.page_html import view_results

    documents = view_results(results, out, data=data or (), split=split)
    size = out.stat().st_size
    if size > LARGE:
        say(
            f"{out} has {size / 1e6:,.0f} MB, which browsers open slowly; name fewer results, or look at them with "
            "`prism serve --results`"
        )
    facts = {"out": str(out), "documents": [{"kind": one.kind, "title": one.title} for one in documents.values()]}
    conclude(lambda: facts, lambda: tell(out))
