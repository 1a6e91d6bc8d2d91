"""The Python code that a critic writes, run in the sandbox."""

from __future__ import annotations

import functools
from collections.abc import Callable

from prism_prm.critics.conversation import STOPPED
from prism_prm.sandbox import Limits, Sandbox, SandboxError

LIMITS = Limits(cpu=5.0, wall=10.0)
"""5 seconds, as in GenPRM's own code."""
MOST_SHOWN = 4000
"""Characters of output that a critic is shown."""


@functools.cache
def code_runner() -> Callable[[str], str]:
    """Python code → what it prints, or what went wrong; an error if no sandbox works on this machine."""
    try:
        sandbox = Sandbox(limits=LIMITS)
    except SandboxError as error:
        raise SandboxError(f"--critic-code: {error}\nWithout --critic-code the critic's code is not run.") from None

    def run(code: str) -> str:
        found = sandbox.run(code)
        messages = found.stderr.decode("utf-8", "replace").strip()
        if found.status == "sandbox":
            raise SandboxError(f"--critic-code: the sandbox could not start the critic's code: {messages}")
        printed = _shortened(found.stdout.decode("utf-8", "replace").strip())
        if found.status == "ok":
            return printed
        # The last line of a traceback says what went wrong.
        said = STOPPED.get(found.status) or " ".join(messages.splitlines()[-1:]) or "The code failed."
        return "\n".join(part for part in (printed, _shortened(said)) if part)

    return run


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} …"
