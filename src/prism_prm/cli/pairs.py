"""`prism pairs`: labelled solutions → trees and matched step pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import Options, out_folder, with_settings
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.data.formats import ReadOptions
    from prism_prm.data.pair_rules import PairSettings
    from prism_prm.data.reader import Reader

READING, PAIRING, ABLATIONS = "Reading", "Pairing", "Ablations (what the paper argues against)"

EXAMPLES = """
**Examples**

- PRM800K, without the problems of MATH-500:

  `prism pairs phase1_train.jsonl --exclude math500/test.jsonl --out pairs`

- Splits, and two lookahead pairs per step:

  `prism pairs data/ --split train=0.9,test=0.1 --lookahead 2 --out pairs`

- A dataset on the hub:

  `prism pairs trl-lib/math_shepherd:train --out pairs`

- Bad lines skipped, the summary as JSON:

  `prism pairs FILE --on-bad-record skip --out pairs --json > summary.json`
"""


def _lookahead(text: str) -> int | str:
    if text in ("all", "none"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--lookahead {text} is not all, none or a number from 1")
    return int(text)


def _reasons(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(reason.strip() for reason in text.split(","))


FIELDS_READING = (
    "neutral", "drop_finish", "quality_control", "screening", "split_steps", "trust_solutions", "on_bad_record",
)  # fmt: skip
FIELDS_PAIRING = (
    "lookahead", "min_gap", "max_gap", "audit", "max_per_position", "min_value_gap", "min_rollouts", "positive_above",
    "negative_below",
)  # fmt: skip


@with_settings(
    reading=Options(
        "prism_prm.data.formats:ReadOptions",
        {READING: FIELDS_READING},
        names={"split_steps": "--split-steps", "trust_solutions": "--trust-solutions"},
        parse={"drop_finish": _reasons},
    ),
    pairing=Options(
        "prism_prm.data.pair_rules:PairSettings",
        {PAIRING: FIELDS_PAIRING, ABLATIONS: ("random", "perturbed"), "": ("seed",)},
        names={
            "audit": "--lookahead-audit", "max_per_position": "--max-pairs-per-position",
            "random": "--random-negatives", "perturbed": "--perturbed-negatives",
        },
        parse={"lookahead": _lookahead},
    ),
)  # fmt: skip
def pairs(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Files (.jsonl, .json, .gz of both, .parquet), folders of them, or hub datasets "
            "(owner/name, owner/name:split, owner/name:config:split).",
        ),
    ],
    out: Annotated[Path, out_folder("Folder for trees.parquet, pairs.parquet and summary.json.")],
    format: Annotated[
        str,
        typer.Option(
            help="The format of the records: auto, prm800k, math-shepherd, stepwise, process-labels, prmbench, or one "
            "that an installed package adds.",
            rich_help_panel=READING,
        ),
    ] = "auto",
    reading: ReadOptions,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out every tree whose problem occurs in this file, e.g. a benchmark. May be repeated.",
            rich_help_panel=READING,
        ),
    ] = None,
    exclude_ngram: Annotated[
        int,
        typer.Option(
            min=0,
            max=10**6,
            help="For --exclude: length in words of the runs by which similar problems are found. With 0, only equal "
            "problems are excluded.",
            rich_help_panel=READING,
        ),
    ] = 13,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split by problem, e.g. train=0.9,test=0.1.", metavar="NAME=SHARE,...", rich_help_panel=READING
        ),
    ] = None,
    pairing: PairSettings,
) -> None:
    """Turn labelled solutions into matched pairs of a right and a wrong step (docs/data.md).

    Every pair compares two steps after the same prefix. **Annotated** pairs are right and wrong candidates that people
    or models rated. In **lookahead** pairs the wrong step is a later step of the same solution, which comes too early.
    """
    from prism_prm.cli.ui import conclude
    from prism_prm.console import progress
    from prism_prm.data.build_pairs import PairRecipe, build_pairs
    from prism_prm.data.reader import Reader
    from prism_prm.data.same_problem import Exclusions, Splits

    splits = Splits.parse(split, pairing.seed) if split else None
    reader = Reader(inputs, format=format, options=reading)
    recipe = PairRecipe(pairing, splits, Exclusions.read(exclude, exclude_ngram) if exclude else None)
    with progress("Reading and pairing", _total_bytes(reader), unit="bytes") as advance:
        summary = build_pairs(reader, out, recipe, advance=advance)
    conclude(lambda: summary, lambda: _show(summary, out))


def _total_bytes(reader: Reader) -> int | None:
    sizes = [source.size() for source in reader.sources]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _show(summary: dict[str, Any], out: Path) -> None:
    """The summary for people: what there is, what was made, and what was left out."""
    from prism_prm.cli.ui import print_table
    from prism_prm.console import say

    shares = summary["positive_step_share"]
    rows = [
        *[(name.replace("_", " "), f"{summary[name]:,}") for name in ("trees", "positions", "candidates")],
        *[(f"  labelled {kind}", f"{count:,}") for kind, count in summary["labels"].items() if count],
        ("positive share of rated candidates", _percent(shares["rated"])),
        ("positive share of trunk steps", _percent(shares["trunk"])),
        ("solutions with right steps only", _percent(summary["all_right_share"])),
        ("  without human steps", _percent(summary["model_all_right_share"])),
        *[(f"{kind} pairs", f"{count:,}") for kind, count in summary["pairs"].items() if count or kind == "total"],
        *[
            (f"split {name}", f"{counts['trees']:,} trees, {counts['pairs']:,} pairs")
            for name, counts in summary["splits"].items()
            if name
        ],
    ]
    print_table(f"Written to {out}", ("", "count"), rows)
    dropped = [
        *[("record", reason, count) for reason, count in summary["dropped_records"].items()],
        *[("bad record", reason, count) for reason, count in summary["bad_records"]["reasons"].items()],
        *[(f"{file}", why, n) for file, counts in summary["excluded_trees"].items() for why, n in counts.items()],
        *[(f"{kind} pair", why, n) for kind, counts in summary["dropped_pairs"].items() for why, n in counts.items()],
    ]
    if dropped:
        print_table("Left out", ("what or by which file", "reason", "count"), [(a, b, f"{n:,}") for a, b, n in dropped])
    for message in summary["bad_records"]["first"]:
        say(f"skipped: {message}")


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
