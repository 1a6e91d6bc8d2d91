"""A `PRM` as its users see it: who it is, what it can score, and how many tokens that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prism_prm import init_prm, load_prm
from prism_prm.scorer import Scorer
from prism_prm.tree import Step, StepTree


@pytest.fixture(scope="module")
def folder(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prm") / "prm"
    init_prm(tiny_lm("llama"), family="qwen").save(folder)
    return folder


def test_the_identity_is_all_that_decides_scores(folder: Path) -> None:
    prm: Scorer = load_prm(folder)
    assert prm.identity() == load_prm(folder, token_budget=99).identity(), "a batch's size decides nothing"
    others = [
        load_prm(folder, context=50),
        load_prm(folder, on_too_long="skip"),
        load_prm(folder, on_too_long="window"),
        load_prm(folder, dtype="bfloat16"),
    ]
    assert len({prm.identity(), *(other.identity() for other in others)}) == 5


def test_tokens_are_those_that_a_session_reads(folder: Path) -> None:
    prm = load_prm(folder)
    tree = StepTree(0, "1 + 2?", tuple(map(Step, ("so 3", "it is 4", "hence 3"))), (-1, -1, 0), ())
    with prm.session([tree.problem]) as session:
        (first, second) = session.extend([(session.roots[0], "so 3"), (session.roots[0], "it is 4")])
        (third,) = session.extend([(first, "hence 3")])
        nodes = (session.roots[0], first, second, third)
        assert prm.count_tokens(tree) == session.num_tokens == sum(node.num_tokens for node in nodes)


def test_what_has_no_token_cannot_be_scored(folder: Path, tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    assert load_prm(folder).can_score("so 3", 0)
    assert not load_prm(folder).can_score("", 0)
    init_prm(tiny_lm("llama"), family="reasoneval").save(tmp_path / "prm")
    compat = load_prm(tmp_path / "prm", compat=True)
    short = next(text for text in ("a", "3", "x") if len(compat.family.text.plain(text)) == 1)
    assert [compat.can_score(text, 0) for text in (short, "so 3 and 4")] == [False, True]
