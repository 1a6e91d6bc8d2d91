"""What a command of `prism` is: a settings class, a few of its settings as options, and a function that does the work.

Every command reads its settings from a recipe file (TOML), then from its options, then from `--set KEY=VALUE`. An
option is a short name for a setting, and its help is the string below the setting's field (see `config.py`).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prism_prm.cli.old_spellings import OLD_COMMANDS, OLD_OPTIONS
from prism_prm.cli.processes import check_alone
from prism_prm.cli.running import displayed
from prism_prm.cli.ui import Terminal
from prism_prm.config import Setting, fault, parse_assignment, parse_value, read_settings, settings_of
from prism_prm.errors import ConfigError, SettingError
from prism_prm.paths import check_file, check_folder

if TYPE_CHECKING:
    from prism_prm.backends.open_scorer import PrmOptions

T = TypeVar("T")

COMMANDS = {
    "demo": ("Start", "Run the whole pipeline in a small world where every step's truth is known."),
    "pairs": ("Data", "Turn labeled solutions into matched pairs of a right and a wrong step."),
    "label": ("Data", "Label steps by rollouts of a policy, without annotators."),
    "export": ("Data", "Write pairs or labeled solutions for other trainers."),
    "train": ("Train", "Train a PRM by a recipe."),
    "grpo": ("Train", "Train a policy by GRPO with a PRM as its reward."),
    "score": ("Measure", "Score every step of solutions, trees or pairs."),
    "calibrate": ("Measure", "Choose a PRM's threshold, and calibrate its scores, without training."),
    "eval": ("Measure", "Measure how well a PRM judges steps, on benchmarks or your own labels."),
    "compare": ("Measure", "Put evaluated PRMs side by side."),
    "theory": ("Measure", "Show what verifier errors do to Best-of-N, search and training."),
    "rerank": ("Use", "Pick the best of N solutions: Best-of-N, majority, PRM-weighted vote."),
    "search": ("Use", "Solve a task's problems with a policy, guided by a PRM."),
    "serve": ("Use", "Serve PRMs over HTTP, for programs and for people (a page)."),
    "view": ("Use", "Write results as one HTML page to look at."),
}
"""Command → its group in `prism --help`, and its summary. The file of a command is named like it."""
FILES = {"eval": "evaluate"}
"""Commands whose file has another name."""

GROUPED = {
    "-C": (("critic.", "load.critic."), "A setting of the critic, e.g. -C votes=4."),
    "-P": (
        ("policy.", "policy.prompting.", "policy.retry.", "search.sampling.", "label.sampling."),
        "A setting of the policy, e.g. -P temperature=0.7.",
    ),
    "-R": (("ray.",), "A setting of the Ray workers, e.g. -R workers=4."),
}
"""Shorthands of --set: option → the sections it stands for, and its help."""
HARDWARE = re.compile(r"(\d+x)?[a-zA-Z][\w-]*")


@dataclasses.dataclass(frozen=True)
class Out:
    """The option --out: a folder, or a file with this ending."""

    help: str
    ending: str = ""
    default: str = ""
    """The folder without --out; {name} is the name of the recipe."""
    required: bool = True
    """Whether the command needs --out where there is no default."""

    def check(self, text: str) -> Path:
        return check_file(text, self.ending) if self.ending else check_folder(text)


@dataclasses.dataclass(frozen=True)
class Command:
    """One command of `prism`."""

    settings: type
    """The class of its settings."""
    run: Callable[..., None]
    """Takes the settings, and `out` if the command writes something. Its docstring is the description."""
    options: Mapping[str, str | tuple[str, ...]]
    """Option → the setting, or settings, that it sets."""
    examples: Mapping[str, str]
    """What an example shows → its command line."""
    argument: str = ""
    """The setting that takes the words without an option; "recipe" is the recipe file itself."""
    out: Out | None = None

    @property
    def text(self) -> str:
        """The description, a line per paragraph."""
        paragraphs = (self.run.__doc__ or "").strip().split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    @property
    def known(self) -> dict[str, Setting]:
        """All settings by their full name."""
        return settings_of(self.settings)

    def names(self, flag: str) -> tuple[str, ...]:
        """The settings that an option sets."""
        names = self.options[flag]
        return (names,) if isinstance(names, str) else names

    def setting(self, flag: str) -> Setting:
        """The (first) setting of an option."""
        return self.known[self.names(flag)[0]]

    @property
    def grouped(self) -> list[str]:
        """The shorthands of --set that the command has."""
        return [
            flag for flag, (sections, _) in GROUPED.items() if any(name.startswith(sections) for name in self.known)
        ]

    def read(self, values: dict[str, Any]) -> Any:
        """The settings of a command line as click has parsed it; what is no setting stays in `values`."""
        given: dict[str, Any] = {}
        flags: dict[str, tuple[str, str]] = {}
        for flag in self.options:
            text = values.pop(parameter_name(flag))
            if text is None or text == ():
                continue
            for name in self.names(flag):
                setting = self.known[name]
                if isinstance(text, tuple) and not is_repeated(setting):  # -n 4,8 -n 16
                    text = ",".join(text)
                given[name] = parse_value(text, setting.accepts) if isinstance(text, str) else text
                flags[name] = flag, text if isinstance(text, str) else ""
                if reason := fault(given[name], setting.accepts):
                    raise ConfigError(f"{' '.join(flags[name])}: {reason}")
        if self.argument not in ("", "recipe") and (words := values.pop("words")):
            given[self.argument] = words
        for flag in self.grouped:
            for assignment in values.pop(parameter_name(flag)):
                name, value = parse_assignment(self.settings, assignment, flag, GROUPED[flag][0])
                given[name] = value
                flags[name] = flag, assignment
        try:
            return read_settings(self.settings, values.pop("recipe"), values.pop("set"), given)
        except SettingError as error:
            if error.name not in flags:
                raise
            raise ConfigError(f"{' '.join(flags[error.name])}: {error.reason}") from None


def parameter_name(flag: str) -> str:
    """The name of an option's parameter in click."""
    return flag.lstrip("-").partition("/")[0].replace("-", "_")


