"""What all commands have in common: --json, -q and -v, and a clean end when stopped."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NoReturn

import typer

from prism_prm.cli.ui import Terminal, complain, standard_error
from prism_prm.console import shown_on
from prism_prm.errors import PrismError

STOPPED = 130
"""The exit code of a command that was stopped, as shells have it."""
_PANEL = "Display"

Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as one JSON object on standard output.", rich_help_panel=_PANEL),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show only the result, warnings and errors.", rich_help_panel=_PANEL)
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log more, and show tracebacks of errors.", rich_help_panel=_PANEL)
]
_OPTIONS = {"as_json": Json, "quiet": Quiet, "verbose": Verbose}


def with_display(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --json, -q and -v; when stopped, it prints a line that says where it resumes."""

    @functools.wraps(command)
    def run(*, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        with _displayed(Terminal(as_json=as_json, quiet=quiet, verbose=verbose)):
            command(**options)

    def extended(signature: inspect.Signature) -> inspect.Signature:
        own = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
            for name, hint in _OPTIONS.items()
        ]
        return signature.replace(parameters=[*signature.parameters.values(), *own])

    hints = typing.get_type_hints(command, include_extras=True)
    plain = inspect.signature(command)
    named = [one.replace(annotation=hints.get(name, one.annotation)) for name, one in plain.parameters.items()]
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in named]
    run.__annotations__ = {**hints, **_OPTIONS}
    vars(run)["__signature__"] = extended(plain.replace(parameters=keywords))
    if "signature" in vars(command):  # it has options from settings, see `with_settings`
        vars(run)["signature"] = lambda *, whole: extended(vars(command)["signature"](whole=whole))
    return run


@contextlib.contextmanager
def _displayed(terminal: Terminal) -> Iterator[None]:
    if terminal.verbose:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("prism_prm").setLevel(logging.INFO)
    try:
        with shown_on(terminal):
            yield
    except KeyboardInterrupt as stop:
        end_stopped(stop)
    except PrismError:
        if terminal.verbose:
            standard_error().print(traceback.format_exc(), markup=False, emoji=False, highlight=False, soft_wrap=True)
        raise


def end_stopped(stop: KeyboardInterrupt) -> NoReturn:
    """Say in one line how the work is resumed, and end."""
    resumed = ", ".join(getattr(stop, "__notes__", []))
    if os.environ.get("RANK", "0") == "0":  # one process speaks for all
        complain(f"Stopped. Rerun the same command to {f'resume {resumed}' if resumed else 'start again'}.")
    sys.exit(STOPPED)


def stop_on_signals() -> None:
    """A request to end (SIGTERM) stops a command as Ctrl-C does; a second Ctrl-C ends it at once."""

    def stop(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
