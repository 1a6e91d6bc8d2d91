"""The asymmetry map end to end on a small world."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prism_prm.cli import app
from prism_prm.console import progress
from prism_prm.errors import ConfigError
from prism_prm.lab.demo import asymmetry, reinforcement
from prism_prm.lab.demo.asymmetry import BEAM, BEST_OF_N, GRPO, AsymmetryMap, MapSettings, demo_world
from prism_prm.lab.world.build import World, build_world, world_settings
from prism_prm.report import Report


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a demo leaves of its world."""
    folder = tmp_path_factory.mktemp("demo")
    world = build_world(world_settings("quick"), folder / "world")
    (folder / "policy").symlink_to(world.policy)
    (folder / "data").symlink_to(world.data)
    return folder


@pytest.fixture(scope="module")
def world(demo: Path) -> World:
    return demo_world(demo)


def test_the_world_of_a_demo_is_the_one_that_was_built(demo: Path, tmp_path: Path) -> None:
    assert demo_world(demo) == build_world(world_settings("quick"), demo / "world")
    with pytest.raises(ConfigError, match="not the folder of a finished demo"):
        demo_world(tmp_path)


def one_by_one(title: str, do: Callable[[Any], object], jobs: Sequence[Any]) -> None:
    """In this process, which has imported everything already."""
    with progress(title, len(jobs)) as advance:
        for job in jobs:
            do(job)
            advance(1)


def test_a_map_of_two_by_two(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asymmetry, "run_in_processes", one_by_one)
    monkeypatch.setattr(reinforcement, "run_in_processes", one_by_one)
    out = tmp_path / "theory"
    command = ["theory", "--no-simulate", "--map", "--world", str(demo), "--set", "rates=0,0.5",
               "--set", "grpo_rates=0.5", "--set", "updates=2", "--out", str(out)]  # fmt: skip
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    cells = {(c["kind"], c["alpha"], c["beta"]): c for c in json.loads((out / "metrics.json").read_text())["asymmetry"]}
    assert len(cells) == 8
    for (_, alpha, beta), cell in cells.items():
        assert (cell["measured alpha"] == 0) == (alpha == 0)
        assert (cell["measured beta"] == 0) == (beta == 0)
        assert (GRPO in cell) == (alpha == beta == 0.5)
        assert 0 <= cell[BEST_OF_N] <= 1
    truth = cells["independent", 0, 0]
    assert all(cells["systematic", 0, 0][name] == truth[name] for name in (BEST_OF_N, BEAM))
    assert all(cell[BEST_OF_N] < truth[BEST_OF_N] for at, cell in cells.items() if any(at[1:]))
    page = (out / "report.md").read_text()
    assert "figures/asymmetry-independent-1.svg" in page
    assert "figures/asymmetry-systematic-3.svg" in page
    made = {path: path.stat().st_mtime_ns for path in (out / "map").rglob("*") if path.is_file()}
    CliRunner().invoke(app, command, catch_exceptions=False)
    assert {path: path.stat().st_mtime_ns for path in (out / "map").rglob("*") if path.is_file()} == made


def test_an_unfinished_map_shows_what_there_is(world: World, tmp_path: Path) -> None:
    report = Report("Theory")
    AsymmetryMap(world, tmp_path, MapSettings(rates=(0.0, 0.3))).add_to(report)
    assert "8 of 8 policies are not trained yet" in report.markdown()
    assert all(set(cell) == {"kind", "alpha", "beta"} for cell in report.metrics["asymmetry"])


def test_options_of_the_map_need_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["theory", "--set", "rates=0.1", "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "add --map" in str(result.exception)