def is_repeated(setting: Setting) -> bool:
    """Whether several values need several options, since a value may have commas; else they can be given as a,b."""
    return "tuple[str, ...]" in str(setting.accepts)


METAVARS = {
    "adaptive.error": "ERROR",
    "bench": "NAMES", "check": "FILE", "read.on_bad_record": "fail|skip", "pairs.lookahead": "all|none|N",
    "threshold": "X", "consensus": "PRM", "n": "N,…", "ns": "N,…", "plan.hardware": "GPUS",
    "policy.name": "POLICY", "predictions": "FILE", "ray.address": "ADDRESS", "scores": "FILE", "split": "NAME",
    "store": "FOLDER", "trained_on": "DATA", "world": "FOLDER",
}  # fmt: skip
"""Setting → the placeholder of its value in the help, where it is not the name of the setting."""


def metavar(setting: Setting) -> str:
    """The placeholder of an option's value in the help."""
    if typing.get_origin(setting.hint) is dict:
        return "NAME=X,…"
    if setting.name in METAVARS:
        return METAVARS[setting.name]
    if setting.hint in (int, int | None):
        return "N"
    if setting.hint in (float, float | None):
        return "X"
    return "" if setting.hint is bool else re.split(r"[._]", setting.name)[-1].upper()


def load(name: str) -> Command:
    """The command of this name, imported."""
    module = importlib.import_module(f"prism_prm.cli.{FILES.get(name, name)}")
    command: Command = module.COMMAND
    return command


