"""The shipped search recipes can be read, and say what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_prm.config import read_settings
from prism_prm.data.tasks import TASKS
from prism_prm.search.recipes import SearchRecipe

RECIPES = Path(__file__).parents[2] / "recipes" / "search"
POLICIES = {
    "math500-qwen2.5-math-1.5b": ("hf:Qwen/Qwen2.5-Math-1.5B-Instruct", "math-500-100"),
    "math500-llama-3.2-3b": ("hf:meta-llama/Llama-3.2-3B-Instruct", "math-500-100"),
    "aime2024-qwen2.5-math-7b": ("hf:Qwen/Qwen2.5-Math-7B-Instruct", "aime-2024"),
    "livecodebench-qwen2.5-coder-7b": ("hf:Qwen/Qwen2.5-Coder-7B-Instruct", "livecodebench-v5"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_recipe(name: str) -> None:
    path = RECIPES / f"{name}.toml"
    recipe = read_settings(SearchRecipe, path, given={"prm": ["some-prm"]})
    assert (recipe.policy.name, recipe.task) == POLICIES[name]
    assert recipe.task in TASKS
    assert (recipe.search.method, recipe.selector) == ("beam", "weighted")
    assert recipe.search.sampling.stop == "\n\n"
    asked = recipe.policy.prompting.system + recipe.policy.prompting.user
    assert "\\boxed{" in asked or recipe.task.startswith("livecodebench"), "code problems say themselves what to write"
    assert "Not run by us" in path.read_text()


def test_all_are_listed() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == set(POLICIES)
