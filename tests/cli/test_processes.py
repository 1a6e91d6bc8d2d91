"""Several processes of one launcher train together; other commands say that they use Ray for this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prism_prm.cli import app
from prism_prm.cli.options import COMMANDS
from prism_prm.cli.processes import ON_RAY, SHARING, join_processes
from prism_prm.errors import ConfigError

RANKS = """
import sys
from prism_prm.cli.processes import join_processes
state = join_processes()
state.wait_for_everyone()
open(f"{sys.argv[1]}/{state.process_index}-of-{state.num_processes}-on-{state.device.type}", "x").close()
state.destroy_process_group()
"""


def test_ranks_are_those_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    words = "--standalone --nproc-per-node 3"
    command = [sys.executable, "-m", "torch.distributed.run", *words.split(), tmp_path / "ranks.py", tmp_path]
    subprocess.run(list(map(str, command)), capture_output=True, timeout=300, check=True)
    (tmp_path / "ranks.py").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{rank}-of-3-on-cpu" for rank in range(3)]


def test_processes_that_do_not_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of accelerate that was made before, for one process."""
    from accelerate import PartialState

    monkeypatch.setattr(PartialState, "_shared_state", {})
    PartialState(cpu=True)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="4 processes were started, but accelerate sees 1"):
        join_processes()


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(SHARING)))
@pytest.mark.parametrize("variable", ["WORLD_SIZE", "PMI_SIZE"])
def test_other_commands_run_in_one_process(monkeypatch: pytest.MonkeyPatch, name: str, variable: str) -> None:
    monkeypatch.setenv(variable, "2")
    result: Any = CliRunner().invoke(app, [name])
    assert isinstance(result.exception, ConfigError), result.output
    assert f"`prism {name}` runs in one process, but a launcher started 2" in str(result.exception)
    assert ("--ray" in str(result.exception)) == (name in ON_RAY), str(result.exception)
