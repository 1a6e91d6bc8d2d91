"""The standing attack: random trees × every family × many architectures, packed and grown in a session, must give the
scores that each (prefix, step) has as a sequence of its own through the architecture's own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from architectures import OTHERS, WINDOWED, exact, own_attention, random_prm
from references import separate_scores
from test_exactness import BLOCKS, WORDS, attention, budget
from transformers import CONFIG_MAPPING

from prism_prm.models.families import FAMILIES
from prism_prm.tree import Step, StepTree

KINDS = [kind for kind in (*WINDOWED, *OTHERS) if kind in CONFIG_MAPPING]
ALL = [(family, kind) for kind in KINDS for family in FAMILIES]
KINDS_OF_ATTENTION = ("mistral", "gemma3_text", "llama", "deepseek_v3", "gpt2", "phi", "qwen3_moe")
"""Windows, windows among full layers, full, latent key/values, learned positions, partial rotations, experts."""
SOME = [
    *((family, "qwen2") for family in FAMILIES),
    *zip(FAMILIES, KINDS_OF_ATTENTION, strict=True),
]
"""Every family on mixed layers, and every kind of attention with some family."""
BUDGETS = (1, 60, 200, 8192)


def random_tree(draw: np.random.Generator, family: str, most: int) -> StepTree:
    words = [word for word in WORDS if family != "skywork" or "\n" not in word]  # it is read line by line
    nodes = tuple(Step(" ".join(draw.choice(words, draw.integers(1, 4)))) for _ in range(draw.integers(2, most)))
    # Half of the nodes go on from the one before, so that there are long paths as well as many branches.
    parents = tuple(
        i - 1 if draw.random() < 0.5 else int(draw.integers(-1, i)) for i in range(len(nodes))
    )  # fmt: skip
    return StepTree(0, f"What is {draw.choice(words)}?", nodes, parents, ())


def grown(prm: Any, trees: Sequence[StepTree], draw: np.random.Generator) -> list[list[tuple[float, ...]]]:
    """The nodes' log-odds as a session gives them: new nodes come in random portions, all trees at once."""
    with prm.session([tree.problem for tree in trees]) as session:
        made = [{-1: root} for root in session.roots]
        while any(len(nodes) <= len(tree.nodes) for tree, nodes in zip(trees, made, strict=True)):
            ready = [
                (i, node)
                for i, tree in enumerate(trees)
                for node, parent in enumerate(tree.parents)
                if node not in made[i] and parent in made[i]
            ]
            some = [ready[k] for k in sorted(draw.choice(len(ready), draw.integers(1, len(ready) + 1), replace=False))]
            new = session.extend([(made[i][trees[i].parents[n]], trees[i].nodes[n].text) for i, n in some])
            for (i, n), node in zip(some, new, strict=True):
                made[i][n] = node
        return [[nodes[n].log_odds for n in range(len(tree.nodes))] for tree, nodes in zip(trees, made, strict=True)]


def attack(family: str, kind: str, seed: int, most: int) -> None:
    draw = np.random.default_rng([seed, list(FAMILIES).index(family), KINDS.index(kind)])
    prm = random_prm(family, kind)
    trees = [random_tree(draw, family, most) for _ in range(2)]
    with exact():
        with own_attention(prm):
            expected = [separate_scores(prm, tree).numpy(force=True) for tree in trees]
        with attention(int(draw.choice(BLOCKS))), budget(prm, int(draw.choice(BUDGETS))):
            packed = [scores.log_odds_NO for scores in prm.score_trees(trees)]
            session = grown(prm, trees, draw)
    for i, want in enumerate(expected):
        np.testing.assert_allclose(packed[i], want, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(session[i], want, rtol=1e-9, atol=1e-9)
    assert np.ptp(np.concatenate(expected)[:, 0]) > 1e-3, "the scores must differ, or the test says nothing"


@pytest.mark.slow
def test_enough_is_attacked() -> None:
    assert len(KINDS) >= 20
    assert sum(random_prm("qwen", kind).module.windows.get("sliding_attention") == 8 for kind in KINDS) >= 12


@pytest.mark.parametrize(("family", "kind"), SOME)
def test_attack(family: str, kind: str) -> None:
    attack(family, kind, seed=0, most=7)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), ALL)
def test_attack_at_length(family: str, kind: str) -> None:
    for seed in range(1, 9):
        attack(family, kind, seed, most=24)
