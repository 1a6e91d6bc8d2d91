"""What runs inside a worker process: it reads a call per line and answers it; the kernel ends a call that hangs.

Started by `workers.py` as `python -m prism_prm.answers.worker MODULE CPU_SECONDS MEMORY_BYTES`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

try:
    import resource
except ImportError:  # not on Windows; there the parent's clock alone ends a call
    resource = None  # type: ignore[assignment]


def _answer(function: Any, arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"value": function(*arguments)}
    except Exception as error:  # a parser may raise anything on a text nobody foresaw; the caller counts it
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main(module_name: str, cpu_seconds: float, memory_bytes: int) -> None:
    """Serve calls of the functions of a module until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not land among the answers
    if resource is not None and memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda: None)()
    out.write("ready\n")
    out.flush()
    has_timer = hasattr(signal, "setitimer")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        # CPU time, so that a busy machine changes no verdict; the default action of SIGPROF ends the process,
        # also in the middle of C code that never looks at signals.
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        reply = _answer(getattr(module, name), arguments)
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