class _ClickCommand(click.Command):
    """A command as click runs it."""

    def __init__(self, name: str, command: Command) -> None:
        self.command = command
        super().__init__(name, params=list(_parameters(command)), callback=self._run, add_help_option=False)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; a --ray or --plan without a value gets its default."""
        from prism_prm.ray import LOCAL, is_address

        optional = {
            "--ray": (LOCAL, is_address),
            "--plan": ("a6000", lambda word: HARDWARE.fullmatch(word) is not None and not os.path.exists(word)),
        }
        words: list[str] = []
        for word, after in zip(args, [*args[1:], ""], strict=False):
            default, fits = optional.get(word, ("", None))
            words += [word] if fits is None or fits(after) else [f"{word}={default}"]
        try:
            return super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            raise ConfigError(unknown_option(self.name or "", self.command, error.option_name)) from None

    def _run(self, **values: Any) -> None:
        """Read the settings, and do the work."""
        check_alone(self.name or "")
        terminal = Terminal(as_json=values.pop("json"), quiet=values.pop("quiet"), verbose=values.pop("verbose"))
        with displayed(terminal):
            out = self.command.out
            if out is None:
                self.command.run(self.command.read(values))
                return
            place = values.pop("out") or out.default.format(name=Path(values["recipe"] or "").stem)
            if not place and out.required:
                raise ConfigError(f"--out is missing: {out.help[0].lower()}{out.help[1:]}")
            checked = out.check(place) if place else None
            self.command.run(self.command.read(values), checked)


def _parameters(command: Command) -> typing.Iterator[click.Parameter]:
    if command.argument == "recipe":
        yield click.Argument(["recipe"])
    elif command.argument:
        yield click.Argument(["words"], nargs=-1 if is_repeated(command.known[command.argument]) else 1, required=False)
    for flag in command.options:
        setting = command.setting(flag)
        name = parameter_name(flag)
        if setting.hint is bool:
            yield click.Option([flag, name], is_flag=True, default=None)
        else:
            yield click.Option([flag, name], multiple="tuple[" in str(setting.hint))
    if command.out is not None:
        yield click.Option(["--out", "-o", "out"])
    if command.argument != "recipe":
        yield click.Option(["--recipe", "recipe"])
    yield click.Option(["--set", "set"], multiple=True)
    for flag in command.grouped:
        yield click.Option([flag, parameter_name(flag)], multiple=True)
    yield click.Option(["--json", "json"], is_flag=True)
    yield click.Option(["--quiet", "-q", "quiet"], is_flag=True)
    yield click.Option(["--verbose", "-v", "verbose"], is_flag=True)
    for flags in (["--help", "-h"], ["--help-all"]):
        yield click.Option(flags, is_flag=True, is_eager=True, expose_value=False, callback=_show_help)


def _show_help(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from prism_prm.cli.help_page import command_help

        assert isinstance(ctx.command, _ClickCommand), "only these have --help-all"
        click.echo(command_help(ctx.info_name or "", ctx.command.command, everything="--help-all" in parameter.opts))
        ctx.exit()


def unknown_option(name: str, command: Command, flag: str) -> str:
    """The error for an option that a command does not have, with the spelling it should have."""
    flag = flag if flag.startswith("-") else f"--{flag}"
    word = flag.lstrip("-").removeprefix("no-").replace("-", "_")
    if new := OLD_OPTIONS.get(f"{name} {flag}") or OLD_OPTIONS.get(flag):
        return f"prism {name} has no option {flag}: write {new}"
    ends = [setting for setting in command.known if setting == word or setting.endswith(f".{word}")]
    if ends:
        for short in command.grouped:
            if ends[0].startswith(GROUPED[short][0]):
                return f"prism {name} has no option {flag}: write {short} {word}=VALUE"
        return f"prism {name} has no option {flag}: write --set {' or --set '.join(f'{end}=VALUE' for end in ends)}"
    return f"prism {name} has no option {flag}.{_nearest(flag, command.options)} See `prism {name} --help`."


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


class App(click.Group):
    """The `prism` command, which imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        return _ClickCommand(name, load(name)) if name in COMMANDS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command, or an error that gives the right name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if new := OLD_COMMANDS.get(args[0]):
                raise ConfigError(f"there is no command `prism {args[0]}`: write {new}")
            raise ConfigError(
                f"there is no command `prism {args[0]}`.{_nearest(args[0], COMMANDS)} See `prism --help`."
            )
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        from prism_prm.cli.help_page import app_help

        return app_help()


def narrow(settings: Any, cls: type[T]) -> T:
    """The part of a command's settings that a function of the library takes."""
    return cls(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def prm_options(settings: Any, **more: Any) -> PrmOptions:
    """How a command opens its PRMs: its sections [load], [critic] and [ray]; `more` are other fields of PrmOptions."""
    from prism_prm.backends.open_scorer import PrmOptions

    loaded = {field.name: getattr(settings.load, field.name) for field in dataclasses.fields(settings.load)}
    ray = settings.ray.given if hasattr(settings, "ray") else None
    critic = {"critic": settings.critic} if hasattr(settings, "critic") else {}
    return PrmOptions(**{**loaded, **critic, "ray": ray, **more})


def check_store(store: Path | None) -> Path | None:
    """The folder of the setting `store`, if it can be written."""
    return None if store is None else check_folder(store, "--store")


def families_of(given: Sequence[str], prms: Collection[str]) -> dict[str, str]:
    """PRM → its family, of the option --family: `FAMILY` is that of all PRMs, `NAME=FAMILY` that of one."""
    own: dict[str, str] = {}
    for_all: dict[str, str] = {}
    for text in given:
        name, equals, family = text.partition("=")
        if equals and name in prms:
            named, known = {name: family}, own
        elif equals and not Path(text.rpartition(":")[0]).is_file():  # a file's path may have a = too
            raise ConfigError(f"--family {text}: no PRM is called {name!r}. PRMs: {', '.join(prms) or 'none'}.")
        else:
            named, known = dict.fromkeys(prms, text), for_all
        if twice := next((name for name in named if name in known), None):
            raise ConfigError(
                f"--family {text}: the PRM {twice!r} already has the family {known[twice]!r}; give only one"
            )
        known |= named
    return for_all | own


def refuse_empty(words: Sequence[str]) -> None:
    """An empty word is usually an unset shell variable; as a path it would mean the current folder."""
    for before, word in zip(["", *words], words, strict=False):
        if word == "":
            raise ConfigError(f'{before if before.startswith("-") else "an argument"} "": is empty; give a value')
