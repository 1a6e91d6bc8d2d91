"""The help of `prism` and of its commands: one screen with `--help`, every setting with `--help-all`."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import textwrap
import typing
from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prism_prm.cli.options import COMMANDS, GROUPED, Command, is_repeated, metavar
from prism_prm.config import Setting

WIDEST = 100
"""Columns; longer lines are hard to read."""
BRIEF = {
    "adaptive.error": "Simulate budgets that stop when the answer is safe, up to this risk.",
    "aggregators": "How step scores become one: last, min, product, mean, soft-min, adjusted-min.",
    "answer_field": "The field that holds the reference answer.",
    "bench": "prmbench, processbench, labeled or pairs; several: a,b.",
    "consensus": "Keep only labels that this PRM or critic confirms.",
    "check": "Compare the labels with this file of exact ones.",
    "family": "The PRM's family, if its folder does not name it.",
    "label.method": "Which steps get rollouts: monte-carlo, binary, adaptive.",
    "label.rule": "A step is right by: any, half, value>T or soft.",
    "label.alternatives": "Other candidates to sample under each prefix.",
    "load.device": "Where models run: cpu, cuda, cuda:1, …",
    "load.dtype": "Precision: auto, bfloat16, float16 or float32.",
    "n": "Solutions to sample, or candidates per round: N or N,N,….",
    "plan.hardware": "Print what it takes on h100, 4xa6000, … and stop.",
    "pool": "Solutions: .jsonl, .json, .parquet, a folder, or a hub dataset.",
    "policy.name": "hf:ID_OR_FOLDER, or openai:BASE_URL for a server.",
    "predictions": "Scores from elsewhere, as JSON lines with id and scores or labels.",
    "prm": "A folder, hub id, prism:URL, vllm:URL, critic:…, orm:…, ensemble:….",
    "ray.address": "Run on a Ray cluster: HOST:PORT, auto, or a new one.",
    "search.aggregator": "How step scores become one: last, min, product, mean, soft-min, adjusted-min.",
    "search.method": "sample, greedy, best-of-n, beam, dvts or particle.",
    "second_policy": "Keep only labels that this policy confirms.",
    "select": "argmax, majority, weighted or public-tests.",
    "store": "A folder of scores to reuse and extend.",
    "target_tpr": "Instead: choose the threshold for this TPR on held-out problems.",
    "task": "A known task (math-500, gsm8k, …), or a file.",
}
"""Setting → its help on one screen, where its first sentence is too long for that. No name here has two meanings."""
Row = tuple[str, str]
"""An option or setting, and its help."""


def app_help() -> str:
    """The help of `prism` itself."""
    page = _Page()
    page.print(
        "Train, measure and use process reward models (PRMs): models that score each step of a chain of reasoning."
    )
    page.print("\n[bold]Usage[/]  prism COMMAND …")
    for group, named in groupby(COMMANDS.items(), key=lambda item: item[1][0]):
        page.rows(group, [(name, summary) for name, (_, summary) in named], width=12)
    page.print(
        "\n`prism COMMAND --help` shows a command on one screen, `--help-all` shows every setting. `prism --version` "
        "prints the version."
    )
    return page.text


def command_help(name: str, command: Command, *, everything: bool) -> str:
    """The help of a command; with `everything`, all of its settings."""
    page = _Page()
    words = about = ""
    if command.argument == "recipe":
        words, about = "RECIPE", "A TOML file of settings (see recipes/)."
    elif command.argument:
        setting = command.known[command.argument]
        words = metavar(setting).rstrip("S") + "..." * is_repeated(setting)
        about = _text(setting, brief=not everything)
    page.print(f"[bold]Usage[/]  prism {name} {words + ' ' if words else ''}\\[OPTIONS]")
    page.print("\n" + command.text.replace("[", "\\["))
    rows = [(words, about)] if words else []
    rows += [_option_row(command, flag, brief=not everything) for flag in command.options]
    if command.out is not None:
        kind = "FILE" if command.out.ending else "FOLDER"
        rows.append((f"-o, --out {kind}", command.out.help))
    page.rows("Options", rows)
    common: list[Row] = []
    if command.argument != "recipe":
        common.append(("--recipe FILE", "A TOML file of settings; options override it."))
    common += [(f"{flag} KEY=VALUE", GROUPED[flag][1]) for flag in command.grouped]
    common += [
        ("--set KEY=VALUE", "Any setting (see --help-all), by its name or the end of it."),
        ("--json, -q, -v", "Print the result as JSON; show less; show more."),
        ("-h, --help-all", "This screen; every setting."),
    ]
    page.rows("Common options", common)
    if everything:
        shown = {name for flag in command.options for name in command.names(flag)}
        rest = [one for one in command.known.values() if one.name not in shown and one.name != command.argument]
        for section in dict.fromkeys(one.name.rpartition(".")[0] for one in rest):
            settings = [one for one in rest if one.name.rpartition(".")[0] == section]
            title = f"Settings {section}.…" if section else "Settings"
            page.rows(title, [(one.name.rpartition(".")[2], _text(one, brief=False)) for one in settings])
    page.print("\n[bold]Examples[/]")
    for about, line in command.examples.items():
        page.print(Padding(Text(f"# {about}", style="dim"), (0, 0, 0, 2)))
        parts = textwrap.wrap(line, page.width - 6, break_long_words=False, break_on_hyphens=False)
        page.print(Padding(Text(" \\\n  ".join(parts)), (0, 0, 0, 2)))
    return page.text


def _option_row(command: Command, flag: str, *, brief: bool) -> Row:
    setting = command.setting(flag)
    value = metavar(setting) + "..." * is_repeated(setting)
    return f"{flag} {value}".strip(), _text(setting, brief=brief)


def _text(setting: Setting, *, brief: bool) -> str:
    """The help of a setting with its default; `brief`: for one screen."""
    text = setting.text
    if brief:
        text = BRIEF.get(setting.name) or re.split(r"(?<=[.…]) (?=[A-Z$])", text)[0]
    default = setting.default
    if setting.shown:
        return text if brief else f"{text} [{setting.shown}]"
    if default in (None, "", (), False) or default is dataclasses.MISSING or typing.get_origin(setting.hint) is dict:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    shown = shown if shown.isprintable() else repr(shown)
    return text if brief and len(shown) > 12 else f"{text} [{shown}]"


class _Page:
    """Text as wide as the terminal, with colors where it is one."""

    def __init__(self) -> None:
        self.width = min(WIDEST, shutil.get_terminal_size().columns)
        self._console = Console(
            file=io.StringIO(),
            width=self.width,
            highlight=False,
            emoji=False,
            force_terminal=Console().is_terminal or None,
        )

    @property
    def text(self) -> str:
        file = self._console.file
        assert isinstance(file, io.StringIO)
        return re.sub(r"[ ]+$", "", file.getvalue(), flags=re.M).rstrip("\n")

    def print(self, what: object) -> None:
        self._console.print(what)

    def rows(self, title: str, rows: Iterable[Row], width: int = 0) -> None:
        """A titled list of names and their texts, in two columns."""
        rows = list(rows)
        self.print(f"\n[bold]{title}[/]")
        table = Table.grid(padding=(0, 2), expand=True)
        widest = max(len(name) for name, _ in rows)
        table.add_column(width=width or min(widest, 22 if title == "Options" else 32))
        table.add_column(ratio=1)
        for name, text in rows:
            table.add_row(Text(name, style="cyan"), Text(text))
        self.print(Padding(table, (0, 0, 0, 2)))
