"""Sums modulo 7, which the PRMs that ship with the package can judge, as every kind of benchmark and as a pool.

All is drawn here, so that nothing but the code under test can change it.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from golden_commands import write_lines

MODULUS = 7
SPLITS = ("gsm8k", "math", "olympiadbench", "omnimath")
CLASSES = (
    "redundency", "circular", "counterfactual", "step_contradiction", "domain_inconsistency", "confidence",
    "missing_condition", "deception", "multi_solutions",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    start: int
    operations: tuple[tuple[str, int], ...]

    @classmethod
    def draw(cls, rng: random.Random) -> Problem:
        operations = [(rng.choice("+-"), rng.randrange(1, MODULUS)) for _ in range(rng.randint(3, 5))]
        return cls(rng.randrange(MODULUS), tuple(operations))

    @property
    def text(self) -> str:
        return f"{self.start}{''.join(f'{sign}{number}' for sign, number in self.operations)}"

    @property
    def answer(self) -> str:
        return self.solution()[-1].removeprefix("#### ")

    def solution(self, errors: Mapping[int, int] | None = None) -> list[str]:
        """Its steps; `errors` maps a step to what its result is off by."""
        value, steps = self.start, []
        for at, (sign, number) in enumerate(self.operations):
            result = (value + (number if sign == "+" else -number) + (errors or {}).get(at, 0)) % MODULUS
            steps.append(f"{value}{sign}{number}={result}")
            value = result
        return [*steps, f"#### {value}"]


def problems(rng: random.Random, count: int) -> Iterator[Problem]:
    """Different problems, so that each is a cluster of its own."""
    seen: set[str] = set()
    while len(seen) < count:
        problem = Problem.draw(rng)
        if problem.text not in seen:
            seen.add(problem.text)
            yield problem


def one_error(problem: Problem, rng: random.Random) -> tuple[int, dict[int, int]]:
    at = rng.randrange(len(problem.operations))
    return at, {at: rng.randrange(1, MODULUS)}


def processbench(rng: random.Random, per_split: int) -> Iterator[dict[str, Any]]:
    for number, problem in enumerate(problems(rng, per_split * len(SPLITS))):
        at, errors = one_error(problem, rng) if number % 5 < 3 else (-1, {})
        name = f"{SPLITS[number % len(SPLITS)]}-{number // len(SPLITS)}"
        yield {"id": name, "problem": problem.text, "steps": problem.solution(errors), "label": at}


def prmbench(rng: random.Random, per_class: int) -> Iterator[dict[str, Any]]:
    for number, problem in enumerate(problems(rng, per_class * len(CLASSES))):
        kind = CLASSES[number % len(CLASSES)]
        at, errors = (0, {}) if kind == "multi_solutions" else one_error(problem, rng)
        steps = problem.solution(errors)
        if kind == "redundency":
            steps = [*problem.solution()[: at + 1], *problem.solution()[at:]]
        yield {
            "classification": kind,
            "idx": f"w_{number // len(CLASSES)}",
            "question": problem.text,
            "modified_question": problem.text,
            "modified_process": steps,
            "error_steps": [] if kind == "multi_solutions" else [at + (2 if kind == "redundency" else 1)],
            "original_question": problem.text,
            "original_process": problem.solution(),
        }


def prm800k(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Right solutions, beside most of whose steps stand wrong ones."""
    for problem in problems(rng, count):
        steps = []
        for at, right in enumerate(problem.solution()):
            offers = [{"text": right, "rating": 1}]
            offers += [
                {"text": problem.solution({at: off})[at], "rating": rng.choice([-1, -1, -1, 0])}
                for off in rng.sample(range(1, MODULUS), rng.choice([0, 1, 2]) if at < len(problem.operations) else 0)
            ]
            steps.append({"completions": offers, "human_completion": None, "chosen_completion": 0})
        question = {"problem": problem.text, "ground_truth_answer": problem.answer}
        yield {"question": question, "label": {"steps": steps, "finish_reason": "solution"}}


def pool(rng: random.Random, count: int, per_problem: int) -> Iterator[dict[str, Any]]:
    """About half of the solutions have the right answer, some in spite of errors; none is there twice."""
    for number, problem in enumerate(problems(rng, count)):
        found: dict[tuple[str, ...], None] = {}
        while len(found) < per_problem - number % 2:
            at, errors = one_error(problem, rng)
            last = len(problem.operations) - 1
            if len(found) % 2 and at < last:
                errors[last] = -errors[at]
            found.setdefault(tuple(problem.solution(errors if found else {})))
        listed = list(found)
        rng.shuffle(listed)
        yield {
            "name": f"sum-{number}",
            "problem": problem.text,
            "answer": problem.answer,
            "solutions": [{"steps": list(steps), "scores": likely(rng, len(steps))} for steps in listed],
        }


def likely(rng: random.Random, count: int) -> list[float]:
    """Probabilities of which some are equal."""
    return [rng.randrange(1, 40) / 40 for _ in range(count)]


def write_world(folder: Path) -> None:
    write_lines(folder / "processbench" / "all.jsonl", processbench(random.Random(1), 12))
    write_lines(folder / "prmbench" / "all.jsonl", prmbench(random.Random(2), 5))
    write_lines(folder / "labeled" / "prm800k.jsonl", prm800k(random.Random(3), 24))
    write_lines(folder / "pool.jsonl", pool(random.Random(4), 14, 6))


def made_up(source: Path, out: Path) -> None:
    """A table like `source`, with the card of its PRM but other scores: those of a PRM differ a little between CPUs.

    They are on its side of ½, more or less so, and some are equal.
    """
    table = pq.read_table(source)
    kind = table.schema.field("log_odds").type
    given = table["log_odds"].to_pylist()
    assert all(abs(one["correct"]) > 0.01 for one in given), "a PRM's verdict that another CPU could change"
    name = out.stem.replace("labeled", "labelled")  # the benchmark's old spelling, which the golden values depend on
    new = [
        (1.0 if one["correct"] > 0 else -1.0) + (zlib.crc32(f"{name} {i}".encode()) % 81 - 40) / 20
        for i, one in enumerate(given)
    ]
    for name, column in {
        "log_odds": pa.array([{"correct": one} for one in new], kind),
        "probability": pa.array([1 / (1 + math.exp(-one)) for one in new]),
    }.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), column)
    noted = {key: value for key, value in pq.read_metadata(source).metadata.items() if key != b"ARROW:schema"}
    pq.write_table(table.replace_schema_metadata(noted), out)


def predictions(table: Path, *, as_labels: bool = False) -> list[dict[str, Any]]:
    """The scores of a table as other tools give them, with a redundancy of each step."""
    found: dict[str, list[float]] = {}
    for row in pq.read_table(table).to_pylist():
        found.setdefault(row["name"], []).append(row["probability"])
    if as_labels:
        return [{"id": name, "labels": [one > 0.5 for one in scores]} for name, scores in found.items()]
    return [
        {"id": name, "scores": scores, "redundancy": made_up_values(f"redundancy of {name}", len(scores))}
        for name, scores in found.items()
    ]


def made_up_values(name: str, count: int) -> list[float]:
    """Values from 0 to 0.99 that depend on nothing but the name."""
    return [zlib.crc32(f"{name} {i}".encode()) % 100 / 100 for i in range(count)]
