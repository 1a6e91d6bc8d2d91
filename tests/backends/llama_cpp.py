"""llama.cpp's server (PyPI's xllamacpp) as a process of its own on a loopback port."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECONDS_TO_START = 180
_START = """
import sys, threading, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.n_parallel, settings.n_ctx = 2, 8192
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 2
settings.hostnames, settings.port = ["127.0.0.1"], 0
server = xllamacpp.Server(settings)
print("listening at", server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCpp:
    """A running server; it ends with the process that reads its standard input."""

    def __init__(self, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(model)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening at"):
                self.url = f"{line.split()[-1]}/v1"
                return
        raise RuntimeError("llama.cpp did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
