"""The `prism` command: one file per sub-command, and nothing heavy imported before it is needed."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from prism_prm import __version__
from prism_prm.cli import (
    compare,
    demo,
    evaluate,
    export,
    grpo,
    label,
    look,
    margins,
    pairs,
    plan,
    rerank,
    score,
    search,
    serve,
    theory,
    train,
    view,
)
from prism_prm.cli.options import Command, Group, SettingsCommand, refuse_empty
from prism_prm.cli.processes import check_alone
from prism_prm.cli.running import end_stopped, stop_on_signals, with_display
from prism_prm.cli.threads import settle_waiting
from prism_prm.cli.ui import complain
from prism_prm.errors import PrismError

UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for wrong words, be it its own or click's."""

app = typer.Typer(
    name="prism",
    cls=Group,
    help="Train, measure and use process reward models (PRMs): models that score each step of a chain of reasoning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prism-prm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `prism` itself."""
    check_alone(context.invoked_subcommand or "")


def _add(command: Callable[..., None], epilog: str, *, name: str | None = None, settings: bool) -> None:
    """Add a command; `settings`: options are made from settings classes."""
    app.command(name, epilog=epilog, cls=SettingsCommand if settings else Command)(with_display(command))


_add(demo.demo, demo.EXAMPLES, settings=False)
_add(pairs.pairs, pairs.EXAMPLES, settings=True)
_add(label.label, label.EXAMPLES, settings=True)
_add(export.export, export.EXAMPLES, settings=False)
_add(score.score, score.EXAMPLES, settings=True)
_add(look.look, look.EXAMPLES, settings=True)
_add(margins.margins, margins.EXAMPLES, settings=True)
_add(plan.plan, plan.EXAMPLES, settings=True)
_add(train.train, train.EXAMPLES, settings=False)
_add(evaluate.evaluate, evaluate.EXAMPLES, name="eval", settings=True)
_add(compare.compare, compare.EXAMPLES, settings=False)
_add(theory.theory, theory.EXAMPLES, settings=True)
_add(rerank.rerank, rerank.EXAMPLES, settings=True)
_add(search.search, search.EXAMPLES, settings=True)
_add(grpo.grpo, grpo.EXAMPLES, settings=False)
_add(view.view, view.EXAMPLES, settings=False)
_add(serve.serve, serve.EXAMPLES, settings=True)


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one line and ends with status 2."""
    settle_waiting(os.environ)
    stop_on_signals()
    try:
        refuse_empty(sys.argv[1:])
        sys.exit(app(standalone_mode=len(sys.argv) == 1))  # without any words it shows its help by itself
    except KeyboardInterrupt as stop:  # before a command began
        end_stopped(stop)
    except UsageError as error:
        _end(_usage(error))
    except PrismError as error:
        _end(str(error))
    except OSError as error:  # a file in the way, a full disk, no permission
        where = "" if error.filename is None else f"{error.filename}: "
        _end(f"{where}{error.strerror or error}")


def _usage(error: Any) -> str:
    """A mistake in the words of a command as one line, like all others."""
    said = error.format_message()
    if flags := getattr(getattr(error, "param", None), "opts", None):
        words = [word for given in sys.argv for word in given.split("=", 1)]
        given = [(flag, value) for flag, value in itertools.pairwise(words) if flag in flags]
        said = "{} {!r}: {}".format(*given[-1], error.message) if given and error.message else said
    said = " ".join(said.split()).rstrip(".")
    command = error.ctx.info_name if error.ctx and error.ctx.parent else ""
    return f"{said}. See `{' '.join(filter(None, ('prism', command)))} --help`."


def _end(message: str) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher whose other process was lost asks for this end, too
    complain(f"error: {message}")
    sys.exit(2)
