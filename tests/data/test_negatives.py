from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.data.formats import Draft
from prism_prm.data.pair_arrays import OtherProblems, add_perturbed, perturb
from prism_prm.data.pair_rules import PairSettings
from prism_prm.tree import Step, StepTree


@given(st.sampled_from(["x = 3 + 4", "0.05 kg", "a - b", "$x < y$", "10", "2 \\cdot 7.50"]), st.integers(0, 50))
def test_perturbing_changes_one_number_or_sign(text: str, seed: int) -> None:
    changed = perturb(text, random.Random(seed))
    assert changed is not None
    assert changed != text
    assert changed[0] == text[0] or text[0].isdecimal()


@pytest.mark.parametrize("text", ["Exactly.", "well-known", ""])
def test_nothing_to_perturb(text: str) -> None:
    assert perturb(text, random.Random(0)) is None


def test_numbers_keep_their_decimals() -> None:
    assert {perturb("0.05", random.Random(seed)) for seed in range(60)} == {"0.06", "0.04", "0.07", "0.03", "0.15"}


def test_perturbed_steps_become_nodes_without_labels() -> None:
    draft = Draft.of(StepTree.chain("p", [Step("x = 12", 1.0), Step("well", 1.0), Step("y = 3", 0.0)]))
    drops: Counter[str] = Counter()
    pairs = add_perturbed([draft], 0, PairSettings(perturbed=2), drops)
    tree = draft.tree(0)
    assert tree.trunk == (0, 1, 2)
    assert [(step.label, step.origin) for step in tree.nodes[3:]] == [(None, "perturbed")] * 2
    assert tree.parents[3:] == (-1, -1)
    assert (pairs.chosen.tolist(), pairs.rejected.tolist(), pairs.position.tolist()) == ([0, 0], [3, 4], [0, 0])
    assert len({tree.nodes[node].text for node in (0, 3, 4)}) == 3
    assert drops == {"nothing_to_change": 2}


def test_random_negatives_come_from_other_problems_of_the_same_split() -> None:
    others = OtherProblems(PairSettings(random=3), Counter())
    for i in range(40):
        steps = [Step(f"step {j} of {i % 20}", 1.0 if j else None) for j in range(4)]
        others.add(i, Draft.of(StepTree.chain(f"Problem {i % 20}", steps)), split=i % 2)
    anchor, offer = others.draw()
    assert len(anchor) == 40 * 3 * 3
    assert (anchor["problem"] != offer["problem"]).all()
    assert (anchor["split"] == offer["split"]).all()
    assert (anchor["position"] > 0).all()
    assert len(set(zip(anchor["tree"], anchor["position"], offer["tree"], offer["node"], strict=True))) == len(anchor)
    again = OtherProblems(PairSettings(random=3), Counter(), others.kept).draw()
    assert (again[1] == offer).all()


def test_one_problem_alone_has_no_random_negatives() -> None:
    drops: Counter[str] = Counter()
    others = OtherProblems(PairSettings(random=1), drops)
    others.add(0, Draft.of(StepTree.chain("p", [Step("a", 1.0), Step("b", 1.0)])), split=0)
    assert len(others.draw()[0]) == 0
    assert drops == {"no_other_problem": 2}
