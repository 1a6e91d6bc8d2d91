"""Cores are those that a process is bound to, and no more than its container grants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prism_prm.grading.process_pool import ProcessPool, available_cores
from prism_prm.grading.sandbox import Sandbox

NEW, OLD = "0::/box/inner\n", "3:memory:/x\n2:cpu,cpuacct:/box\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        (None, {}, 8),
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        (NEW, {"box/inner/cpu.max": "max 100000", "box/cpu.max": "150000 100000"}, 2),
        (NEW, {"box/inner/cpu.max": "50000 100000", "box/cpu.max": "400000 100000"}, 1),
        (NEW, {"cpu.max": "300000 100000"}, 3),  # the container's own groups lie at the top
        (NEW, {"cpu.max": "9900000 100000"}, 8),
        (OLD, {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, 8),
        (OLD, {"cpu/box/cpu.cfs_quota_us": "400000", "cpu/box/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_a_quota_bounds_the_cores(
    groups: str | None, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (written | ({"proc/self/cgroup": groups} if groups else {})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == cores


def test_they_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("grading.process_pool", "grading.sandbox"):
        monkeypatch.setattr(f"prism_prm.{user}.available_cores", lambda: 3)
    assert Sandbox("none").workers == 3
    with ProcessPool("json") as made:
        assert made.count == 3
