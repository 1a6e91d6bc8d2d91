"""Commands of `prism` in several processes, as `accelerate launch` starts them on a machine without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

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
