"""A small valid input of every kind, in one folder, and a command on it for each that `prism` has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = ["1 + 1 = 2", "2 + 1 = 3"]

RECORDS: dict[str, list[dict[str, Any]]] = {
    "prm800k": [
        {
            "question": {"problem": "What is 1 + 1 + 1?", "ground_truth_answer": "3"},
            "label": {
                "steps": [
                    {
                        "completions": [{"text": "1 + 1 = 2", "rating": 1}, {"text": "1 + 1 = 3", "rating": -1}],
                        "human_completion": None,
                        "chosen_completion": 0,
                    },
                    {
                        "completions": [{"text": "2 + 1 = 3", "rating": 1}],
                        "human_completion": None,
                        "chosen_completion": 0,
                    },
                ],
                "finish_reason": "solution",
            },
            "is_quality_control_question": False,
            "is_initial_screening_question": False,
        },
    ],
    "shepherd": [
        {
            "input": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 ки\nStep 2: 2 + 1 = 4 ки",
            "label": "What is 1 + 1 + 1? Step 1: 1 + 1 = 2 +\nStep 2: 2 + 1 = 4 -",
        }
    ],
    "split_shepherd": [
        {
            "questions": "What is 1 + 1 + 1?",
            "solution": {
                "Step 1": {"content": "1 + 1 = 2", "label": 1},
                "Step 2": {"content": "2 + 1 = 4", "label": 0},
            },
        }
    ],
    "stepwise": [{"prompt": "What is 1 + 1 + 1?", "completions": ["1 + 1 = 2", "2 + 1 = 4"], "labels": [True, False]}],
    "processbench": [
        {"problem": "What is 1 + 1 + 1?", "steps": STEPS, "label": -1, "id": "gsm8k-0"},
        {"problem": "What is 1 + 1 + 2?", "steps": ["1 + 1 = 2", "2 + 2 = 5"], "label": 1, "id": "gsm8k-1"},
    ],
    "prmbench": [
        {
            "classification": "redundency",
            "idx": "a_1",
            "modified_question": "What is 1 + 1 + 1?",
            "modified_process": ["1 + 1 = 2", "1 + 1 = 2", "2 + 1 = 3"],
            "error_steps": [2],
            "original_question": "What is 1 + 1 + 1?",
            "original_process": STEPS,
        }
    ],
    "bug_fixes": [
        {
            "task": "sum",
            "id": "one",
            "problem": "Print 1 + 1 + 1.",
            "fault_line": 2,
            "buggy": "x = 1\nprint(x * 2)",
            "fixed": "x = 1\nprint(x * 3)",
        }
    ],
    "plain": [{"problem": "What is 1 + 1 + 1?", "solution": "1 + 1 = 2\n\n2 + 1 = 3", "id": "one"}],
    "unlabelled": [{"problem": "What is 1 + 1 + 1?", "steps": STEPS, "id": "one"}],
    "trl": [{"prompt": "What is 1 + 1 + 1?", "completions": STEPS}],
    "predictions": [{"id": "gsm8k-0", "scores": [0.9, 0.8]}, {"id": "gsm8k-1", "scores": [0.9, 0.2]}],
    "pool": [
        {
            "problem": "What is 1 + 1 + 1?",
            "answer": "3",
            "name": "sum",
            "tolerance": 0.01,
            "error": "0.1",
            "solutions": [
                {"steps": ["1 + 1 = 2", "\\boxed{3}"], "scores": [0.9, 0.8], "answer": "3", "tokens": 9},
                {"text": "1 + 1 = 3\n\n\\boxed{4}", "scores": [0.9, 0.1], "correct": False},
            ],
        }
    ],
    "pool_scores": [
        {"name": "sum", "scores": [[0.9, 0.8], [0.9, 0.1]]},
        {"name": "other", "scores": [[0.5], None]},
    ],
    "task": [{"problem": "3+4-2", "answer": "5", "name": "one", "tolerance": 0.01, "error": "0.1", "level": "1"}],
}
"""File (without .jsonl) → its records."""

TRAIN: dict[str, Any] = {
    "report_to": [],
    "data": {"inputs": ["prm800k.jsonl"], "split": {"train": 1.0}},
    "base": {"prm": "prm"},
    "curriculum": {"mode": "none", "bins": [[-1.0, 1.0]]},
    "train": {"epochs": 1},
    "validation": {"split": ""},
}
SEARCH: dict[str, Any] = {
    "task": "task.jsonl",
    "prm": ["prm"],
    "n": [2],
    "policy": {"name": "hf:policy"},
    "search": {"max_steps": 2, "sampling": {"max_step_tokens": 4}},
}
GRPO: dict[str, Any] = {
    "policy": "policy",
    "prm": "prm",
    "problems": {"train": "task.jsonl"},
    "rounds": {"count": 1, "train": "train.toml"},
}
RECIPES = {"train.toml": TRAIN, "search.toml": SEARCH, "grpo.toml": GRPO}

COMMANDS: dict[str, list[str]] = {
    "pairs": ["pairs", "prm800k.jsonl", "--out", "out"],
    "pairs plain": [
        "pairs", "plain.jsonl", "--set", "split_steps=true", "--set", "trust_solutions=true", "--out", "out",
    ],
    "export": ["export", "pairs", "--format", "jsonl", "--out", "out.jsonl"],
    "score": ["score", "unlabelled.jsonl", "--prm", "prm", "--out", "out.parquet"],
    "score pairs": ["score", "pairs", "--prm", "prm", "--out", "out.parquet", "--pairs"],
    "train": ["train", "train.toml", "--out", "out"],
    "grpo": ["grpo", "grpo.toml", "--out", "out"],
    "eval": ["eval", "--prm", "prm", "--bench", "processbench", "--data", "processbench.jsonl", "--out", "out"],
    "eval predictions": [
        "eval", "--predictions", "predictions.jsonl", "--bench", "processbench", "--data", "processbench.jsonl",
        "--out", "out",
    ],
    "eval scores": [
        "eval", "--scores", "scores.parquet", "--bench", "processbench", "--data", "processbench.jsonl", "--out", "out",
    ],
    "eval labeled": ["eval", "--prm", "prm", "--bench", "labeled", "--data", "prm800k.jsonl", "--out", "out"],
    "eval prmbench": ["eval", "--prm", "prm", "--bench", "prmbench", "--data", "prmbench.jsonl", "--out", "out"],
    "eval pairs": ["eval", "--prm", "prm", "--bench", "pairs", "--data", "pairs", "--out", "out"],
    "calibrate": [
        "calibrate", "--prm", "prm", "--bench", "processbench", "--data", "processbench.jsonl", "--target", "f1",
        "--out", "out",
    ],
    "calibrate run": ["calibrate", "--run", "eval", "--target", "f1", "--out", "out"],
    "compare": ["compare", "a=eval", "b=eval2", "--out", "out"],
    "compare rates": ["compare", "--rates", "a=95.36,69.34", "b=87.3,47.13", "--out", "out"],
    "theory": ["theory", "--no-simulate", "--out", "out"],
    "theory runs": ["theory", "--no-simulate", "--runs", "a=eval", "--runs", "b=eval2", "--out", "out"],
    "theory pool": ["theory", "--no-simulate", "--pool", "pool.jsonl", "--out", "out"],
    "theory scores": [
        "theory", "--no-simulate", "--pool", "pool.jsonl", "--scores", "pool_scores.jsonl", "--out", "out",
    ],
    "rerank": ["rerank", "pool.jsonl", "--set", "judges=1", "--out", "out"],
    "rerank scores": [
        "rerank", "pool.jsonl", "--scores", "qwen=pool_scores.jsonl", "--set", "judges=1", "--out", "out",
    ],
    "rerank prm": ["rerank", "pool.jsonl", "--prm", "prm", "--set", "judges=1", "--out", "out"],
    "search": ["search", "--recipe", "search.toml", "--set", "judges=1", "--out", "out"],
    "label": [
        "label", "task.jsonl", "--policy", "hf:policy", "--rollouts", "2", "-P", "max_tokens=16", "--set",
        'label.sampling.stop=" "', "--set", "judges=1", "--out", "out",
    ],
    "demo": ["demo", "--quick", "--out", "out"],
}  # fmt: skip
for _name in ("shepherd", "split_shepherd", "stepwise", "processbench", "prmbench", "bug_fixes"):
    COMMANDS[f"pairs {_name}"] = ["pairs", f"{_name}.jsonl", "--out", "out"]
COMMANDS["score trl"] = ["score", "trl.jsonl", "--prm", "prm", "--out", "out.parquet"]
"""Name → a command that is right; the first word of the name is the command."""


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def write_recipe(path: Path, settings: Mapping[str, Any]) -> None:
    import tomli_w

    path.write_text(tomli_w.dumps(settings), encoding="utf-8")


def write_inputs(folder: Path, run: Callable[..., None]) -> None:
    """Fill the folder; `run` runs a prism command in it."""
    from prism_prm import init_prm
    from tiny import language_model

    folder.mkdir(exist_ok=True)
    for name, records in RECORDS.items():
        write_records(folder / f"{name}.jsonl", records)
    for name, recipe in RECIPES.items():
        write_recipe(folder / name, recipe)
    language_model("qwen2", folder / "policy")
    init_prm(folder / "policy", family="qwen", seed=3).save(folder / "prm")
    (folder / "family.py").write_text("class Mine:\n    pass\n")
    run("pairs", "prm800k.jsonl", "--out", "pairs")
    run("score", "processbench.jsonl", "--prm", "prm", "--out", "scores.parquet")
    for out in ("eval", "eval2"):
        run("eval", "--predictions", "predictions.jsonl", "--bench", "processbench", "--data", "processbench.jsonl",
            "--out", out)  # fmt: skip
    shutil.rmtree(folder / "out", ignore_errors=True)
