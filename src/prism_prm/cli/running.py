"""What all commands share: the display, and a clean end when stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from prism_prm.cli.ui import Terminal, complain, standard_error
from prism_prm.console import shown_on
from prism_prm.errors import PrismError

STOPPED = 130
"""The exit code of a command that was stopped, as in shells."""


@contextlib.contextmanager
def displayed(terminal: Terminal) -> Iterator[None]:
    """Show notes and progress on the terminal; a stopped command prints how to resume."""
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
    """Print one line that says how to resume, and exit."""
    resumed = ", ".join(getattr(stop, "__notes__", []))
    if os.environ.get("RANK", "0") == "0":  # one process speaks for all
        complain(f"Stopped. Rerun the same command to {f'resume {resumed}' if resumed else 'start again'}.")
    sys.exit(STOPPED)


def stop_on_signals() -> None:
    """SIGTERM stops a command like Ctrl-C; a second Ctrl-C ends it at once."""

    def stop(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
