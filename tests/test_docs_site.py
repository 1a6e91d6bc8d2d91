"""The docs site: what docs/hooks.py generates from the code, the diagrams, and how long pages may be.

That all links and anchors exist is checked by `make docs`.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import prism_prm
from prism_prm.config import settings_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def imported(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = imported("hooks")
diagrams = imported("diagrams")


@pytest.mark.parametrize("name", hooks.COMMANDS)
def test_commands_page_has_every_option_and_setting(name: str) -> None:
    command = hooks.load(name)
    section = hooks.commands_page().split(f"## prism {name}\n")[1].split("\n## prism ")[0]
    assert re.findall(r"^\| `(-[^`]*)`", section, re.MULTILINE)[: len(command.options)] == list(command.options)
    assert all(f"`{setting.rpartition('.')[2]}`" in section for setting in command.known)
    assert all(line.split()[1] in section for line in command.examples.values())


def test_settings_page_explains_every_setting_once() -> None:
    page = hooks.settings_page()
    titles = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(titles) == len(set(titles)), "two settings classes share a name, and so an anchor"
    recipes = [command.settings for command in hooks.commands().values()]
    for cls in {*recipes, *(section for recipe in recipes for _, section in hooks._sections(recipe))}:
        lacking = [name for name, setting in settings_of(cls).items() if not setting.text]
        assert not lacking, f"settings of {cls.__name__} without a description"
        part = page.split(f"### {hooks._title(cls)}\n")[1].split("\n### ")[0]
        assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == hooks._keys(cls)


def test_python_page_has_every_public_name() -> None:
    shown = re.findall(r"^::: prism_prm\.(\w+)$", hooks.python_page(), re.MULTILINE)
    assert sorted(shown) == sorted(set(prism_prm.__all__) - {"__version__"})


def test_file_formats_list_the_columns_of_the_code() -> None:
    page = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    assert len(hooks.SCHEMA.findall(page)) == page.count("<!-- schema:") == 5
    made = hooks.SCHEMA.sub(hooks._with_types, page)
    assert "| `tree_id` | int32 | ordinal in the input |" in made
    assert "| `nodes` | list of structs | the steps; see below |" in made
    with pytest.raises(hooks.PluginError, match="PAIRS has the columns"):
        hooks.SCHEMA.sub(hooks._with_types, page.replace("| `gap` |", "| `gap_of_values` |"))


def test_links_outside_docs_become_text() -> None:
    text = "[a](../../recipes/smollm2-135m.toml) [b](../../recipes/none.toml) [c](data.md) ![d](../figures/page.png)"
    unlinked = hooks._without_links_outside(text, DOCS, "guides/train.md")
    assert unlinked == text.replace("[a](../../recipes/smollm2-135m.toml)", "a")


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_diagrams_are_drawn_by_their_script(name: str) -> None:
    drawn = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == diagrams.DIAGRAMS[name]().svg(), "run: python docs/diagrams.py"
    assert "prefers-color-scheme:dark" in drawn


def test_the_mask_is_that_of_a_packed_tree() -> None:
    """Token q attends to token k iff k ≤ q < end[k]."""
    names = list(diagrams.PACKED)
    ends = {name: 1 + max(i for i, other in enumerate(names) if name in diagrams._path(other)) for name in names}
    for q, query in enumerate(names):
        assert diagrams._path(query)[::-1] == [key for k, key in enumerate(names) if k <= q < ends[key]]


@pytest.mark.parametrize(
    ("page", "words"),
    [("docs/index.md", 250), ("docs/start/install.md", 300), ("docs/start/tutorial.md", 1000), ("README.md", 1000)],
)
def test_first_pages_are_short(page: str, words: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.split()) <= words
    assert page != "README.md" or len(text.splitlines()) <= 120
