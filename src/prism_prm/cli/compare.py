"""`prism compare`: several evaluated PRMs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.cli.options import Command, Out
from prism_prm.cli.ui import conclude, conclude_report, print_table, tell
from prism_prm.config import Natural, Range, check
from prism_prm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CompareCommand:
    """The settings of `prism compare`."""

    runs: tuple[str, ...] = ()
    """Folders of `prism eval`, or NAME=FOLDER. Differences are taken from the first."""
    rounds: bool = False
    """Treat the runs as rounds of a curriculum, in this order."""
    rates: bool = False
    """The runs are printed rates in percent instead: NAME=TPR,FPR or NAME=TPR,FPR,PRMSCORE."""
    prevalence: Annotated[float, Range(above=0, below=1)] | None = None
    """For --rates: the share of right steps, which PRMScore depends on. By default it is inferred from printed
    PRMScores."""
    num_draws: Annotated[int, Range(100)] = 1000
    """The number of bootstrap draws of problems for the intervals."""
    seed: Natural = 0
    """The seed for the draws."""

    def __post_init__(self) -> None:
        check(self)
        if self.rates and self.rounds:
            raise ConfigError("--rounds is for runs of `prism eval`; leave it out with --rates")
        if self.prevalence is not None and not self.rates:
            raise ConfigError("prevalence is for printed rates; add --rates")


def compare(settings: CompareCommand, out: Path | None) -> None:
    """Put PRMs side by side: rates, classes, splits, rounds, and paired differences with p-values.

    All runs must be on the same items. The report opens with a control: the first run's scores shifted to the other's
    FNR and FPR, which shows whether the change is more than a shift of the threshold. With --rates the control is
    computed from printed rates alone; --out is optional then.
    """
    if settings.rates:
        _compare_rates(settings, out)
        return
    if out is None:
        raise ConfigError("--out is missing: folder for the report.")
    from prism_prm.evaluate.compare import compare_runs

    compare_runs(settings.runs, out, rounds=settings.rounds, num_draws=settings.num_draws, seed=settings.seed)
    conclude_report(out)


def _compare_rates(settings: CompareCommand, out: Path | None) -> None:
    from prism_prm.evaluate.compare_rates import compare_rates
    from prism_prm.report import plain_json
    from prism_prm.report.tables import Table

    report = compare_rates(parse_rates(settings.runs), out, prevalence=settings.prevalence)

    def show() -> None:
        for table in report.blocks:
            if isinstance(table, Table):
                print_table(table.caption, table.headers, table.rows)
        for line in report.metrics["findings"]:
            tell(line)

    if out is None:
        conclude(lambda: plain_json(report.metrics), show)
    else:
        conclude_report(out, show)


def parse_rates(given: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Name → rates, of words NAME=TPR,FPR or NAME=TPR,FPR,PRMSCORE."""
    found: dict[str, tuple[float, ...]] = {}
    for text in given:
        name, _, values = text.rpartition("=")
        try:
            rates = tuple(float(value) for value in values.split(","))
        except ValueError:
            rates = ()
        if not name or len(rates) not in (2, 3):
            raise ConfigError(
                f"--rates {text}: write NAME=TPR,FPR in percent, e.g. base=95.36,69.34, with PRMScore if it is printed"
            )
        if name in found:
            raise ConfigError(f"--rates {text}: two PRMs are called {name!r}; give each its own name")
        found[name] = rates
    return found


COMMAND = Command(
    CompareCommand,
    compare,
    argument="runs",
    out=Out("Folder for the report.", required=False),
    options={"--rounds": "rounds", "--rates": "rates", "--prevalence": "prevalence"},
    examples={
        "Two PRMs": "prism compare eval/base eval/prism --out eval/base-vs-prism",
        "The rounds of a curriculum":
            "prism compare base=eval/base CL1=eval/round-1 CL2=eval/round-2 --rounds --out eval/rounds",
        "A table of a paper": "prism compare --rates base=95.36,69.34 new=87.3,47.13 --prevalence 0.86",
    },
)  # fmt: skip
