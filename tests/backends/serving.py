"""`transformers serve` as a process of its own on a loopback port."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx

from waiting import free_port, until


class Served:
    """A running server; `kill` and `start` it again as often as needed."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "transformers"), "serve", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu", "--dtype", "float32"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process = self.process

        def is_ready() -> bool:
            assert process.poll() is None, "transformers serve ended by itself"
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=60).status_code == 200
            return False

        until(is_ready)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
