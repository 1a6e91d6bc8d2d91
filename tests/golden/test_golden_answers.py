"""The verdicts of the answer judge, and which answers vote together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from golden import FOLDER, check
from prism_prm import Judge, extract_answer

POOLS = {"best_of_n_prm/math500_pool_250x32": 250, "best_of_n/math500_pool_100": 150,
         "best_of_n_prm/gsm8k_pool_250x32": 100}  # fmt: skip
"""Pools of solutions under PRISM_DATA → how many of their answers to judge."""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=1, seconds=30) as judge:  # so much that no verdict depends on the machine
        yield judge


def verdicts(judge: Judge, pairs: list[tuple[str, str | None]]) -> list[str]:
    found = judge.judge(pairs)
    return [("right" if one.correct else "wrong") + (f", {one.status}" if one.status != "ok" else "") for one in found]


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


@pytest.mark.real_data
@pytest.mark.parametrize("pool", POOLS)
def test_real_answers(pool: str, real_data: Path, judge: Judge) -> None:
    """All different answers of a pool's first problems. Only verdicts and digests are stored, no text."""
    texts: list[tuple[str, list[str]]] = []
    pairs: list[tuple[str, str | None]] = []
    groups: list[int] = []
    with (real_data / f"{pool}.jsonl").open(encoding="utf-8") as lines:
        while len(pairs) < POOLS[pool]:
            record = json.loads(next(lines))
            samples = record["solutions"] if "solutions" in record else record["samples"]
            solutions = [one["solution"] if "solution" in one else "\n\n".join(one["steps"]) for one in samples]
            texts.append((record["answer"], solutions))
            answers = list(dict.fromkeys(extract_answer(text).answer for text in solutions))
            keys = [one.key for one in judge.keys(answers)]
            groups += [len(pairs) + keys.index(key) for key in keys]
            pairs += [(record["answer"], answer) for answer in answers]
    found = {
        "data": digest(texts),
        "answers": digest(pairs),
        "verdicts": dict(enumerate(verdicts(judge, pairs))),
        "groups": groups,
    }
    check(f"answers_{pool.rpartition('/')[2]}", found, tolerance=0)


def test_our_own_answers(judge: Judge) -> None:
    """Pairs of every kind of answer. They are stored, since a strategy draws others with another hypothesis."""
    kinds = json.loads((FOLDER / "answer_pairs.json").read_text(encoding="utf-8"))
    found = {}
    for kind, pairs in kinds.items():
        keys = [judge.keys(pair) for pair in pairs]
        together = [", one vote" if one.key == other.key else "" for one, other in keys]
        found[kind] = {
            f"{reference} | {answer}": verdict + vote
            for (reference, answer), verdict, vote in zip(pairs, verdicts(judge, pairs), together, strict=True)
        }
    check("answers_of_our_own", found, tolerance=0)
