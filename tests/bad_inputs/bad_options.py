"""Options with values that only their command can refuse, and options that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bad_rows import Row
from valid_inputs import COMMANDS

HUGE = "1" + "0" * 30

WORDS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("score", "--token-budget", "x", ("--token-budget",)),
    ("score", "--token-budget", "", ("--token-budget",)),
    ("score", "--dtype", "nonsense", ("float32",)),
    ("score", "--device", "nonsense", ("cpu",)),
    ("score", "--family", "nonsense", ("qwen",)),
    ("score", "--family", "family.py", ()),
    ("score", "--family", "family.py:Other", ()),
    ("score", "--adapter", "nowhere/there/adapter", ()),
    ("score", "--format", "nonsense", ("prm800k",)),
    ("score", "--chunk", "0", ("1",)),
    *(("eval", "--threshold", value, ("0.5",)) for value in ("x", "nan", "2", "tpr=x", "fpr=0.5")),
    *(("eval", "--threshold", value, ()) for value in ("tpr=0", "tpr=nan")),
    *(("eval", "--bench", value, ("processbench",)) for value in ("nonsense", "processbench,nonsense")),
    ("eval", "--split", "labeled", ("--split",)),
    ("eval", "--data", "nowhere.jsonl", ()),
    ("eval", "--trained-on", "nowhere.jsonl", ()),
    ("eval", "--name", "two\nlines", ()),
    ("eval", "--draws", "99", ("100",)),
    ("eval", "--holdout", "1", ("above 0",)),
    ("eval", "--device", "nonsense", ("cpu",)),
    *(("rerank", "-n", value, ()) for value in ("0", "x", "1,x", HUGE, "99")),
    ("rerank", "--aggregators", "nonsense", ("min",)),
    ("rerank", "--extract", "nonsense", ("boxed",)),
    ("rerank", "--scores", "nowhere.parquet", ()),
    ("rerank", "--scores", "task.jsonl", ()),
    ("rerank", "--task", "nonsense", ("gsm8k",)),
    *(("pairs", "--lookahead", value, ("all",)) for value in ("0", "x")),
    *(("pairs", "--split", value, ()) for value in ("x", "train=x", "train=2", "train=nan", "a=0.5,a=0.5", "=1",
                                                    "train=0.5")),
    ("pairs", "--min-value-gap", "1.5", ("at most 1",)),
    ("pairs", "--drop-finish", "nonsense", ("found_error",)),
    ("pairs", "--format", "nonsense", ("prm800k",)),
    ("pairs", "--format", "stepwise", ("prm800k",)),
    ("pairs", "--exclude", "nowhere.jsonl", ()),
    ("export", "--split", "nonsense", ()),
    ("margins", "--split", "nonsense", ()),
    ("margins", "--dtype", "nonsense", ("float32",)),
    ("theory", "--p", "0", ("above 0",)),
    ("theory", "--aggregator", "nonsense", ("min",)),
    ("theory", "--pool", "nowhere.jsonl", ()),
    ("compare", "--draws", "99", ("100",)),
    ("demo", "--seeds", "0", ("1",)),
    ("search", "-n", "1,x", ()),
    ("search", "--timeout", "0", ("above 0",)),
    ("search", "--aggregator", "nonsense", ("min",)),
    ("search", "--user", "no place", ("{problem}",)),
    ("search", "--policy", "nonsense", ("hf:",)),
    ("search", "--prm", "a=", ()),
    ("search", "--task", "nonsense", ("gsm8k",)),
    ("search", "--task-data", "nowhere.jsonl", ()),
    ("search", "--device", "nonsense", ("cpu",)),
    ("label", "--confidence", "1", ()),
    *(("label", "--label-rule", value, ("any", "value>T")) for value in ("nonsense", "value>2", "value>", "any>0")),
    *(("label", flag, "nonsense", ("hf:",)) for flag in ("--policy", "--second-policy")),
    ("label", "--check", "nowhere.jsonl", ()),
]  # fmt: skip
"""(command, option, value, further words): each kind of mistake once. What types refuse, test_settings.py tests."""


CONTRADICTIONS = [
    ("score", ("--nonsense",), ("--nonsense",)),
    ("eval", ("--scores", "scores.parquet"), ("--scores", "--prm")),
    ("eval", ("--predictions", "predictions.jsonl"), ("--predictions", "--prm")),
    ("theory", ("--runs", "eval"), ("--runs", "two", "1")),
    ("theory", ("--scores", "scores.parquet"), ("--scores", "--pool")),
    ("search", ("--method", "sample", "--select", "nonsense"), ("--select", "nonsense")),
    ("search", ("--lookahead", "1", "--prm-weight", "0"), ("prm_weight",)),
    *(("label", ("--label-rule", "soft", "--method", method), ("soft", method)) for method in ("binary", "adaptive")),
    ("label", ("--second-model", "b"), ("--second-model", "--second-policy")),
    ("pairs", ("--min-gap", "3", "--max-gap", "2"), ("--max-gap 2", "3")),
    ("pairs", ("--negative-below", "0.9"), ("--negative-below 0.9", "0.5")),
]
"""(command, options, words): options that do not exist, or do not go together."""


def rows() -> Iterator[Row]:
    for name, flag, value, more in WORDS:
        found = re.split(r"[,\n:]", value)[-1:]
        yield Row(f"{name} {flag} {value!r}", (*COMMANDS[name], flag, value), (*found, *more))
    for name, given, words in CONTRADICTIONS:
        yield Row(f"{name} {' '.join(given)}", (*COMMANDS[name], *given), words)
