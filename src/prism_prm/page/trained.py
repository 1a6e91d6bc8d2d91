"""A policy in training as a document: its reward against the truth, what else was measured, and what it wrote."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from prism_prm.foreign import reading_parquet
from prism_prm.page.document import Document, Place, Results
from prism_prm.rl.looks import GREEDY, LOOKS, PROXY, VOTE, first_alarm, gold_of, read_looks
from prism_prm.rl.samples import SAMPLES, read_samples
from prism_prm.stats import Interval


def run_documents(place: Place, _results: Results) -> list[Document] | None:
    """The run of a folder of `prism grpo`, which may still go on."""
    looks = place.path / LOOKS
    if not looks.is_file():
        return None
    return [Document("grpo", place.name, partial(_body, place.path), (looks, place.path / SAMPLES))]


def _body(folder: Path) -> dict[str, Any]:
    with reading_parquet(folder / LOOKS, "run `prism grpo` again"):
        looks = read_looks(folder / LOOKS)
    gold = gold_of(looks[0])
    lines = {PROXY: "mean reward", gold: "solved, sampled", f"{GREEDY}/{gold}": "solved, greedy"}
    samples = read_samples(folder)
    alarms = {name: first_alarm(looks, name) for name in (gold, VOTE) if name in looks[0].by_problem}
    return {
        "updates": [look.update for look in looks],
        "lines": [
            {"name": name, "title": title, "points": [_interval(look.interval(name)) for look in looks]}
            for name, title in lines.items()
            if all(name in look.by_problem for look in looks)
        ],
        "numbers": {name: [look.numbers.get(name) for look in looks] for name in looks[-1].numbers},
        "num_problems": len(looks[0].by_problem[gold]),
        "alarms": [
            {"by": "true answers" if name == gold else "votes of the untrained policy", "raised": alarm is not None,
             "update": alarm and alarm.update, "text": str(alarm) if alarm else ""}
            for name, alarm in alarms.items()
        ],
        "problems": samples.problems,
        "samples": samples.looks,
    }  # fmt: skip


def _interval(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]
