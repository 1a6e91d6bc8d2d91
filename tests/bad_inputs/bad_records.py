"""Records: every field that a command reads, with each kind of mistake that its reader tells apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bad_rows import Row
from valid_inputs import COMMANDS, RECORDS, write_records

from prism_prm.errors import shown

MISSING = "(missing)"
HUGE = 10**30
TEXT = (MISSING, 3, "  ")
TEXTS = (MISSING, "a", [], [3], [""])
WHOLE = (MISSING, "x", 1.5, True, HUGE)

FIELDS: dict[tuple[str, str], dict[str, Sequence[Any]]] = {
    ("pairs", "prm800k"): {
        "question": (MISSING, None, 3, []),
        "question.problem": TEXT,
        "label": (MISSING, []),
        "label.steps": (MISSING, "x", [3], [None], {}),
        "label.finish_reason": (3,),
        "label.steps.0.completions": (MISSING, "x", [3]),
        "label.steps.0.completions.0.text": (*TEXT, None),
        "label.steps.0.completions.0.rating": ("x", 2, 0.5, True, HUGE, math.nan),
        "label.steps.0.chosen_completion": (MISSING, "x", 5, -1, 0.5, True),
        "label.steps.0.human_completion": (3, {}, {"text": ""}),
        "is_quality_control_question": ("x", 1),
    },
    ("pairs shepherd", "shepherd"): {"input": TEXT, "label": TEXT},
    ("pairs split_shepherd", "split_shepherd"): {
        "questions": TEXT,
        "solution": (MISSING, 3, {}, {"Step 2": {"content": "a", "label": 1}}),
        "solution.Step 1.content": TEXT,
        "solution.Step 1.label": (MISSING, "x", 2, math.nan, True),
    },
    ("pairs stepwise", "stepwise"): {
        "prompt": TEXT,
        "completions": (*TEXTS, ["a"]),
        "labels": (MISSING, 3, [True], ["x", "y"], [2, 0], [math.nan, 0], [HUGE, 0], [None, 0]),
    },
    ("pairs processbench", "processbench"): {"label": (MISSING, 2), "id": (1.5, {})},
    ("eval", "processbench"): {
        "problem": TEXT,
        "steps": TEXTS,
        "label": (*WHOLE, -2, 2, math.nan),
        "id": (1.5, "gsm8k-1"),
    },
    ("eval prmbench", "prmbench"): {
        "classification": (MISSING, 3, "nonsense"),
        "idx": (MISSING, 3),
        "modified_question": TEXT,
        "modified_process": (MISSING, "a", [], [3]),
        "error_steps": (MISSING, "x", ["x"], [0], [1.5], [True]),
        "original_question": (3, ""),
        "original_process": (3, []),
    },
    ("pairs bug_fixes", "bug_fixes"): {
        "buggy": (*TEXT, None),
        "fixed": (*TEXT, None),
        "problem": (3,),
        "task": (1.5, True),
        "id": (1.5, {}),
        "fault_line": ("x", 1.5, True, 0, 3, HUGE),
    },
    ("pairs plain", "plain"): {"problem": TEXT, "solution": (*TEXT, ["a"])},
    ("score", "unlabelled"): {"problem": TEXT, "steps": TEXTS, "id": (1.5,)},
    ("score trl", "trl"): {"prompt": TEXT, "completions": TEXTS},
    ("eval predictions", "predictions"): {
        "id": (MISSING, 3, "nonsense"),
        "scores": (MISSING, "x", [], [0.5], ["x", 0.5], [1.1, 0.5], [math.nan, 0.5], [True, 0.5], [None, 0.5]),
        "labels": ([True, False], 3),
        "redundancy": ("x", [0.5], [2, 2], [0.5, 0.5]),
    },
    ("rerank", "pool"): {
        "problem": TEXT,
        "answer": (True, {"a": 1}, math.nan),
        "tolerance": ("abc", -0.5, True, [1], math.nan),
        "error": ("x", -1, True, [1]),
        "solutions": (MISSING, 3, {"a": 1}),
        "scores": (5, [1], [[0.5, 0.5]], {"a": 1}),
        "solutions.0": (3, None, {}),
        "solutions.0.steps": (3, "a", [3], [""]),
        "solutions.0.scores": ("x", [0.5], [2, 0.5], [math.nan, 0.5], ["x", 0.5], [True, 0.5]),
        "solutions.0.answer": (True, {}),
        "solutions.0.tokens": ("x", -1, True, HUGE),
        "solutions.0.correct": ("x", 1),
        "solutions.0.source": ({}, 0.5),
        "solutions.1.text": (MISSING, 3),
    },
    ("rerank scores", "pool_scores"): {
        "name": (MISSING, 1.5, None, " ", "nonsense", "other"),
        "scores": (MISSING, None, 3, [], [[0.9, 0.8]], [[0.9, 0.8], 0.1], ["x", None]),
        "scores.1": ([], [0.9], [0.9, 0.1, 0.1], [0.9, 1.1], [-0.1, 0.5], [0.9, math.nan], [0.9, None], [True, 0.5]),
    },
    ("theory scores", "pool_scores"): {"name": ("nonsense",), "scores.1": ([0.9],)},
    ("search", "task"): {
        "problem": TEXT,
        "answer": (MISSING, "", [], True, {"a": 1}, math.nan),
        "tolerance": ("abc",),
        "error": (-1,),
    },
    ("theory pool", "pool"): {"solutions": (3,), "solutions.0.scores": ([2, 2],)},
}  # fmt: skip
"""(command, file) → field → bad values of it, in the file's first record."""

NAMED_LATER = {
    "processbench": {"id"},
    "predictions": {"id", "scores", "labels", "redundancy"},
    "pool_scores": {"name"},
}
"""Fields whose mistakes show only beside other records: the file is named, and no line."""


def _write(file: str, dotted: str, value: Any, folder: Path) -> None:
    records = copy.deepcopy(RECORDS[file])
    part: Any = records[0]
    *path, last = [int(key) if key.isdecimal() else key for key in dotted.split(".")]
    for key in path:
        part = part[key]
    if value == MISSING:
        del part[last]
    else:
        part[last] = value
    write_records(folder / f"{file}.jsonl", records)


def _is_repeated(file: str, value: Any) -> bool:
    """Whether the message has to repeat the value; it may name the type of a wrong one within a list or a dict."""
    return type(value) in (int, float) and abs(value) < HUGE and file not in ("pool", "pool_scores", "split_shepherd")


def rows() -> Iterator[Row]:
    for (command, file), fields in FIELDS.items():
        for dotted, values in fields.items():
            for value in values:
                where = f"{file}.jsonl" if dotted in NAMED_LATER.get(file, ()) else f"{file}.jsonl:1"
                found = [str(value)] if _is_repeated(file, value) else []
                name = f"{command}: {file}.jsonl {dotted} = {shown(value)}"
                yield Row(name, tuple(COMMANDS[command]), (where, *found), partial(_write, file, dotted, value))
