"""Programs that are killed at a moment of their own, however fast or slow the machine is: just before a call."""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prism_process import PRISM, run


def kill_before(function: str, count: int = 1, having: str = "") -> None:
    """Have this process killed with `kill -9` just before so many calls of a function (`module:Class.name`).

    Counted are calls whose positional arguments contain a text.
    """
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner = pkgutil.resolve_name(f"{module}:{'.'.join(owners)}")
    real, left = getattr(owner, name), [count]

    def watched(*arguments: Any, **options: Any) -> Any:
        left[0] -= any(having in str(argument) for argument in arguments)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(owner, name, watched)


def run_killed(
    words: Sequence[object], function: str, count: int = 1, having: str = ""
) -> subprocess.CompletedProcess[str]:
    """`prism` with these words, killed as `kill_before` says."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from killing import kill_before\n"
    return run(*words, code=f"{code}kill_before({function!r}, {count}, {having!r}); {PRISM}")
