"""Options: each one with values that its type or its range refuses, read from the commands themselves."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bad_rows import Row
from valid_inputs import COMMANDS

from prism_prm.cli import app

HUGE = "1" + "0" * 30
VALUES: dict[Any, tuple[str, ...]] = {
    int: ("x", "1.5", "-1", HUGE, ""),
    float: ("x", "nan", "inf", "-1", ""),
    str: ("",),
    Path: ("",),
    typing.Literal: ("nonsense", ""),
}
"""The type of an option → values that no option of that type takes; `FINE` names those that do."""

FINE = {
    ("search", "--system", ""): "no system turn",
    ("label", "--system", ""): "no system turn",
}


WORDS: list[tuple[str, str, str, tuple[str, ...]]] = [
    *(("eval", "--threshold", value, ("0.5",)) for value in ("x", "nan", "2", "-0.5", "inf", "tpr=x", "fpr=0.5")),
    *(("eval", "--threshold", value, ()) for value in ("tpr=0", "tpr=1.5", "tpr=nan", "tpr=-1")),
    *(("eval", "--bench", value, ("processbench",)) for value in ("nonsense", "processbench,nonsense")),
    ("eval", "--split", "labelled", ("--split",)),
    ("eval", "--data", "nowhere.jsonl", ()),
    ("eval", "--trained-on", "nowhere.jsonl", ()),
    ("eval", "--name", "two\nlines", ()),
    ("eval", "--draws", "99", ("100",)),
    *(("eval", "--holdout", value, ("above 0",)) for value in ("0", "1")),
    *(("rerank", "-n", value, ()) for value in ("0", "x", "-1", "1.5", HUGE, "1,x", "99")),
    *(("search", "-n", value, ()) for value in ("0", "x", "-1", "1.5", HUGE, "1,x")),
    ("rerank", "--aggregators", "nonsense", ("min",)),
    ("rerank", "--extract", "nonsense", ("boxed",)),
    ("rerank", "--scores", "nowhere.parquet", ()),
    ("rerank", "--scores", "task.jsonl", ()),
    ("rerank", "--task", "nonsense", ("gsm8k",)),
    *(("rerank", flag, "0", ("1 or more",)) for flag in ("--draws", "--judges", "--token-budget")),
    ("rerank", "--time-limit", "0", ("0.1 or more",)),
    *(("pairs", "--lookahead", value, ("all",)) for value in ("0", "-1", "x", "1.5", "nan")),
    *(("pairs", "--split", value, ()) for value in ("x", "train", "train=x", "train=2", "train=-1,b=2", "train=nan",
                                                    "a=0.5,a=0.5", "=1", "train=0.5")),
    *(("pairs", flag, "0", ("1 or more",)) for flag in ("--min-gap", "--max-gap", "--max-pairs-per-position")),
    ("pairs", "--drop-finish", "nonsense", ("found_error",)),
    ("pairs", "--format", "nonsense", ("prm800k",)),
    ("pairs", "--format", "stepwise", ("prm800k",)),
    ("pairs", "--exclude", "nowhere.jsonl", ()),
    *((name, "--dtype", "nonsense", ("float32",)) for name in ("score", "margins", "eval", "search")),
    *((name, "--device", "nonsense", ("cpu",)) for name in ("score", "margins", "eval", "search")),
    *((name, "--family", "nonsense", ("qwen",)) for name in ("score", "margins", "eval")),
    *((name, "--family", "family.py", ()) for name in ("score", "margins")),
    *((name, "--family", "family.py:Other", ()) for name in ("score", "margins")),
    *((name, "--token-budget", "0", ("1 or more",)) for name in ("score", "margins", "eval")),
    ("score", "--context", "0", ("1 or more",)),
    ("score", "--chunk", "0", ("1",)),
    ("score", "--format", "nonsense", ("prm800k",)),
    ("score", "--adapter", "nowhere/there/adapter", ()),
    ("export", "--split", "nonsense", ()),
    ("margins", "--split", "nonsense", ()),
    ("theory", "--p", "1.5", ("at most 1",)),
    ("theory", "--p", "0", ("above 0",)),
    ("theory", "--alpha", "1.5", ("at most 1",)),
    ("theory", "--beta", "1.5", ("at most 1",)),
    ("theory", "--aggregator", "nonsense", ("min",)),
    ("theory", "--pool", "nowhere.jsonl", ()),
    ("compare", "--draws", "99", ("100",)),
    ("demo", "--seeds", "0", ("1",)),
    *(("search", flag, "0", ("1 or more",)) for flag in ("--limit", "--expand", "--max-steps", "--max-tokens",
                                                         "--budget", "--at-once", "--concurrency")),
    ("search", "--timeout", "0", ("above 0",)),
    ("search", "--prm-weight", "1.5", ("at most 1",)),
    ("search", "--aggregator", "nonsense", ("min",)),
    ("search", "--user", "no place", ("{problem}",)),
    ("search", "--policy", "nonsense", ("hf:",)),
    ("search", "--prm", "a=", ()),
    ("search", "--task", "nonsense", ("gsm8k",)),
    ("search", "--task-data", "nowhere.jsonl", ()),
    *(("label", flag, "0", ("1 or more",)) for flag in ("--rollouts", "--solutions", "--per-round", "--limit",
                                                        "--budget", "--check-limit", "--max-step-tokens")),
    *(("label", "--confidence", value, ()) for value in ("0", "1")),
    *(("label", "--label-rule", value, ("any", "value>T")) for value in ("nonsense", "value>2", "value>", "any>0")),
    *(("label", flag, "nonsense", ("hf:",)) for flag in ("--policy", "--second-policy")),
    ("label", "--check", "nowhere.jsonl", ()),
    *(("pairs", "--min-value-gap", value, ("at most 1",)) for value in ("1.5", "2")),
]  # fmt: skip
"""(command, option, value, further words): what the types of options do not say."""


CONTRADICTIONS = [
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
"""(command, options, words): options that do not go together."""


def options(name: str) -> Iterator[tuple[str, Any]]:
    """(flag, type) of all options of a command, also of those that are made from settings."""
    (info,) = [info for info in app.registered_commands if (info.name or info.callback.__name__) == name]  # type: ignore[union-attr]
    made = vars(info.callback).get("signature")
    given = made(whole=True) if made else inspect.signature(info.callback, eval_str=True)  # type: ignore[arg-type]
    for parameter in given.parameters.values():
        if typing.get_origin(parameter.annotation) is not typing.Annotated:
            continue
        hint, about = typing.get_args(parameter.annotation)[:2]
        if type(about).__name__ == "OptionInfo":
            flags = [one for one in (about.default, *(about.param_decls or ())) if isinstance(one, str)]
            yield next(iter(flags), f"--{parameter.name.replace('_', '-')}"), _kind(hint)


def _kind(hint: Any) -> Any:
    """What one value of the option is: of `list[str] | None` it is `str`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not types.NoneType]
    origin = typing.get_origin(hint)
    return typing.get_args(hint)[0] if origin is list else origin or hint


def rows() -> Iterator[Row]:
    for name, flag, value, more in WORDS:
        found = re.split(r"[,\n:]", value)[-1:]
        yield Row(f"{name} {flag} {value!r}", (*COMMANDS[name], flag, value), (*found, *more))
    for name, given, words in CONTRADICTIONS:
        yield Row(f"{name} {' '.join(given)}", (*COMMANDS[name], *given), words)
    for name in dict.fromkeys(name.split()[0] for name in COMMANDS):
        yield Row(f"{name} --nonsense", (*COMMANDS[name], "--nonsense"), ("--nonsense",))
        for flag, kind in options(name):
            for value in VALUES.get(kind, ()):
                if (name, flag, value) not in FINE:
                    yield Row(f"{name} {flag} {value!r}", (*COMMANDS[name], flag, value), (flag, value))
