"""`prism pairs`: labeled solutions → trees and matched step pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.config import Natural, Share, check
from prism_prm.console import progress, say
from prism_prm.data.formats import ReadOptions
from prism_prm.data.pair_rules import PairSettings
from prism_prm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PairsCommand:
    """The settings of `prism pairs`; the same keys as in [data] of a training recipe."""

    inputs: tuple[str, ...] = ()
    """Files (.jsonl, .json, .gz of both, .parquet), folders of them, or hub datasets (owner/name, owner/name:split,
    owner/name:config:split)."""
    format: str = "auto"
    """The format of the records: auto, prm800k, math-shepherd, stepwise, process-labels, bug-fixes, prmbench, or
    one that an installed package adds."""
    exclude: tuple[str, ...] = ()
    """Leave out trees whose problem occurs in this file, e.g. a benchmark."""
    exclude_ngram: Natural = 13
    """With exclude: the number of words in the runs by which similar problems are found. With 0, only equal problems
    are excluded."""
    split: dict[str, Share] = field(default_factory=dict)
    """Split by problem, e.g. train=0.9,test=0.1."""
    diagnose: bool = False
    """Also report what a model could learn from the pairs without reasoning."""
    read: ReadOptions = field(default_factory=ReadOptions)
    pairs: PairSettings = field(default_factory=PairSettings)

    def __post_init__(self) -> None:
        check(self)
        if not self.inputs:
            raise ConfigError("no input: name files, folders or hub datasets of labeled solutions")


def pairs(settings: PairsCommand, out: Path) -> None:
    """Turn labeled solutions into matched pairs of a right and a wrong step.

    Every pair compares two steps after the same prefix. Annotated pairs are right and wrong candidates that people or
    models rated. In lookahead pairs the wrong step is a later step of the same solution, offered too early.
    """
    from prism_prm.data.build_pairs import PairRecipe, build_pairs
    from prism_prm.data.inputs import total_size
    from prism_prm.data.reader import Reader
    from prism_prm.data.same_problem import Exclusions, Splits

    splits = Splits(settings.split, settings.pairs.seed) if settings.split else None
    reader = Reader(settings.inputs, format=settings.format, options=settings.read)
    exclusions = Exclusions.read(settings.exclude, settings.exclude_ngram) if settings.exclude else None
    with progress("Reading and pairing", total_size(reader.sources), unit="bytes") as advance:
        summary = build_pairs(reader, out, PairRecipe(settings.pairs, splits, exclusions), advance=advance)
    if not settings.diagnose:
        conclude(lambda: summary, lambda: _show(summary, out))
        return
    from prism_prm.evaluate.diagnose_pairs import FOLDER, diagnose_pairs, table_of
    from prism_prm.report import PAGE, plain_json

    found = diagnose_pairs(out)

    def show() -> None:
        _show(summary, out)
        print_table("Pairs ranked right by one feature alone (%; labels: AUROC)", *table_of(found))
        for line in found.warnings:
            tell(line)
        tell(out / FOLDER / PAGE)

    conclude(lambda: summary | {"diagnosis": plain_json(found)}, show)


def _show(summary: dict[str, Any], out: Path) -> None:
    """The summary for people: what there is, what was made, and what was left out."""
    shares = summary["positive_step_share"]
    rows = [
        *[(name.replace("_", " "), f"{summary[name]:,}") for name in ("trees", "positions", "candidates")],
        *[(f"  labeled {kind}", f"{count:,}") for kind, count in summary["labels"].items() if count],
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


COMMAND = Command(
    PairsCommand,
    pairs,
    argument="inputs",
    out=Out("Folder for trees.parquet, pairs.parquet and summary.json."),
    options={
        "--format": "format", "--exclude": "exclude", "--split": "split", "--lookahead": "pairs.lookahead",
        "--origin": "pairs.origin",
        "--diagnose": "diagnose", "--min-value-gap": "pairs.min_value_gap", "--min-rollouts": "pairs.min_rollouts",
        "--on-bad-record": "read.on_bad_record", "--seed": "pairs.seed",
    },
    examples={
        "PRM800K, without the problems of MATH-500":
            "prism pairs phase1_train.jsonl --exclude math500/test.jsonl --out pairs",
        "Splits, and two lookahead pairs per step":
            "prism pairs data/ --split train=0.9,test=0.1 --lookahead 2 --out pairs",
        "A dataset on the hub": "prism pairs trl-lib/math_shepherd:train --out pairs",
    },
)  # fmt: skip
