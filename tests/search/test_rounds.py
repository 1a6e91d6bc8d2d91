"""The rounds of a search, as they are kept for `prism view`: all that was written, and what became of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from prism_prm.errors import DataError
from prism_prm.search.engine import SearchEngine
from prism_prm.search.methods import SearchSettings
from prism_prm.search.rounds import RecordedSearch, Rounds, SearchRound, made_with, read_rounds, record_round
from prism_prm.search.tree import SearchResult
from worlds import FakePolicy, FakePrm

PROBLEMS = ["one", "two", "three"]
SETTINGS = SearchSettings(n=4, expand=2, max_steps=4)


def options(steps: tuple[str, ...]) -> dict[str, float]:
    """After two steps a solution may end; every step may be good or bad."""
    return {"good": 0.4, "bad": 0.3, "so so": 0.2, "end." if len(steps) > 1 else "more": 0.1}


def score(steps: tuple[str, ...]) -> float:
    return {"good": 0.9, "bad": 0.1, "so so": 0.5, "more": 0.6, "end.": 0.8}[steps[-1]] - 0.01 * len(steps)


def searched(
    path: Path, settings: SearchSettings, *, done: Sequence[str] = (), stop_after: int = 99
) -> list[SearchResult]:
    how = {"method": settings.method, "prm_weight": settings.prm_weight}
    todo = [problem for problem in PROBLEMS if problem not in done]
    found: list[SearchResult] = []
    told = 0

    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(Rounds(path, how, done)) as rounds:
        for event in SearchEngine(FakePolicy(options), FakePrm(score), settings, at_once=2).run(todo):
            if isinstance(event, SearchResult):
                found.append(event)
            elif isinstance(event, SearchRound):
                told += 1
                if told > stop_after:
                    raise KeyboardInterrupt
                rounds.add(todo[event.problem], record_round(event, likelihood=settings.prm_weight < 1))
    return found


def texts(seen: RecordedSearch, number: int) -> tuple[str, ...]:
    return tuple(text for at in seen.path(number) if (text := seen.steps[at - 1].text))


CASES = {
    "sample": replace(SETTINGS, method="sample"),
    "greedy": replace(SETTINGS, method="greedy"),
    "beam": replace(SETTINGS, method="beam"),
    "beam, looking ahead": replace(SETTINGS, method="beam", lookahead=1),
    "beam, by likelihood": replace(SETTINGS, method="beam", prm_weight=0.5),
    "dvts": replace(SETTINGS, method="dvts"),
    "dvts, looking ahead": replace(SETTINGS, method="dvts", lookahead=2),
    "particle": replace(SETTINGS, method="particle"),
    "a budget": replace(SETTINGS, method="beam", max_policy_tokens=30),
    "a budget that ends while looking ahead": replace(SETTINGS, method="beam", lookahead=2, max_policy_tokens=60),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rounds_tell_the_whole_search(name: str, tmp_path: Path) -> None:
    settings = CASES[name]
    found = searched(tmp_path / "rounds.jsonl", settings)
    seen = {one.key: one for one in read_rounds(tmp_path / "rounds.jsonl")}
    assert set(seen) == set(PROBLEMS)
    for one in found:
        own = seen[PROBLEMS[one.problem]]
        assert own.result is not None
        assert [texts(own, leaf) for leaf in own.result] == [solution.steps for solution in one.solutions]
        asked = settings.method not in ("sample", "greedy")
        for number, step in enumerate(own.steps, start=1):
            assert step.score == (pytest.approx(score(texts(own, number))) if asked and step.text else None)
            assert step.parent < number
            assert (step.likelihood is not None) == (settings.prm_weight < 1)
        written = sum(len(step.text) for step in own.steps)
        assert written == one.policy_tokens, "letters are tokens: nothing that was written is missing"


def test_a_round_of_beam_keeps_the_best_and_shows_the_rest(tmp_path: Path) -> None:
    settings = replace(SETTINGS, method="beam", n=8, expand=4)
    searched(tmp_path / "rounds.jsonl", settings)
    for seen in read_rounds(tmp_path / "rounds.jsonl"):
        first = {number: step for number, step in enumerate(seen.steps, start=1) if step.round == 0}
        assert len(first) == 8
        assert seen.kept[0] is not None
        distinct = {step.text: number for number, step in reversed(first.items())}
        best = sorted(distinct.values(), key=lambda number: -(first[number].score or 0))[:2]
        assert sorted(seen.kept[0]) == sorted(best)
        expanded = {step.parent for step in seen.steps if step.round == 1}
        assert expanded == {number for number in seen.kept[0] if not first[number].ending}


def test_looking_ahead_decides_later(tmp_path: Path) -> None:
    searched(tmp_path / "rounds.jsonl", CASES["beam, looking ahead"])
    seen = read_rounds(tmp_path / "rounds.jsonl")[0]
    assert seen.kept[0] is None
    assert seen.kept[1] is not None
    assert {step.ahead for step in seen.steps if step.round == 0} == {False}
    assert {step.ahead for step in seen.steps if step.round == 1} == {True}
    assert {seen.steps[number - 1].round for number in seen.kept[1]} == {0}


def test_a_text_is_written_once_per_round(tmp_path: Path) -> None:
    searched(tmp_path / "rounds.jsonl", replace(SETTINGS, method="particle", n=16))
    for line in (tmp_path / "rounds.jsonl").read_text().splitlines()[1:]:
        written = [step[1] for step in json.loads(line).get("new", []) if isinstance(step[1], str)]
        assert len(written) == len(set(written))
    assert made_with(tmp_path / "rounds.jsonl") == {"method": "particle", "prm_weight": 1.0}


def test_a_stopped_search_goes_on(tmp_path: Path) -> None:
    settings = CASES["beam"]
    searched(tmp_path / "whole.jsonl", settings)
    searched(tmp_path / "stopped.jsonl", settings, stop_after=10)
    half = read_rounds(tmp_path / "stopped.jsonl")
    assert [(seen.key, seen.result is None) for seen in half] == [("one", False), ("two", False), ("three", True)]
    with (tmp_path / "stopped.jsonl").open("a") as file:
        file.write('{"search": 1, "new": [[0, "ha')
    assert len(read_rounds(tmp_path / "stopped.jsonl")) == len(half), "half a line is no line yet"
    searched(tmp_path / "stopped.jsonl", settings, done=["one", "two"])
    by_key = [{seen.key: seen for seen in read_rounds(tmp_path / name)} for name in ("whole.jsonl", "stopped.jsonl")]
    assert by_key[0] == by_key[1]


def test_a_search_that_begins_anew_forgets_the_old_rounds(tmp_path: Path) -> None:
    searched(tmp_path / "rounds.jsonl", CASES["beam"], stop_after=3)
    searched(tmp_path / "rounds.jsonl", CASES["dvts"])
    searched(tmp_path / "fresh.jsonl", CASES["dvts"])
    assert (tmp_path / "rounds.jsonl").read_bytes() == (tmp_path / "fresh.jsonl").read_bytes()


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", '{"search": 7, "new": []}', '{"search": 0, "new": [[5, "x", 0.5, ""]]}', '{"search": 0}',
     '{"search": 0, "new": [[0, 9, 0.5, ""]]}', '{"search": 0, "new": [[0]]}', '{"new": []}'],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{}\n{"search": 0, "key": "p"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"rounds\.jsonl"):
        read_rounds(tmp_path / "rounds.jsonl")
