"""The shipped recipes of `prism grpo` can be read, TRL takes their settings, and they say what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_prm.config import read_settings
from prism_prm.data.tasks import TASKS
from prism_prm.rl.recipe import GrpoRecipe
from prism_prm.rl.trainer import grpo_config

RECIPES = Path(__file__).parents[2] / "recipes" / "rl"
NAMES = {
    "qwen2.5-1.5b-qwen-prm": ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Math-PRM-7B"),
    "qwen2.5-1.5b-prism": ("Qwen/Qwen2.5-1.5B-Instruct", "runs/qwen2.5-math-prm-7b"),
    "qwen2.5-1.5b-rounds": ("Qwen/Qwen2.5-1.5B-Instruct", "runs/qwen2.5-math-prm-7b"),
    "qwen2.5-coder-0.5b-rounds": ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "runs/smollm2-base/rounds/1_all"),
    "smollm2-135m-gsm8k": ("HuggingFaceTB/SmolLM2-135M-Instruct", "runs/smollm2-135m"),
}
OF_THE_PAPER = ("aime-2024", "amc-83", "gsm8k", "math-500", "minerva", "olympiadbench")


@pytest.mark.parametrize("name", NAMES)
def test_recipe(name: str, tmp_path: Path) -> None:
    path = RECIPES / f"{name}.toml"
    recipe = read_settings(GrpoRecipe, path)
    assert (recipe.policy, recipe.prm) == NAMES[name]
    assert set(recipe.evaluation.tasks) <= set(TASKS)
    here = {key: value for key, value in recipe.trainer.items() if key not in ("bf16", "report_to")}
    config = grpo_config(here, tmp_path)
    assert {key: getattr(config, key) for key in here} == here
    assert config.num_generations == recipe.trainer["num_generations"]


@pytest.mark.parametrize("name", ["qwen2.5-1.5b-qwen-prm", "qwen2.5-1.5b-prism"])
def test_the_papers_recipes_have_its_tasks_and_are_marked(name: str) -> None:
    path = RECIPES / f"{name}.toml"
    assert read_settings(GrpoRecipe, path).evaluation.tasks == OF_THE_PAPER
    assert "Not run by us" in path.read_text()


def test_the_papers_recipes_differ_in_the_prm_alone() -> None:
    first, second = (read_settings(GrpoRecipe, RECIPES / f"{name}.toml", ["prm=one"]) for name in list(NAMES)[:2])
    assert first == second


def test_rounds_retrain_by_a_shipped_recipe() -> None:
    rounds = read_settings(GrpoRecipe, RECIPES / "qwen2.5-1.5b-rounds.toml").rounds
    assert rounds.count == 1
    assert (RECIPES.parents[1] / rounds.train).is_file()


def test_all_are_listed() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == set(NAMES)
