"""The `prism` command: one file per sub-command, imported when it is called."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

import click

from prism_prm import __version__, imports
from prism_prm.cli.options import App, refuse_empty
from prism_prm.cli.running import end_stopped, stop_on_signals
from prism_prm.cli.threads import limit_openmp_spin
from prism_prm.cli.ui import complain
from prism_prm.errors import PrismError

app = App(name="prism", no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
click.version_option(__version__, message="prism-prm %(version)s")(app)


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one line and ends with status 2."""
    limit_openmp_spin(os.environ)
    stop_on_signals()
    imports.freezes = True
    try:
        refuse_empty(sys.argv[1:])
        sys.exit(app(standalone_mode=False))
    except KeyboardInterrupt as stop:  # before a command began
        end_stopped(stop)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        name = error.ctx.info_name if error.ctx and error.ctx.parent else ""
        message = " ".join(error.format_message().split()).rstrip(".")
        _end(f"{message}. See `{' '.join(filter(None, ('prism', name)))} --help`.")
    except PrismError as error:
        _end(str(error))
    except OSError as error:  # a file in the way, a full disk, no permission
        where = "" if error.filename is None else f"{error.filename}: "
        _end(f"{where}{error.strerror or error}")
    finally:
        gc.freeze()  # or the interpreter would search everything that torch has made before it exits


def _end(message: str) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher that lost another process sends it to this one too
    complain(f"error: {message}")
    sys.exit(2)
