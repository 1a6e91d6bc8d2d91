"""Options of commands, generated from settings: an option's help is the string below its field (see `config.py`).

A command takes its settings as parameters, and `with_settings` says which fields of them are options. Their classes are
imported when a command is chosen, so that `prism --help` imports none of them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from prism_prm.config import Setting, fault, settings_of
from prism_prm.errors import ConfigError, SettingError, shown
from prism_prm.paths import check_file, check_folder

if TYPE_CHECKING:
    from prism_prm.backends.open_scorer import PrmOptions
    from prism_prm.models.load_settings import LoadSettings


def out_folder(help: str) -> Any:
    """The option --out of a command that writes a folder."""
    return typer.Option("--out", "-o", parser=check_folder, metavar="FOLDER", help=help)


def out_file(ending: str, help: str) -> Any:
    """The option --out of a command that writes one file."""
    return typer.Option("--out", "-o", parser=lambda text: check_file(text, ending), metavar="FILE", help=help)


Store = Annotated[
    Path | None,
    typer.Option(
        parser=lambda text: check_folder(text, "--store"),
        metavar="FOLDER",
        help="A folder of scores to reuse and extend, shared by score, margins, eval, rerank and search, so that "
        "nothing is scored twice.",
    ),
]

Families = Annotated[
    list[str] | None,
    typer.Option(
        "--family",
        help="The family of all PRMs, or NAME=FAMILY for one of them; needed if the folders do not name it. "
        "my_file.py:Mine is a class in your own file. May be repeated.",
        rich_help_panel="PRM",
    ),
]

LOADING = "prism_prm.models.load_settings:LoadSettings"
REMOTE = ("local", "check", "prm_timeout", "prm_retries", "prm_concurrency")
"""Settings of LOADING for a PRM behind a server."""
FITTING = Literal["error", "drop-left-steps"]
"""The choices for a step that exceeds the context, where every step needs a score."""
FITTING_HELP = (
    "What to do with a step whose path exceeds the context: stop (error), or score it without the earliest steps "
    "(drop-left-steps)."
)
A_CRITIC = "critic:openai:URL or critic:hf:FOLDER (see Critic)"
CRITIC = "prism_prm.backends.critic_settings:CriticSettings"
CRITIC_PANELS = {
    "Critic": (
        "format", "prompt", "votes", "on_missing", "redraws", "temperature", "max_tokens", "log_probabilities",
        "priming", "code", "model", "concurrency", "timeout", "budget_tokens", "price_prompt", "price_completion",
        "replies",
    )
}  # fmt: skip
CRITIC_NAMES = {
    "format": "--critic", "prompt": "--critic-prompt", "temperature": "--critic-temperature",
    "max_tokens": "--critic-max-tokens", "log_probabilities": "--critic-logprobs", "priming": "--critic-priming",
    "code": "--critic-code", "model": "--critic-model", "concurrency": "--critic-concurrency",
    "timeout": "--critic-timeout",
}  # fmt: skip
"""Settings of a critic whose options would be taken for those of the policy or the command."""
REACHABLE = 10_000
"""A higher limit only guards against overflow, so the help does not show it."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Which settings of a class are options, and how an option differs from its setting."""

    source: str
    """Where the class is: "module:Class"."""
    panels: Mapping[str, Sequence[str]]
    """Panel of the help → the settings in it, by dotted name; "" is where the command's own options are."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Setting → its option, if that is not named like the field."""
    parse: Mapping[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)
    """Setting → what parses its option's text."""
    narrowed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Setting → its type in this command, if the command takes fewer values."""
    helps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Setting → its help in this command, if that is not the setting's text."""
    as_given: bool = False
    """Pass on only the given options, by dotted name, to be applied on top of a recipe file; else the settings
    themselves."""

    @property
    def cls(self) -> type:
        """The settings class, imported."""
        module, _, name = self.source.partition(":")
        found: type = getattr(importlib.import_module(module), name)
        return found

    def parameters(self, prefix: str) -> list[inspect.Parameter]:
        """The options as typer reads them from a signature."""
        known = settings_of(self.cls)
        return [self._parameter(prefix, known[name], panel) for panel, names in self.panels.items() for name in names]

    def _parameter(self, prefix: str, setting: Setting, panel: str) -> inspect.Parameter:
        default = setting.default
        if setting.name in self.parse and isinstance(default, tuple):
            default = ",".join(map(str, default))
        default = None if default in ("", (), dataclasses.MISSING) else default
        kind = str if setting.name in self.parse else self.narrowed.get(setting.name) or _kind(setting.hint)
        flag = self.names.get(setting.name) or _flag(setting.name, switches_off=kind is bool and default is not False)
        shown = setting.shown or True
        text = self.helps.get(setting.name, setting.text)
        option = typer.Option(flag, help=text, rich_help_panel=panel or None, show_default=shown)
        hint = Annotated[kind | None, option] if default is None else Annotated[kind, option]
        return _keyword(_place(prefix, setting.name), hint, default)

    def collect(self, prefix: str, values: dict[str, Any], was_given: Callable[[str], bool]) -> Any:
        """Take the options of these settings out of `values`, and make the settings."""
        given: dict[str, Any] = {}
        for name in (name for names in self.panels.values() for name in names):
            place = _place(prefix, name)
            value = values.pop(place)
            if was_given(place):
                given[name] = self.parse[name](value) if name in self.parse else value
                if reason := fault(given[name], settings_of(self.cls)[name].accepts):
                    raise ConfigError(f"{self._option(name)} {shown(value)}: {reason}")
        try:
            return given if self.as_given else self.cls(**given)
        except SettingError as error:
            raise ConfigError(f"{self._option(error.name)} {shown(error.value)}: {error.reason}") from None

    def _option(self, name: str) -> str:
        """What a setting is called on the command line."""
        return self.names.get(name) or _flag(name, switches_off=False)


