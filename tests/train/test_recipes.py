"""The shipped recipes can be read, and differ from the paper's in what they say."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from prism_prm.config import from_mapping, to_toml
from prism_prm.errors import ConfigError
from prism_prm.train.recipe import Recipe, TrainSettings, load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = RECIPES / "qwen2.5-math-prm-7b.toml"


ABLATIONS = {
    "annotated-no-curriculum": ["data", "curriculum"],
    "annotated-pointwise": ["data", "objective", "curriculum"],
    "bins-from-0.7": ["curriculum"],
    "bins-three": ["curriculum"],
    "hybrid": ["objective"],
    "keep-negative-margins": ["curriculum"],
    "log-odds": ["objective"],
    "no-curriculum": ["curriculum"],
    "no-lookahead": ["data"],
    "perturbed-negatives": ["data"],
    "pointwise": ["objective"],
    "pointwise-no-curriculum": ["objective", "curriculum"],
    "random-negatives": ["data"],
}
"""Every ablation, and the sections in which it differs from the paper's recipe."""

STARTS = {
    "qwen2.5-math-prm-7b": "Qwen/Qwen2.5-Math-PRM-7B",
    "qwen2.5-math-prm-7b-ours": "Qwen/Qwen2.5-Math-PRM-7B",
    "reasoneval-7b": "GAIR/ReasonEval-7B",
    "thinkprm-7b-verdict": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "smollm2-135m-base": "HuggingFaceTB/SmolLM2-135M-Instruct",
    **{
        f"smollm2-135m{arm}": "runs/smollm2-base/rounds/1_all"
        for arm in ("", "-hybrid", "-log-odds", "-lookahead", "-lookahead-pointwise", "-pairs", "-pairs-pointwise")
    },
    **{f"qwen2.5-coder-{size.lower()}-base": f"Qwen/Qwen2.5-Coder-{size}-Instruct" for size in ("0.5B", "1.5B")},
    **{
        f"qwen2.5-coder-0.5b-pairs{arm}": "runs/coder-base/rounds/1_all"
        for arm in ("", "-hybrid", "-lookahead", "-pointwise")
    },
    **{f"ablations/{name}": "Qwen/Qwen2.5-Math-PRM-7B" for name in ABLATIONS},
}
"""Every recipe, and the model that it starts from."""


@pytest.mark.parametrize("name", STARTS)
def test_shipped_recipes_are_valid(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    assert (recipe.base.prm or recipe.base.backbone) == STARTS[name]
    assert from_mapping(Recipe, tomllib.loads(to_toml(recipe))) == recipe, "as a run saves it"


def test_every_shipped_recipe_is_known_here() -> None:
    files = [*RECIPES.glob("*.toml"), *(RECIPES / "ablations").glob("*.toml")]
    assert {str(path.relative_to(RECIPES).with_suffix("")) for path in files} == set(STARTS)


def test_the_page_of_the_paper_names_every_recipe_for_it() -> None:
    page = (RECIPES.parent / "docs" / "lab" / "recipes.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`((?:ablations|search|rl)/[\w.-]+|(?:qwen|reasoneval)[\w.-]+)`", rows))
    assert {name for name in named if not (RECIPES / f"{name}.toml").exists()} <= {"rl/qwen2.5-1.5b-prism"}
    also = "ablations/random-negatives ablations/perturbed-negatives ablations/keep-negative-margins"
    ours = "qwen2.5-math-prm-7b-ours thinkprm-7b-verdict ablations/log-odds ablations/hybrid"
    others = ("smollm2", "qwen2.5-coder")
    papers = {name for name in STARTS if not name.startswith(others)} - {*also.split(), *ours.split()}
    assert papers <= named


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_change_what_they_say(name: str) -> None:
    paper, recipe = load_recipe(PAPER), load_recipe(RECIPES / "ablations" / f"{name}.toml")
    changed = [field.name for field in fields(Recipe) if getattr(recipe, field.name) != getattr(paper, field.name)]
    assert changed == ABLATIONS[name]


def test_rows_of_the_paper_differ_in_one_thing() -> None:
    """Annotated pairs with and without rounds, pairwise and pointwise: the same pairs, whatever their order."""
    rounds, one_round, pointwise = (
        load_recipe(RECIPES / "ablations" / f"{name}.toml")
        for name in ("no-lookahead", "annotated-no-curriculum", "annotated-pointwise")
    )
    assert rounds.data == one_round.data == pointwise.data
    assert rounds.data.pairs.lookahead == "none"
    assert rounds.curriculum.bins == one_round.curriculum.bins, "which margins are left out"
    assert (rounds.curriculum.mode, one_round.curriculum.mode) == ("bins", "none")
    assert one_round.curriculum == pointwise.curriculum
    assert (one_round.objective.name, pointwise.objective.name) == ("sc", "bce")


def test_the_papers_recipe_is_the_papers() -> None:
    paper = load_recipe(PAPER)
    assert paper.curriculum.bins == ((0.5, 1.0), (0.3, 0.5), (0.2, 0.3), (0.1, 0.2))
    assert (paper.objective.name, paper.objective.space) == ("sc", "probability")
    assert (paper.data.pairs.lookahead, paper.data.pairs.audit) == ("all", "off")
    assert load_recipe(RECIPES / "reasoneval-7b.toml").curriculum.bins[-1] == (0.0, 0.1)


def test_epochs_beyond_reason_are_refused() -> None:
    """Their updates are planned before the first one."""
    with pytest.raises(ConfigError, match=r"^epochs = 1099511627776: must be 1 or more and at most 10000"):
        TrainSettings(epochs=2**40)
