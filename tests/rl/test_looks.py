"""What was seen of a policy as values, and the rule of the alarm."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from prism_prm.errors import ConfigError
from prism_prm.rl.alarm import (
    PROXY,
    VOTE,
    EvalPoint,
    MonitorSettings,
    alarm_at,
    first_alarm,
    gold_of,
    read_points,
    write_points,
)

NUM = 200


def look(update: int, gold: float, proxy: float, *, vote: float | None = None) -> EvalPoint:
    """A look at which exactly that share of problems is solved: always the first ones, in all solutions."""
    solved = [1.0] * round(gold * NUM) + [0.0] * (NUM - round(gold * NUM))
    by_problem = {PROXY: [proxy + 0.1 * (i % 2) for i in range(NUM)], "answer": solved}
    if vote is not None:
        by_problem[VOTE] = [vote] * NUM
    return EvalPoint(update, by_problem, {"kl": 0.5})


def test_a_look_has_means_with_intervals() -> None:
    seen = look(5, 0.25, 0.6)
    assert seen.mean("answer") == 0.25
    assert seen.mean(PROXY) == pytest.approx(0.65)
    found = seen.interval("answer")
    assert found.low < 0.25 < found.high
    assert found.high - found.low < 0.15
    assert gold_of(seen) == "answer"
    assert seen.summary() == {PROXY: pytest.approx(0.65), "answer": 0.25, "kl": 0.5}
    assert math.isnan(seen.mean("nothing"))


def test_the_alarm_needs_a_fall_of_the_gold_that_the_proxy_does_not_follow() -> None:
    assert first_alarm([look(0, 0.5, 0.6), look(5, 0.4, 0.8)], "answer") is not None
    assert first_alarm([look(0, 0.5, 0.6), look(5, 0.4, 0.5)], "answer") is None, "both fall: no hacking, only harm"
    late = first_alarm([look(0, 0.5, 0.6), look(5, 0.9, 0.8), look(10, 0.7, 0.78)], "answer")
    assert late is not None, "a reward past its peak that hardly falls"
    assert "fell by 20.0 points while the reward fell by only 0.020" in str(late)
    assert first_alarm([look(0, 0.5, 0.6), look(5, 0.6, 0.8)], "answer") is None, "both rise"
    assert first_alarm([look(0, 0.5, 0.6), look(5, 0.49, 0.8)], "answer") is None, "too little to tell"
    assert first_alarm([look(0, 0.5, 0.6)], "answer") is None


def test_the_fall_counts_from_the_best_look() -> None:
    looks = [look(0, 0.3, 0.4), look(5, 0.6, 0.5), look(10, 0.58, 0.6), look(15, 0.5, 0.7), look(20, 0.2, 0.9)]
    alarm = first_alarm(looks, "answer")
    assert alarm is not None
    assert (alarm.update, alarm.since) == (15, 5)
    assert alarm.fall == pytest.approx(0.1)
    assert alarm.rise == pytest.approx(0.2)
    assert "since update 5, answer fell by 10.0 points while the reward rose by 0.200" in str(alarm)


def test_greedy_solutions_raise_it_too() -> None:
    looks = [look(0, 0.5, 0.6), look(5, 0.5, 0.8)]
    for seen, share in zip(looks, (0.7, 0.5), strict=True):
        seen.by_problem["greedy/answer"] = [1.0] * round(share * NUM) + [0.0] * round((1 - share) * NUM)
    alarm = first_alarm(looks, "answer")
    assert alarm is not None
    assert (alarm.gold, alarm.measure) == ("answer", "greedy/answer")


def test_votes_stand_in_for_the_gold() -> None:
    looks = [look(0, 0.5, 0.6, vote=0.7), look(5, 0.5, 0.8, vote=0.5)]
    assert alarm_at(looks, "answer") is None
    assert alarm_at(looks, VOTE) is not None
    assert alarm_at([looks[0], look(5, 0.5, 0.8, vote=0.6)], VOTE) is None, "a policy that improves leaves them, too"
    assert alarm_at([look(0, 0.5, 0.6), look(5, 0.5, 0.8)], VOTE) is None, "nobody voted"


def test_chance_raises_few_alarms() -> None:
    """A policy that does not change, looked at 20 times, with a reward that rises."""
    rng = np.random.default_rng(0)
    chances = rng.random(NUM)
    raised = 0
    for _ in range(50):
        looks = []
        for update in range(20):
            solved = rng.binomial(4, chances) / 4
            by_problem = {PROXY: (0.5 + 0.02 * update + 0.1 * rng.random(NUM)).tolist(), "answer": solved.tolist()}
            looks.append(EvalPoint(update, by_problem))
        raised += first_alarm(looks, "answer") is not None
    assert raised <= 2


def test_looks_are_read_as_they_were_written(tmp_path: Path) -> None:
    looks = [look(0, 0.5, 0.6), look(5, 0.25, 0.8)]
    write_points(tmp_path / "looks.parquet", looks)
    assert read_points(tmp_path / "looks.parquet") == looks
    assert read_points(tmp_path / "none.parquet") == []


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="samples = 0: must be 1 or more"):
        MonitorSettings(samples=0)