def critic_options() -> Options:
    """The options of a critic, for every command that takes a PRM to score with."""
    return Options(CRITIC, CRITIC_PANELS, names=CRITIC_NAMES)


def ray_options() -> Options:
    """The options of a command whose work a Ray cluster can do."""
    return Options(
        "prism_prm.ray:RaySettings",
        {"Ray": ("address", "workers", "gpus_per_worker", "cpus_per_worker")},
        names={"address": "--ray"},
    )


def with_address(words: Sequence[str]) -> list[str]:
    """The words of a command, in which --ray without an address means a cluster on this machine."""
    from prism_prm.ray import LOCAL, is_address

    found: list[str] = []
    for word, after in zip(words, [*words[1:], ""], strict=False):
        found += [word, LOCAL] if word == "--ray" and not is_address(after) else [word]
    return found


def _place(prefix: str, name: str) -> str:
    """The parameter of a setting, beside those of other classes."""
    return f"{prefix}__{name.replace('.', '__')}"


def _flag(name: str, switches_off: bool) -> str:
    word = name.rpartition(".")[2].replace("_", "-")
    return f"--{word}/--no-{word}" if switches_off else f"--{word}"


def _kind(hint: Any) -> Any:
    """The type of an option: a tuple is an option that may be given several times, None one that is not given."""
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    (kind,) = [choice for choice in choices if choice is not types.NoneType]
    return types.GenericAlias(list, typing.get_args(kind)[:1]) if typing.get_origin(kind) is tuple else kind


def _keyword(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def words(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas, of the option -n."""
    for word in words(text) or (text,):
        if not word.isdecimal():
            raise ConfigError(f"-n {word}: expected whole numbers, e.g. -n 1,4,16")
    return tuple(map(int, words(text)))


def prm_options(loading: LoadSettings, **more: Any) -> PrmOptions:
    """How a command opens its PRMs; `more` are the fields of `PrmOptions` that `LoadSettings` has not."""
    from prism_prm.backends.open_scorer import PrmOptions

    return PrmOptions(**{one.name: getattr(loading, one.name) for one in dataclasses.fields(loading)}, **more)


def families_of(given: Sequence[str] | None, prms: Collection[str]) -> dict[str, str]:
    """PRM → its family, of the option --family: `FAMILY` is that of all PRMs, `NAME=FAMILY` that of one."""
    own: dict[str, str] = {}
    for_all: dict[str, str] = {}
    for text in given or ():
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


def with_settings(**settings: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command, whose parameters of these names become options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            def was_given(name: str) -> bool:
                return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"

            made = {name: options.collect(name, values, was_given) for name, options in settings.items()}
            command(**values, **made)

        def signature(*, whole: bool) -> inspect.Signature:
            parameters = [_keyword("context", typer.Context)]
            for name, parameter in inspect.signature(command).parameters.items():
                if name not in settings:
                    parameters.append(_keyword(name, hints[name], parameter.default))
                elif whole:
                    parameters += settings[name].parameters(name)
            return inspect.Signature(parameters)

        run.__annotations__ = {name: hint for name, hint in command.__annotations__.items() if name not in settings}
        hints = typing.get_type_hints(run, include_extras=True)
        vars(run).update(__signature__=signature(whole=False), signature=signature)
        return run

    return decorate


MAY_BE_EMPTY = ("--system",)
"""Options whose text may be empty."""


def refuse_empty(words: Sequence[str]) -> None:
    """An empty word is usually an unset shell variable; as a path it would mean the current folder."""
    for before, word in zip(["", *words], words, strict=False):
        if word == "" and before not in MAY_BE_EMPTY:
            raise ConfigError(f'{before if before.startswith("-") else "an argument"} "": is empty; give a value')


class _ShortHelp:
    """A help that leaves out what tells a reader nothing: the type of a switch, and limits out of reach."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
            if (getattr(one, "max", None) or 0) > REACHABLE:  # values are checked elsewhere
                one.max = None
        return found


class Group(_ShortHelp, TyperGroup):
    """The `prism` command."""


class Command(_ShortHelp, TyperCommand):
    """A command of `prism`."""


class SettingsCommand(Command):
    """A command `with_settings`: it gets their options when it is chosen."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments, with all options of the command."""
        command = vars(self.callback)["__wrapped__"]
        args = with_address(args)

        @functools.wraps(command)
        def whole(**values: Any) -> None:
            command(**values)

        vars(whole)["__signature__"] = command.signature(whole=True)
        app = typer.Typer(add_completion=False, rich_markup_mode=self.rich_markup_mode)
        app.command(self.name, epilog=self.epilog, cls=Command)(whole)
        return typer.main.get_command(app).make_context(info_name, args, parent, **extra)
