"""The code in the docs, and the tutorials as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from prism_process import write_command

ROOT = Path(__file__).parent.parent


def blocks(page: str, *languages: str) -> list[str]:
    """The code blocks of a page that are in one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    return [code for language, code in found if language in languages]


NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


def stated(page: str, words: str) -> list[str]:
    """The numbers that a page states: those at the `{}` of a sentence or a row of it, which must be there once."""
    pattern = r"\s+".join(re.escape(word).replace(r"\{\}", NUMBER) for word in words.split())
    found = list(re.finditer(pattern, (ROOT / page).read_text(encoding="utf-8")))
    assert len(found) == 1, f"{page} has to say once, and says {len(found)} times: {words}"
    return list(found[0].groups())


THREADS = "2"
"""Threads behind the numbers on the pages: with others, sums round differently, and small trainings end elsewhere."""


def run_tutorial(demo: Path, folder: Path, *, as_stated: bool = False) -> None:
    """All its commands in order, on a demo's folder; `as_stated` gives the page's numbers, and takes longer."""
    commands = [code for code in blocks("docs/start/tutorial.md", "bash") if "activate" not in code]
    assert len(commands) == 5, "one block for each section"
    _run(commands, demo, folder, as_stated)


def run_from_answers(demo: Path, folder: Path, *, as_stated: bool = False) -> None:
    """The commands of docs/guides/label.md from answers to a PRM, on a demo's folder."""
    commands = [code for code in blocks("docs/guides/label.md", "bash") if "runs/answers" in code]
    assert len(commands) == 3, "label, train and measure"
    _run(commands, demo, folder, as_stated)


def _run(commands: list[str], demo: Path, folder: Path, as_stated: bool) -> None:
    """Run them in a folder, with `prism` and this Python on the path."""
    (folder / "bin").mkdir(parents=True)
    (folder / "prism-demo").symlink_to(demo)
    programs = {"python": "", "prism": "-m prism_prm"}
    for name, words in programs.items():
        (folder / "bin" / name).write_text(
            f'#!/bin/sh\nOMP_NUM_THREADS={THREADS} exec "{sys.executable}" {words} "$@"\n'
        )
        (folder / "bin" / name).chmod(0o755)
    if not as_stated:
        write_command(folder / "bin" / "prism")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)], cwd=folder, env=os.environ | {"PATH": path}, check=True
    )  # fmt: skip
