"""The Python code that a critic writes, run in the sandbox."""

from __future__ import annotations

import functools

from prism_prm.critics.conversation import RunCode
from prism_prm.sandbox import Limits, Sandbox

LIMITS = Limits(cpu=5.0, wall=10.0)
"""5 seconds, as in GenPRM's own code."""
MOST_SHOWN = 4000
"""Characters of output that a critic is shown."""
_FAILED = {"timeout": "The code ran out of time.", "memory": "The code ran out of memory."}


@functools.cache
def code_runner() -> RunCode:
    """What runs a critic's code; an error that says what to install if no sandbox works on this machine."""
    sandbox = Sandbox(limits=LIMITS)

    def run(code: str) -> str:
        found = sandbox.run(code)
        printed = found.stdout.decode("utf-8", "replace").strip()
        if found.status == "ok":
            return _shortened(printed)
        # The last line of a traceback says what went wrong.
        last = found.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        said = _FAILED.get(found.status) or " ".join(last) or f"The code failed ({found.status})."
        return _shortened("\n".join(part for part in (printed, said) if part))

    return run


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} …"
