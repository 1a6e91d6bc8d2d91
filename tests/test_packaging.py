"""The wheel as people install it: built, installed into a clean environment, used outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from docs_code import ROOT, blocks


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ending → the wheel and the source archive."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True, capture_output=True)
    return {path.suffix: path for path in out.iterdir()}


def test_wheel_and_sdist_hold_what_is_needed(built: dict[str, Path]) -> None:
    inside = set(zipfile.ZipFile(built[".whl"]).namelist())
    weights = {f"prism_prm/lab/world/shipped/{name}/model.safetensors" for name in ("base", "prism")}
    assert weights | {"prism_prm/py.typed", "prism_prm/cli/__init__.py"} <= inside
    [about] = [name for name in inside if name.endswith(".dist-info/METADATA")]
    metadata = zipfile.ZipFile(built[".whl"]).read(about).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Provides-Extra: rl" in metadata
    with tarfile.open(built[".gz"]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "constraints.txt", "pyproject.toml"} <= names


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(built: dict[str, Path], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, prism = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "prism"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, built[".whl"]], check=True)
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env=outside, check=True, capture_output=True, text=True
        ).stdout  # fmt: skip

    assert "prism" in run(prism, "--help")
    assert run(python, "-c", blocks("README.md", "python")[0]) == blocks("README.md", "")[1]
    run(prism, "demo", "--quick", "--out", "quick")
    assert (tmp_path / "quick" / "report.html").exists()
