"""Several processes of one launcher share a command's work, or are told that it has none to share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from launching import launch
from prism_prm import Step, StepPair, StepTree, init_prm
from prism_prm.cli import app
from prism_prm.cli.processes import SHARING, share_of_work
from prism_prm.errors import ConfigError
from prism_prm.tables import write_pairs, write_trees

NUM_TREES = 130
"""Two whole parts of 64, and two more."""


@pytest.fixture(scope="module")
def folder(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PRM, and trees with a pair each."""
    root = tmp_path_factory.mktemp("shared")
    init_prm(tiny_lm("qwen2"), family="qwen").save(root / "prm")
    trees = [
        StepTree(i, f"What is {i} + 1?", (Step(f"x = {i}", 1.0), Step("x = 7", 0.0)), (-1, -1), (0,))
        for i in range(NUM_TREES)
    ]
    (root / "pairs").mkdir()
    write_trees(root / "pairs" / "trees.parquet", trees, split="train")
    pairs = [StepPair(i, i, 0, 0, 1, i, "annotated") for i in range(NUM_TREES)]
    write_pairs(root / "pairs" / "pairs.parquet", pairs, split="train")
    return root


@pytest.mark.parametrize(("command", "said"), [("score", "130 of 130 trees"), ("margins", "130 of 130 trees")])
def test_processes_on_cpus_share_the_work(folder: Path, tmp_path: Path, command: str, said: str) -> None:
    """The first process has the first and third of three parts; margins report them all."""
    common = (command, folder / "pairs", "--prm", folder / "prm", "--out")
    alone = CliRunner().invoke(app, [*map(str, common), str(tmp_path / "one.parquet")])
    assert alone.exit_code == 0, alone.output
    shared = launch(*common, tmp_path / "two.parquet")
    assert shared.returncode == 0, shared.stderr
    assert shared.stderr.count(said) == 1, "one process speaks for both"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.parquet", "two.parquet"], "no parts are left"
    assert pq.read_table(tmp_path / "two.parquet").equals(pq.read_table(tmp_path / "one.parquet"))


RANKS = """
import sys
from prism_prm.cli.processes import share_of_work
with share_of_work(None) as (share, device):
    share.wait()
    open(f"{sys.argv[1]}/{share.rank}-of-{share.world}-on-{device}", "x").close()
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
    with pytest.raises(ConfigError, match="4 processes were started, but accelerate sees 1"), share_of_work("cpu"):
        pass


@pytest.mark.parametrize("name", sorted(set(get_command(app).commands) - set(SHARING)))  # type: ignore[attr-defined]
@pytest.mark.parametrize("variable", ["WORLD_SIZE", "PMI_SIZE"])
def test_other_commands_run_in_one_process(monkeypatch: pytest.MonkeyPatch, name: str, variable: str) -> None:
    monkeypatch.setenv(variable, "2")
    result: Any = CliRunner().invoke(app, [name])
    assert isinstance(result.exception, ConfigError), result.output
    assert f"`prism {name}` runs in one process, but a launcher started 2" in str(result.exception)
