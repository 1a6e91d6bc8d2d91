"""The `prism` command: one file per sub-command, and nothing heavy imported before it is needed."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from prism_prm import __version__
from prism_prm.cli import compare, demo, evaluate, export, grpo, margins, pairs, rerank, score, search, theory, train
from prism_prm.cli.options import SettingsCommand
from prism_prm.cli.processes import check_alone
from prism_prm.cli.threads import settle_waiting
from prism_prm.cli.ui import alone_in_its_folder
from prism_prm.errors import PrismError

app = typer.Typer(
    name="prism",
    help="Train, measure and use process reward models (PRMs): models that score each step of a chain of reasoning.",
    no_args_is_help=True,
    add_completion=False,
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


app.command(epilog=pairs.EXAMPLES, cls=SettingsCommand)(alone_in_its_folder(pairs.pairs))
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=score.EXAMPLES, cls=SettingsCommand)(score.score)
app.command(epilog=margins.EXAMPLES, cls=SettingsCommand)(margins.margins)
app.command(epilog=train.EXAMPLES)(train.train)
app.command("eval", epilog=evaluate.EXAMPLES, cls=SettingsCommand)(alone_in_its_folder(evaluate.evaluate))
app.command(epilog=compare.EXAMPLES)(alone_in_its_folder(compare.compare))
app.command(epilog=theory.EXAMPLES)(alone_in_its_folder(theory.theory))
app.command(epilog=rerank.EXAMPLES, cls=SettingsCommand)(alone_in_its_folder(rerank.rerank))
app.command(epilog=search.EXAMPLES, cls=SettingsCommand)(alone_in_its_folder(search.search))
app.command(epilog=grpo.EXAMPLES)(grpo.grpo)
app.command(epilog=demo.EXAMPLES)(alone_in_its_folder(demo.demo))


def main() -> None:
    """Run the command line; an error the user can mend is printed plainly and ends with status 2."""
    settle_waiting(os.environ)
    try:
        app()
    except PrismError as error:
        _end(str(error))
    except OSError as error:  # a file in the way, a full disc, no permission
        where = "" if error.filename is None else f"{error.filename}: "
        _end(f"{where}{error.strerror or error}")


def _end(message: str) -> NoReturn:
    typer.secho(f"error: {message}", fg="red", err=True)
    sys.exit(2)
