"""`prism margins`: how far a PRM already puts the right step of each pair above the wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import (
    FITTING,
    FITTING_HELP,
    LOADING,
    Options,
    Store,
    out_file,
    prm_options,
    ray_options,
    with_settings,
)
from prism_prm.cli.ui import conclude, print_table, tell

if TYPE_CHECKING:
    import numpy as np

    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings

EXAMPLES = """
**Examples**

- With a published PRM:

  `prism margins pairs/ --prm Qwen/Qwen2.5-Math-PRM-7B --out margins.parquet`

- On all cores or GPUs of this machine:

  `prism margins pairs/ --prm runs/base --out margins.parquet --ray`
"""


LOADED = ("family", "dtype", "device", "token_budget", "on_too_long", "cache", "cache_gb")


@with_settings(
    loading=Options(LOADING, {"PRM": LOADED}, narrowed={"on_too_long": FITTING}, helps={"on_too_long": FITTING_HELP}),
    cluster=ray_options(),
)
def margins(
    *,
    pairs: Annotated[Path, typer.Argument(help="A folder written by `prism pairs`.")],
    prm: Annotated[str, typer.Option(help="Folder or hub id of the PRM to score with.")],
    out: Annotated[Path, out_file(".parquet", "The table to write (Parquet), keyed by pair id and model hash.")],
    split: Annotated[str | None, typer.Option(help="Use only pairs of this split. By default all.")] = None,
    loading: LoadSettings,
    store: Store = None,
    cluster: RaySettings,
) -> None:
    """Score all pairs with a PRM: the margin r⁺ − r⁻ of each, a histogram, and the paper's curriculum bins.

    All candidates of a tree are scored in one packed pass. Rerun the same command to resume. With --ray the work is
    spread over cores, GPUs and machines. `prism train` does this as its second stage.
    """
    from prism_prm.backends.open_scorer import check_scorer
    from prism_prm.data.tables import check_pairs_folder

    how = prm_options(loading, ray=cluster.given)
    check_scorer(prm, how)
    check_pairs_folder(pairs, split)
    from prism_prm.train.margins import measure_margins

    found = measure_margins(prm, pairs, out, split=split, store=store, prm_options=how)
    _show(found.margin_N, found.kind_N, out)


def _show(margins: np.ndarray, kinds: np.ndarray, out: Path) -> None:
    from prism_prm.curriculum import Curriculum, assign
    from prism_prm.train.margins import histogram

    facts = histogram(margins, kinds, width=0.1)
    binned = assign(margins, Curriculum())
    about = {"out": str(out), "pairs": len(margins), "bins": binned.bin_sizes, "dropped": binned.dropped, **facts}

    def show() -> None:
        print_table("Margins r⁺ − r⁻", ["margin", *facts["counts"], "all", ""], _rows(facts))
        tell(f"the paper's bins: {binned.bin_sizes}; dropped: {binned.dropped}; table: {out}")

    conclude(lambda: about, show)


def _rows(facts: dict[str, Any]) -> list[list[str]]:
    """A row per bin, with a bar as long as its share of the fullest one."""
    totals = [sum(counts) for counts in zip(*facts["counts"].values(), strict=True)]
    most = max(totals, default=0) or 1
    rows = []
    for i, total in enumerate(totals):
        lo, hi = facts["edges"][i : i + 2]
        counts = [str(of_kind[i]) for of_kind in facts["counts"].values()]
        rows.append([f"{lo:+.1f} to {hi:+.1f}", *counts, str(total), "█" * round(30 * total / most)])
    return rows
