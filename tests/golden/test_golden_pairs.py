"""What `prism pairs` makes of labeled solutions: the trees, the pairs and the summary, not their encoding."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from golden_commands import columns, digest, prism, read_json, rows, write_lines

from golden import FLOAT64, check


def completion(text: str, rating: int | None) -> dict[str, Any]:
    return {"text": text, "rating": rating, "flagged": False}


def position(
    *ratings: tuple[str, int | None], chosen: int | None = 0, human: tuple[str, int | None] | None = None
) -> dict[str, Any]:
    return {
        "completions": [completion(*one) for one in ratings],
        "human_completion": None if human is None else completion(*human),
        "chosen_completion": chosen,
    }


def record(problem: str, answer: str | None, finish: str | None, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "labeler": "someone",
        "timestamp": None,
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": problem, "ground_truth_answer": answer},
        "label": {"steps": list(steps), "finish_reason": finish},
    } | more


APPLES = record(
    "Ann has 3 apples and buys 4 bags of 5. How many apples has she?", "23", "solution",
    position(("She buys 4 * 5 = 20 apples.", 1), ("She buys 4 + 5 = 9 apples.", -1), ("Let us count bags.", 0)),
    position(
        ("Then she has 20 + 3 = 23 apples.", 1),
        ("Then she has 20 + 3 = 24 apples.", -1),
        ("Then she has 20 + 3 = 24 apples.", -1),
        ("Then she has 20 + 3 = 23 apples.", 1),
        ("Then she has 20 apples.", None),
        ("The bags do not count, so 3.", -1),
    ),
    position(("# Answer\n\n23", 1), ("# Answer\n\n20", -1), ("# Answer\n\n23", -1)),
)  # fmt: skip
HUMAN = record(
    "Solve 2x + 6 = 20 for x.", "7", "solution",
    position(("Subtract 6: 2x = 14.", 1), ("Subtract 6: 2x = 26.", -1)),
    position(("Divide by 3: x = 5.", -1), ("Divide by 4: x = 4.", 0), chosen=None, human=("Divide by 2: x = 7.", None)),
    position(("Check: 2 * 7 + 6 = 20.", 1), human=("Check it: 14 + 6 = 20.", 1)),
    position(("# Answer\n\n7", 1)),
)  # fmt: skip
FOUND_ERROR = record(
    "What is the sum of the first 10 positive odd numbers?", "100", "found_error",
    position(("The n-th odd number is 2n - 1.", 1)),
    position(("The 10th is 2 * 10 - 1 = 19.", 1), ("The 10th is 2 * 10 + 1 = 21.", -1)),
    position(("So the sum is 19 * 10 = 190.", -1), ("So the sum is 19 + 1 = 20.", -1), chosen=None),
)  # fmt: skip
GAVE_UP = record("Is it so?", None, "give_up", position(("It depends.", 0), ("It is.", None), chosen=None))
BAD_PROBLEM = record("What is the number in the picture?", None, "bad_problem", position(("It is 3.", -1), chosen=None))
NO_COMPLETIONS = record(
    "How many?", "1", "give_up", {"completions": [], "human_completion": None, "chosen_completion": None}
)
REGROUPED = {
    "question": {"problem": "Find the area of a square with side $s = \\frac{3}{2}$.", "ground_truth_answer": "9/4"},
    "label": {
        "steps": [
            {"completions": [{"text": "The area is $s^2$.", "rating": 1}], "chosen_completion": 0},
            {
                "completions": None,
                "human_completion": {"text": "That is $\\frac{9}{4}$.", "rating": None},
                "chosen_completion": None,
            },
        ]
    },
}
LOOKAHEAD = record(
    "A train goes 60 km per hour for 2 hours, then 90 km per hour for 3 hours. How far does it go?", "390", "solution",
    position(("First it goes 60 * 2 = 120 km.", 1), ("First it goes 60 + 2 = 62 km.", -1)),
    position(("Then it goes 90 * 3 = 270 km.", 1)),
    position(("Let d be the distance.", 0)),
    position(("So the distance d = 120 + 270 = 390 km.", 1)),
    position(("so the distance d = 120 +  270 = 390 km.", 1)),
    position(("Thus the distance d = 120 + 270 = 390 km.", 1)),
    position(("# Answer\n\n390", 1)),
)  # fmt: skip
SHORT = record("What is 7 + 0.5?", "7.5", "solution", position(("7.5", 1), ("8.5", -1), ("7.05", 0)))
NEVER_RIGHT = record("What is 9 - 4?", "5", "solution", position(("9 - 4 = 6", -1)), position(("# Answer\n\n6", -1)))
CONTROL = record(
    "What is $1{,}000 + 1$?", "1001", "solution", position(("It is 1,001.", 1), ("It is 1,010.", -1)),
    position(("# Answer\n\n1001", 1)), is_quality_control_question=True,
)  # fmt: skip
SCREENING = record(
    "WHAT IS  $1,000+1$ ?", "1001", "solution", position(("One more: 1001.", 1), ("One less: 999.", -1)),
    position(("# Answer\n\n1001", 1)), is_initial_screening_question=True,
)  # fmt: skip
UNICODE = record(
    "Für welches α gilt 3α ≥ 12?", "α ≥ 4", "solution", position(("Durch 3: α ≥ 4.", 1), ("Durch 3: α ≤ 4.", -1)),
    position(("α − 4 ≥ 0 ✓", 1), ("α + 4 ≥ 0", -1)),
)  # fmt: skip
RECORDS = [
    APPLES, HUMAN, FOUND_ERROR, GAVE_UP, BAD_PROBLEM, NO_COMPLETIONS, REGROUPED, LOOKAHEAD, SHORT, NEVER_RIGHT, CONTROL,
    SCREENING, UNICODE,
]  # fmt: skip

BAD = [
    record("Who knows?", "1", "solution", position(("1", 2))),
    record("Who knows?", "1", "solution", position(("1", 1), chosen=3)),
    record("Who knows?", "1", "solution", position(("1", -1), chosen=None), position(("2", 1))),
    record("Who knows?", "1", "solution", position((" ", 1))),
    record(" ", "1", "solution", position(("1", 1))),
    {"question": {"problem": "Who knows?"}, "label": {"steps": "none"}},
]

VARIANTS: dict[str, list[str]] = {
    "defaults": [],
    "splits": [
        "--split", "train=0.6,test=0.4", "--seed", "3", "--set", "neutral=negative", "--lookahead", "2",
        "--set", "audit=keep", "--set", "max_per_position=2", "--set", "drop_finish=[]",
    ],
    "no_audit": [
        "--set", "audit=off", "--set", "min_gap=2", "--set", "max_gap=4", "--set", "neutral=positive", "--set",
        "drop_finish=found_error,give_up", "--set", "quality_control=drop", "--set", "screening=drop",
    ],
    "ablations": ["--lookahead", "none", "--set", "pairs.random=2", "--set", "perturbed=1", "--seed", "5"],
    "exclusions": ["--exclude", "benchmark.jsonl", "--set", "exclude_ngram=4", "--set", "positive_above=0.9"],
    "bad_records": ["--on-bad-record", "skip"],
}  # fmt: skip

OTHER_FORMATS: dict[str, list[dict[str, Any]]] = {
    "shepherd": [
        {
            "input": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 ки\nStep 2: 2 + 1 = 4 ки",
            "label": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 +\nStep 2: 2 + 1 = 4 -",
            "task": "GSM8K",
        }
    ],
    "shepherd_split": [
        {
            "questions": "What is 2 + 3 + 4?",
            "solution": {
                "Step 1": {"content": "2 + 3 = 5", "label": 1},
                "Step 2": {"content": "5 + 4 = 9. The answer is: 9", "label": 1},
            },
        }
    ],
    "stepwise": [
        {"prompt": "What is 8 / 2 - 1?", "completions": ["8 / 2 = 4", "4 - 1 = 2"], "labels": [True, False]},
        {"prompt": "What is 8 / 4 + 7?", "completions": ["8 / 4 = 2", "2 + 7 = 9"], "labels": [True, True]},
    ],
    "processbench": [
        {"problem": "What is 6 * 7 + 1?", "steps": ["6 * 7 = 42", "42 + 1 = 43"], "label": -1, "id": "gsm8k-0"},
        {"problem": "What is 6 * 8 + 1?", "steps": ["6 * 8 = 46", "46 + 1 = 47"], "label": 0, "id": "gsm8k-1"},
    ],
    "prmbench": [
        {
            "classification": "redundency",
            "idx": "a_1",
            "modified_question": "What is 10 - 3 - 2?",
            "modified_process": ["10 - 3 = 7", "10 - 3 = 7", "7 - 2 = 5"],
            "error_steps": [2],
            "original_question": "What is 10 - 3 - 2?",
            "original_process": ["10 - 3 = 7", "7 - 2 = 5"],
        }
    ],
}  # fmt: skip


def estimated(text: str, parent: int, value: float, rollouts: int) -> dict[str, Any]:
    estimate = {"value": value, "rollouts": rollouts, "low": max(0.0, value - 0.2), "high": min(1.0, value + 0.2)}
    return {"text": text, "parent": parent, "label": value, "rating": None, "origin": "model", "estimate": estimate}


ESTIMATED = {
    "tree_id": 0,
    "problem": "What is 2 * 3 + 4?",
    "answer": "10",
    "ended": True,
    "trunk": [0, 3],
    "nodes": [
        estimated("2 * 3 = 6", -1, 0.75, 8),
        estimated("2 * 3 = 5", -1, 0.125, 8),
        estimated("3 + 4 = 7", -1, 0.4, 2),
        estimated("6 + 4 = 10", 0, 1.0, 0),
        estimated("6 + 4 = 12", 0, 0.0, 0),
        estimated("4 + 6 = 10", 0, 0.6, 4),
    ],
}
"""A tree whose labels are estimates from rollouts, as `prism label` writes them."""


def summary_of(out: Path) -> dict[str, Any]:
    """The summary without the version; of bad records their places, since libraries word what is wrong with them."""
    summary = read_json(out / "summary.json")
    del summary["version"]
    bad = summary["bad_records"]
    bad["first"] = [":".join(message.split(":")[:2]) for message in bad["first"]]
    return summary


def content(out: Path) -> dict[str, Any]:
    return {"summary": summary_of(out), "pairs": columns(out / "pairs.parquet"), "trees": rows(out / "trees.parquet")}


@pytest.mark.parametrize("name", VARIANTS)
def test_pairs_of_prm800k_records(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "prm800k.jsonl", RECORDS + (BAD if name == "bad_records" else []))
    copies = [
        {"question": "what is 7+0.5"},
        {"problem": "A train goes 60 km per hour for 2 hours. How far does it go?"},
    ]
    write_lines(tmp_path / "benchmark.jsonl", copies)
    prism(tmp_path, "pairs", "prm800k.jsonl", *VARIANTS[name], "--out", "out")
    check(f"pairs_{name}", content(tmp_path / "out"), tolerance=FLOAT64)


def test_pairs_of_other_formats(tmp_path: Path) -> None:
    for name, records in OTHER_FORMATS.items():
        write_lines(tmp_path / "in" / f"{name}.jsonl", records)
    prism(tmp_path, "pairs", "in", "--out", "out")
    check("pairs_other_formats", content(tmp_path / "out"), tolerance=FLOAT64)


@pytest.mark.parametrize(
    ("name", "options"), [("all", []), ("sure", ["--min-value-gap", "0.3", "--min-rollouts", "4"])]
)
def test_pairs_of_estimated_labels(name: str, options: list[str], tmp_path: Path) -> None:
    write_lines(tmp_path / "trees.jsonl", [ESTIMATED])
    prism(tmp_path, "pairs", "trees.jsonl", *options, "--out", "out")
    check(f"pairs_estimated_{name}", content(tmp_path / "out"), tolerance=FLOAT64)


def test_pairs_read_again_are_the_same(tmp_path: Path) -> None:
    """A folder of trees is an input, too: what was made of it before is made again."""
    write_lines(tmp_path / "prm800k.jsonl", RECORDS)
    prism(tmp_path, "pairs", "prm800k.jsonl", "--out", "once")
    prism(tmp_path, "pairs", "once/trees.parquet", "--out", "twice")
    assert rows(tmp_path / "once" / "pairs.parquet") == rows(tmp_path / "twice" / "pairs.parquet")
    for name in ("content_hash", "nodes", "trunk", "problem", "answer", "ended"):
        assert columns(tmp_path / "once" / "trees.parquet")[name] == columns(tmp_path / "twice" / "trees.parquet")[name]


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["defaults", "splits", "ablations"])
def test_pairs_of_real_records(name: str, real_data: Path, tmp_path: Path) -> None:
    """The first records of PRM800K: counts and hashes, since its texts are not ours to store."""
    with (real_data / "prm800k" / "phase1_train.jsonl").open(encoding="utf-8") as file:
        (tmp_path / "prm800k.jsonl").write_text("".join(islice(file, 100)), encoding="utf-8")
    prism(tmp_path, "pairs", "prm800k.jsonl", *VARIANTS[name], "--out", "out")
    trees, pairs = rows(tmp_path / "out" / "trees.parquet"), rows(tmp_path / "out" / "pairs.parquet")
    kinds = Counter((pair["tree_id"], pair["kind"]) for pair in pairs)
    of_tree: dict[int, list[dict[str, Any]]] = {tree["tree_id"]: [] for tree in trees}
    for pair in pairs:
        of_tree[pair["tree_id"]].append(pair)
    found = {
        "summary": summary_of(tmp_path / "out"),
        "trees": {
            "split": [tree["split"] for tree in trees],
            "num_nodes": [len(tree["nodes"]) for tree in trees],
            "num_trunk_steps": [len(tree["trunk"]) for tree in trees],
            "digest": [digest(tree) for tree in trees],
        },
        "pairs": {
            "number": {
                kind: [kinds[tree["tree_id"], kind] for tree in trees]
                for kind in ("annotated", "lookahead", "random", "perturbed")
            },
            "digest": [digest(one) for one in of_tree.values()],
        },
    }
    check(f"pairs_real_{name}", found, tolerance=FLOAT64)
