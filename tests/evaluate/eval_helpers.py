"""Small benchmarks with obvious answers, and PRMBench's rules written out one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.evaluate.benchmarks import ItemSet
from prism_prm.evaluate.measure import Steps
from prism_prm.evaluate.score_files import collect_steps


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def prmbench_row(classification: str, idx: str, steps: int, errors: Sequence[int], **more: Any) -> dict[str, Any]:
    return {
        "classification": classification,
        "idx": idx,
        "question": f"What is {idx}?",
        "original_question": f"What is {idx} ?",
        "modified_question": f"What is {idx} now?",
        "original_process": [f"{idx} original step {i}" for i in range(1, 4)],
        "modified_process": [f"{idx} {classification} step {i}" for i in range(1, steps + 1)],
        "modified_steps": [1],
        "error_steps": list(errors),
        **more,
    }


def processbench_row(id: str, steps: int, label: int, problem: str | None = None) -> dict[str, Any]:
    return {
        "id": id,
        "problem": problem or f"Problem {id}?",
        "steps": [f"{id} step {i}" for i in range(steps)],
        "label": label,
        "final_answer_correct": label == -1,
    }


def score_with(benchmark: ItemSet, scorer: Callable[[str, int, float | None], float]) -> Steps:
    """Judged steps from a function of (item name, node, label)."""
    scores = [
        np.array([scorer(item.tree.name, i, node.label) for i, node in enumerate(item.tree.nodes)])
        for item in benchmark.items
    ]
    return collect_steps(benchmark.items, scores, None)


def slow_f1(hits: int, precision_whole: int, recall_whole: int) -> float:
    precision = hits / precision_whole if precision_whole else -1
    recall = hits / recall_whole if recall_whole else -1
    return 2 * precision * recall / (precision + recall) if precision + recall != 0 else -1


def slow_prmbench(rows: list[dict[str, Any]], good: Callable[[str, int], bool]) -> dict[str, float]:
    """PRMBench's rules in plain loops over raw records; `good` judges step i (from 0) of an item by its name."""
    counts: dict[str, dict[str, int]] = {}
    first_errors: list[bool] = []
    shares: dict[str, tuple[str, str, float]] = {}
    twins: dict[str, float] = {}
    seen = set()
    for row in rows:
        kind, name = row["classification"], f"{row['classification']}_{row['idx']}"
        if kind == "redundency" and row["idx"] not in twins:
            verdicts = [good(f"correct_{row['idx']}", i) for i in range(len(row["original_process"]))]
            twins[row["idx"]] = sum(verdicts) / len(verdicts)
        if name in seen:
            continue
        seen.add(name)
        tally = counts.setdefault(kind, dict.fromkeys(("tp", "fp", "tn", "fn"), 0))
        verdicts = [good(name, i) for i in range(len(row["modified_process"]))]
        for i, verdict in enumerate(verdicts):
            wrong = i + 1 in row["error_steps"]
            tally["fp" if wrong and verdict else "tn" if wrong else "tp" if verdict else "fn"] += 1
        first = min(row["error_steps"], default=0)
        if 1 <= first <= len(verdicts):
            first_errors.append(not verdicts[first - 1])
        shares[name] = (kind, row["idx"], sum(verdicts) / len(verdicts))
    result: dict[str, float] = {}
    pooled = dict.fromkeys(("tp", "fp", "tn", "fn"), 0)
    for kind, c in counts.items():
        score = slow_f1(c["tp"], c["tp"] + c["fp"], c["tp"] + c["fn"])
        if kind != "multi_solutions":
            score = 0.5 * score + 0.5 * slow_f1(c["tn"], c["tn"] + c["fn"], c["tn"] + c["fp"])
        result[kind] = max(0.0, score)
        pooled = {key: pooled[key] + c[key] for key in pooled}
    c = pooled
    overall = 0.5 * slow_f1(c["tp"], c["tp"] + c["fp"], c["tp"] + c["fn"])
    overall += 0.5 * slow_f1(c["tn"], c["tn"] + c["fn"], c["tn"] + c["fp"])
    result["overall"] = max(0.0, overall)
    groups = {
        "simplicity": ["redundency", "circular"],
        "soundness": ["counterfactual", "step_contradiction", "domain_inconsistency", "confidence"],
        "sensitivity": ["missing_condition", "deception", "multi_solutions"],
    }
    for group, members in groups.items():
        if all(kind in result for kind in members):
            result[group] = sum(result[kind] for kind in members) / len(members)
    if first_errors:
        result["first_error_acc"] = sum(first_errors) / len(first_errors)
    distances = [abs(share - twins[idx]) for _, idx, share in shares.values() if twins.get(idx)]
    if distances:
        result["similarity"] = sum(distances) / len(distances)
    return {**result, **{f"pooled_{key}": float(value) for key, value in pooled.items()}}
