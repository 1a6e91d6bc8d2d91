"""Commands of `prism` in several processes on a machine without a GPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from prism_process import Process

LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
    "--main_process_port",
    "0",
]
"""`--multi_gpu` is how accelerate spells "several processes": with `--cpu` it starts one, whatever their number."""


def launch(
    *arguments: object, processes: int = 2, program: Sequence[str] = ("-m", "prism_prm")
) -> subprocess.CompletedProcess[str]:
    """`accelerate launch -m prism_prm …`, whose errors the caller looks at."""
    command = [sys.executable, *LAUNCH, "--num_processes", str(processes), *program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def together(*words: object, processes: int = 2, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a launcher does, without its seconds of imports: processes of `prism_process` that know their ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}

    def start(rank: int) -> Process:
        own = {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        return Process(*words, env={**os.environ, **own}, **options)

    started = list(map(start, range(processes)))
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    status = max(abs(process.wait()) for process in started)
    return subprocess.CompletedProcess(started[0].args, status, *map("".join, zip(*said, strict=True)))
