"""Tables of scores are taken over only if everything that decides them is the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from some_pairs import random_examples

from prism_prm.records import Step, StepTree
from prism_prm.scorer import Prm
from prism_prm.training import scored
from prism_prm.training.examples import Examples, labelled_steps
from prism_prm.training.scored import read_column, score_examples, write_scored

Tiny = Callable[..., Any]


@pytest.fixture
def scorings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples each call of the model scored."""
    calls: list[int] = []

    def counting(prm: Prm, examples: Examples) -> Any:
        calls.append(len(examples))
        return score_examples(prm, examples)

    monkeypatch.setattr(scored, "score_examples", counting)
    return calls


def with_texts(examples: Examples, change: Callable[[str], str], trees: tuple[int, ...] = (0,)) -> Examples:
    """The same pairs by their ids, with other texts of some trees' last steps."""
    changed = dict(examples.trees)
    for tree_id in trees:
        tree = changed[tree_id]
        nodes = (*tree.nodes[:-1], replace(tree.nodes[-1], text=change(tree.nodes[-1].text)))
        changed[tree_id] = replace(tree, nodes=nodes)
    return replace(examples, trees=changed)


def with_problem(examples: Examples) -> Examples:
    return replace(examples, trees={**examples.trees, 1: replace(examples.trees[1], problem="another problem")})


def configured(prm: Prm, **settings: Any) -> Prm:
    other = copy.copy(prm)
    for name, value in settings.items():
        setattr(other, name, value)
    return other


@pytest.mark.parametrize("kind", ["pairs", "steps"])
def test_a_table_is_taken_over_only_if_all_that_decides_it_is_the_same(
    tmp_path: Path, tiny_prm: Tiny, scorings: list[int], kind: str
) -> None:
    prm = tiny_prm("qwen", "qwen2")
    pairs = random_examples()
    examples = pairs if kind == "pairs" else labelled_steps(pairs.trees)
    path = tmp_path / "scores.parquet"
    column = "margin" if kind == "pairs" else "log_odds"

    def scores(prm: Prm, examples: Examples) -> np.ndarray:
        write_scored(path, prm, examples)
        return read_column(path, column, len(examples))

    first = scores(prm, examples)
    scorings.clear()
    assert np.array_equal(scores(prm, examples), first)
    assert not scorings, "the same again: nothing is scored"
    others: dict[str, tuple[Prm, Examples]] = {
        "a text": (prm, with_texts(examples, lambda text: text + " more")),
        "a problem": (prm, with_problem(examples)),
        "context": (configured(prm, context=prm.context - 1), examples),
        "on_too_long": (configured(prm, on_too_long="drop-left-steps"), examples),
        "dtype": (tiny_prm("qwen", "qwen2", "float32"), examples),
        "family": (tiny_prm("skywork", "qwen2"), examples),
        "fewer": (prm, examples.take(np.arange(len(examples) - 1))),
    }
    for what, (other_prm, other) in others.items():
        scorings.clear()
        found = scores(other_prm, other)
        assert sum(scorings) == len(other), what
        expected = score_examples(other_prm, other)
        if kind == "steps":
            np.testing.assert_allclose(found, expected[:, 0], atol=1e-5)
        scores(prm, examples)


def test_a_text_that_changed_is_not_met_by_an_old_margin(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    examples = random_examples()
    changed = with_texts(examples, lambda _: "something else entirely")
    for some, path in ((examples, tmp_path / "old.parquet"), (changed, tmp_path / "new.parquet")):
        write_scored(path, prm, some)
    write_scored(tmp_path / "old.parquet", prm, changed)
    old, new = (pq.read_table(tmp_path / f"{name}.parquet")["margin"].to_pylist() for name in ("old", "new"))
    assert old == new


def test_portions_of_a_stopped_run_are_used_only_for_the_same_texts(
    tmp_path: Path, tiny_prm: Tiny, scorings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored, "TREES_PER_PART", 1)
    prm = tiny_prm("qwen", "qwen2")
    examples = random_examples()
    per_tree = len(examples) // 5

    class StoppedError(Exception):
        pass

    def stop_after_three(_: int) -> None:
        if len(scorings) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        write_scored(tmp_path / "m.parquet", prm, examples, advance=stop_after_three)
    scorings.clear()
    write_scored(tmp_path / "m.parquet", prm, with_texts(examples, str.upper, trees=(2,)))
    assert sum(scorings) == 4 * per_tree, "two portions are as they were; a negative of tree 1 is a text of tree 2"
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]


def test_portions_of_more_pairs_and_strange_files_do_not_stay(tmp_path: Path, tiny_prm: Tiny) -> None:
    prm = tiny_prm("qwen", "qwen2")
    (tmp_path / "m.parts").mkdir()
    (tmp_path / "m.parts" / "000007.parquet").write_bytes(b"of another run")
    (tmp_path / "m.parquet").write_bytes(b"cut off")
    write_scored(tmp_path / "m.parquet", prm, random_examples())
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]


def test_tables_without_a_key_are_made_anew(tmp_path: Path, tiny_prm: Tiny, scorings: list[int]) -> None:
    prm = tiny_prm("qwen", "qwen2")
    examples = random_examples()
    write_scored(tmp_path / "m.parquet", prm, examples)
    table = pq.read_table(tmp_path / "m.parquet")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "m.parquet")
    scorings.clear()
    write_scored(tmp_path / "m.parquet", prm, examples)
    assert sum(scorings) == len(examples)
    assert pq.read_table(tmp_path / "m.parquet").equals(table)


def test_what_a_key_is_made_of() -> None:
    tree = StepTree.chain("p", ["a", Step("b", label=1.0)])
    one = Examples({0: tree}, *(np.array([0]) for _ in range(5)))
    assert one.content_key() == replace(one, trees={0: tree, 1: tree}).content_key(), "trees that no pair names"
    assert one.content_key() != replace(one, chosen=np.array([1])).content_key()
    assert one.content_key() != replace(one, ids=np.array([7])).content_key()
    assert one.content_key() != replace(one, labels=np.array([1.0])).content_key()
    assert replace(one, labels=np.array([0.0])).content_key() != replace(one, labels=np.array([1.0])).content_key()
