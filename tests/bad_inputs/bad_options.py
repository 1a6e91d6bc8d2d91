"""Options with values that only their command can refuse, and options that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bad_rows import Row
from valid_inputs import COMMANDS, write_records

HUGE = "1" + "0" * 30

WORDS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("score", "--set", "load.token_budget=x", ("load.token_budget",)),
    ("score", "--set", "", ("--set",)),
    ("score", "--dtype", "nonsense", ("float32",)),
    ("score", "--device", "nonsense", ("cpu",)),
    ("score", "--family", "nonsense", ("qwen",)),
    ("score", "--family", "family.py", ()),
    ("score", "--family", "family.py:Other", ()),
    ("score", "--set", "load.adapter=nowhere/there/adapter", ()),
    ("score", "--format", "nonsense", ("prm800k",)),
    ("score", "--set", "chunk=0", ("1",)),
    ("score", "--set", "load.segmenter=lines", ("paragraph",)),
    ("score", "--set", "load.segmenter=tokens:0", ("tokens:N",)),
    ("score", "--set", "load.thinking=hidden", ("last-N",)),
    ("score", "--set", "load.on_too_long=drop-left-steps", ("window",)),
    *(("eval", "--threshold", value, ("prm",)) for value in ("x", "nan", "2", "tpr=0.9")),
    *(("eval", "--target-tpr", value, ()) for value in ("0", "nan")),
    *(("eval", "--bench", value, ("processbench",)) for value in ("nonsense", "processbench,nonsense")),
    ("eval", "--split", "labeled", ("--split",)),
    ("eval", "--data", "nowhere.jsonl", ()),
    ("eval", "--trained-on", "nowhere.jsonl", ()),
    ("eval", "--set", "name=two\nlines", ()),
    ("eval", "--set", "num_draws=99", ("100",)),
    ("eval", "--set", "holdout=1", ("above 0",)),
    ("eval", "--device", "nonsense", ("cpu",)),
    *(("calibrate", "--target", value, ("tpr=", "f1")) for value in ("nonsense", "0.9")),
    *(("calibrate", "--target", value, ("--target", "0.9")) for value in ("tpr=90", "fpr=0", "tpr=x")),
    ("calibrate", "--target", "f1=0.9", ("takes no value",)),
    *(("calibrate", "--target", value, ("two positive numbers", "5:1")) for value in ("cost=1", "cost=0:1")),
    ("calibrate", "--method", "nonsense", ("isotonic",)),
    ("calibrate", "--bench", "nonsense", ("processbench",)),
    ("calibrate", "--data", "nowhere.jsonl", ()),
    ("calibrate", "--trained-on", "nowhere.jsonl", ()),
    ("calibrate", "--trained-on", "stepwise.jsonl", ("trained on 1 of the problems",)),
    ("calibrate", "--set", "folds=1", ("2",)),
    ("calibrate run", "--run", "nowhere", ("prism eval",)),
    ("calibrate run", "--run", "pairs", ("prism eval",)),
    ("calibrate run", "--bench", "prmbench", ("processbench",)),
    *(("score", "--set", f"load.calibration={place}", ("prism calibrate",)) for place in ("nowhere", "prm/prism.json")),
    *(("rerank", "-n", value, ()) for value in ("0", "x", "1,x", HUGE, "99")),
    ("rerank", "--aggregators", "nonsense", ("min",)),
    ("rerank", "--set", "extract=nonsense", ("boxed",)),
    ("rerank", "--scores", "nowhere.parquet", ()),
    ("rerank", "--scores", "task.jsonl", ()),
    ("rerank", "--task", "nonsense", ("gsm8k",)),
    *(("pairs", "--lookahead", value, ("all",)) for value in ("0", "x")),
    *(("pairs", "--split", value, ()) for value in ("x", "train=x", "train=2", "train=nan", "a=1,a=1", "train=0.5")),
    ("pairs", "--min-value-gap", "1.5", ("at most 1",)),
    ("pairs", "--set", "drop_finish=nonsense", ("found_error",)),
    ("pairs", "--format", "nonsense", ("prm800k",)),
    ("pairs", "--format", "stepwise", ("prm800k",)),
    ("pairs", "--exclude", "nowhere.jsonl", ()),
    ("export", "--split", "nonsense", ()),
    ("score pairs", "--split", "nonsense", ()),
    ("score pairs", "--dtype", "nonsense", ("float32",)),
    ("theory", "--p", "0", ("above 0",)),
    ("theory", "--aggregator", "nonsense", ("min",)),
    ("theory", "--pool", "nowhere.jsonl", ()),
    ("compare", "--set", "num_draws=99", ("100",)),
    ("compare rates", "--prevalence", "86", ("below 1",)),
    *(("compare rates", "--rates", value, ("NAME=TPR,FPR",)) for value in ("95.36", "c=95.36", "=95,60", "c=9,8,7,6",
      "c=x,9", "c=", "c=9%,8%")),
    *(("compare rates", "--rates", value, ("above 0 and below 100",)) for value in ("c=0,9", "c=100,9", "c=9,0",
      "c=9,100", "c=9,-1", "c=nan,9", "c=inf,9")),
    ("compare rates", "--rates", "c=0.95,0.69", ("percent, not shares",)),
    ("compare rates", "--rates", "a=95,69", ("'a'",)),
    ("demo", "--seeds", "0", ("1",)),
    ("search", "-n", "1,x", ()),
    ("search", "-P", "timeout=0", ("above 0",)),
    ("search", "--aggregator", "nonsense", ("min",)),
    ("search", "-P", "user=no place", ("{problem}",)),
    ("search", "--policy", "nonsense", ("hf:",)),
    ("search", "--prm", "a=", ()),
    ("search", "--task", "nonsense", ("gsm8k",)),
    ("search", "--task-data", "nowhere.jsonl", ()),
    ("search", "--set", "load.device=nonsense", ("cpu",)),
    ("label", "--set", "confidence=1", ()),
    *(("label", "--rule", value, ("any", "value>T")) for value in ("nonsense", "value>2", "value>", "any>0")),
    *(("label", flag, "nonsense", ("hf:",)) for flag in ("--policy", "--second-policy")),
    ("label", "--check", "nowhere.jsonl", ()),
]  # fmt: skip
"""(command, option, value, further words): each kind of mistake once. What types refuse, test_settings.py tests."""


CONTRADICTIONS = [
    ("score", ("--nonsense",), ("--nonsense",)),
    ("score", ("--split", "train"), ("--split", "--pairs", "read.split")),
    *(("score", (option, "--plan"), ("--plan", option)) for option in ("--show", "--pairs")),
    ("eval", ("--scores", "scores.parquet"), ("--scores", "--prm")),
    ("eval", ("--predictions", "predictions.jsonl"), ("--predictions", "--prm")),
    ("calibrate", ("--predictions", "predictions.jsonl"), ("--predictions", "--prm")),
    ("calibrate", ("--prm", "critic:openai:http://localhost:1"), ("critic", "--target-tpr")),
    ("calibrate run", ("--data", "processbench.jsonl"), ("--run", "--data")),
    ("compare", ("--prevalence", "0.5"), ("prevalence", "--rates")),
    ("compare", ("--rates",), ("--rates a=eval", "NAME=TPR,FPR")),
    ("compare rates", ("--rounds",), ("--rounds", "--rates")),
    ("theory", ("--runs", "eval"), ("--runs", "two", "1")),
    ("theory", ("--scores", "scores.parquet"), ("--scores", "--pool")),
    ("search", ("--method", "sample", "--select", "nonsense"), ("--select", "nonsense")),
    ("search", ("--set", "lookahead=1", "--set", "prm_weight=0"), ("prm_weight",)),
    *(("label", ("--rule", "soft", "--method", method), ("soft", method)) for method in ("binary", "adaptive")),
    ("label", ("--set", "second_model=b"), ("second_model", "--second-policy")),
    ("pairs", ("--set", "min_gap=3", "--set", "max_gap=2"), ("max_gap = 2", "3")),
    ("pairs", ("--set", "negative_below=0.9"), ("negative_below = 0.9", "0.5")),
]
"""(command, options, words): options that do not exist, or do not go together."""


def _write_labels(label: bool, folder: Path) -> None:
    row = {"prompt": "What is 1 + 1 + 1?", "completions": ["1 + 1 = 2", "2 + 1 = 3"], "labels": [label, label]}
    write_records(folder / "one-class.jsonl", [row])


def rows() -> Iterator[Row]:
    for name, flag, value, more in WORDS:
        found = re.split(r"[,\n:=]", value)[-1:]
        yield Row(f"{name} {flag} {value!r}", (*COMMANDS[name], flag, value), (*found, *more))
    without_out = ("calibrate", "--bench", "processbench", "--data", "processbench.jsonl", "--target", "f1")
    for option, place in (("--prm", "some/hub-prm"), ("--prm", "prism:http://localhost:1"), ("--prm", "policy"),
                          ("--predictions", "predictions.jsonl")):  # fmt: skip
        words = (place if option == "--prm" else option, "--out", "calibration.json")
        yield Row(f"calibrate {option} {place} without --out", (*without_out, option, place), words)
    one_class = ("calibrate", "--prm", "prm", "--data", "one-class.jsonl", "--target", "f1")
    for label, only in ((True, "right"), (False, "wrong")):
        change = partial(_write_labels, label)
        yield Row(f"calibrate: only {only} steps", one_class, ("one-class.jsonl", f"only {only} steps"), change)
    for name, given, words in CONTRADICTIONS:
        yield Row(f"{name} {' '.join(given)}", (*COMMANDS[name], *given), words)
