"""The docs' tables of settings say what the classes say; `python tests/test_settings_tables.py` writes them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from prism_prm.config import settings_of, settings_table

DOCS = Path(__file__).parent.parent / "docs"
TABLE = re.compile(r"(<!-- settings: (\S+):(\w+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)
WITH_TABLES = [page for page in sorted(DOCS.glob("*.md")) if TABLE.search(page.read_text(encoding="utf-8"))]


def settings_class(found: re.Match[str]) -> type:
    made: type = getattr(importlib.import_module(found[2]), found[3])
    return made


def with_tables(page: str) -> str:
    """The page, with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + settings_table(settings_class(found)) + found[4], page)


def test_there_are_tables() -> None:
    expected = {
        "code.md",
        "critics.md",
        "evaluation.md",
        "grpo.md",
        "labels.md",
        "ray.md",
        "reranking.md",
        "scale.md",
        "scoring.md",
        "search.md",
        "serve.md",
        "training.md",
    }
    assert {page.name for page in WITH_TABLES} == expected


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.name)
def test_tables_are_those_of_the_classes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: python tests/test_settings_tables.py"
    for found in TABLE.finditer(text):
        lacking = [name for name, setting in settings_of(settings_class(found)).items() if not setting.text]
        assert not lacking, f"settings of {found[3]} that nothing is said about"


if __name__ == "__main__":
    for page in WITH_TABLES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
