"""The shipped recipes can be read, and differ from the paper's in what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_prm.training.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = RECIPES / "qwen2.5-math-prm-7b.toml"


@pytest.mark.parametrize(
    "path",
    [*sorted(RECIPES.glob("*.toml")), *sorted((RECIPES / "ablations").glob("*.toml"))],
    ids=lambda path: path.stem,
)
def test_shipped_recipes_are_valid(path: Path) -> None:
    base = load_recipe(path).base
    assert base.prm or base.backbone


def test_ablations_change_one_thing_each() -> None:
    paper = load_recipe(PAPER)
    for path in (RECIPES / "ablations").glob("*.toml"):
        recipe = load_recipe(path)
        changed = [name for name in ("data", "objective", "curriculum", "train", "base", "hardware") if
                   getattr(recipe, name) != getattr(paper, name)]  # fmt: skip
        assert len(changed) == 1, f"{path.name} changes {changed}"


def test_the_papers_recipe_is_the_papers() -> None:
    paper = load_recipe(PAPER)
    assert paper.curriculum.bins == ((0.5, 1.0), (0.3, 0.5), (0.2, 0.3), (0.1, 0.2))
    assert (paper.objective.name, paper.objective.space) == ("sc", "probability")
    assert (paper.data.pairs.lookahead, paper.data.pairs.audit) == ("all", "off")
    assert load_recipe(RECIPES / "reasoneval-7b.toml").curriculum.bins[-1] == (0.0, 0.1)
