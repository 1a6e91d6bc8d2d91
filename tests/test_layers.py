"""Imports point one way, and the command line starts without the heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "prism_prm"

LAYERS: list[set[str]] = [
    {"__init__", "errors", "files", "records"},
    {"aggregate", "answers", "config", "curriculum", "losses", "metrics", "statistics", "theory"},
    {"data", "export", "packing", "pairs", "pools", "tables", "report", "tasks"},
    {"lm"},
    {"policies", "prms"},
    {"scorer"},
    {"demo", "evaluation", "rerank", "search", "training", "world"},
    {"__main__", "cli"},
]
"""From the bottom up; a module may import its own layer and those before it."""

HEAVY = ("torch", "transformers", "datasets", "matplotlib", "pyarrow", "sympy", "sklearn", "peft", "accelerate")


def layer_of(module: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if module in names]
    assert found, f"{module} is in no layer; add it to LAYERS"
    return found[0]


def own_imports(file: Path) -> set[str]:
    """The top-level modules of prism_prm that a file imports at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "prism_prm" else [module]
        found |= {name.split(".")[1] for name in names if name.startswith("prism_prm.")}
    return {name for name in found if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()}


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_to_lower_layers(file: Path) -> None:
    module = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    above = {name for name in own_imports(file) if layer_of(name) > layer_of(module)}
    assert not above, f"{file.relative_to(SOURCE)} imports {sorted(above)} from a layer above its own"


@pytest.mark.parametrize("module", ["prism_prm", "prism_prm.cli"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
