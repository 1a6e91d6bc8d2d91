"""Imports point one way, as docs/architecture.md says, and the command line starts without the heavy libraries."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "prism_prm"
PAGE = ROOT / "docs" / "architecture.md"
MODULES = {module.name for module in pkgutil.iter_modules([str(SOURCE)])} - {"__main__"}

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "matplotlib",
    "pyarrow",
    "scipy",
    "sympy",
    "sklearn",
    "peft",
    "accelerate",
)


@cache
def allowed() -> dict[str, set[str]]:
    """Module → what it may import: the rows below its own, and what an arrow of its row points to."""
    rows = _rows(PAGE.read_text(encoding="utf-8"))
    named = [set().union(*(group for chain in row for group in chain)) for row in rows]
    result: dict[str, set[str]] = {}
    for i, row in enumerate(rows):
        below = set[str]().union(*named[i + 1 :])
        for name in named[i]:
            assert name not in result, f"{name} is in two rows of the table"
            right = [chain[at + 1 :] for chain in row for at, group in enumerate(chain) if name in group]
            result[name] = below.union(*(group for groups in right for group in groups))
    return result


def _rows(page: str) -> list[list[list[set[str]]]]:
    """The table of layers, from the top: a row has chains (split by `;`), a chain groups of modules (split by `→`)."""
    section = page.split("## Layers\n")[1].split("\n## ")[0]
    cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("|")][2:]
    return [
        [[set(re.findall(r"`(\w+)`", group)) for group in chain.split("→")] for chain in cell.split(";")]
        for cell in cells
    ]


def own_imports(code: str) -> Iterator[str]:
    """The modules of prism_prm that code imports anywhere: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            whole = node.module == "prism_prm"
            names = [f"prism_prm.{alias.name}" for alias in node.names] if whole else [node.module or ""]
        yield from (name.split(".")[1] for name in names if name.startswith("prism_prm."))


def test_imports_are_found_wherever_they_stand() -> None:
    code = """
import prism_prm.files as f
from prism_prm import __version__, tree as records
if TYPE_CHECKING:
    from prism_prm.models.prm import PRM
def late():
    from prism_prm.search.rerank_report import build
"""
    assert set(own_imports(code)) == {"files", "__version__", "tree", "models", "search"}


def test_the_table_names_every_module_once() -> None:
    assert set(allowed()) == MODULES


def test_the_table_is_read_as_it_is_meant() -> None:
    page = "## Layers\n| layer | modules |\n|---|---|\n| up | `a` → `b` `c` → `d`; `a` → `e` |\n| down | `f` |\n## Next"
    assert _rows(page) == [[[{"a"}, {"b", "c"}, {"d"}], [{"a"}, {"e"}]], [[{"f"}]]]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    files = [SOURCE / f"{module}.py"] if (SOURCE / f"{module}.py").exists() else (SOURCE / module).rglob("*.py")
    wrong = {
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in files
        for name in own_imports(file.read_text(encoding="utf-8"))
        if name in MODULES - {module} - allowed()[module]
    }
    assert not wrong, f"against the table in docs/architecture.md: {sorted(wrong)}"


@pytest.mark.parametrize("module", ["prism_prm", "prism_prm.cli"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
