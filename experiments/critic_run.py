"""A chat model as critic on ProcessBench's gsm8k: F1 with intervals for several formats, next to published rows.

The model is a GGUF file behind llama.cpp (`pip install xllamacpp`), or a running server. Every reply is stored as it
arrives, so a killed run resumes with the same command. A seed fixes the order of the items, so a longer run extends a
shorter one. After every few items OUT/table.md is rewritten.

Run: python experiments/critic_run.py --gguf qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --data processbench/gsm8k.json \
         --items 60 --out runs/critic-qwen
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prism_prm import CriticSettings, EvalSettings, evaluate_prm, metrics, open_critic, read_benchmark
from prism_prm.backends.critic import Critic
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import Item
from prism_prm.evaluate.evaluate_prm import Evaluation
from prism_prm.evaluate.measure import shown
from prism_prm.files import write_text
from prism_prm.report import percent

AT_ONCE = 4
"""Concurrent requests."""
CHUNK = 12
"""Items between two tables."""
COLUMNS = (
    "format", "verdicts by", "items", "with an error", "error found ↑", "no error seen ↑", "F1 ↑",
    "F1, no verdict is a miss ↑", "AUROC of steps ↑", "items without a verdict", "tokens read", "tokens written",
    "seconds of waiting",
)  # fmt: skip
PUBLISHED = """\
Published rows are of larger models. ProcessBench gsm8k, processbench format, greedy, as a user of the benchmark reports
it (QwenLM/ProcessBench, issue 7): Qwen2.5-7B-Instruct, error found 44.0, no error seen 46.1, F1 45.0. PRMBench (TPR /
TNR / PRMScore): ThinkPRM-7B 83.29 / 50.89 / 64.3, GenPRM-7B 52.25 / 73.92 / 50.5, GPT-4o 82.9 / 58.2 / 66.8."""


@contextlib.contextmanager
def served(gguf: Path, threads: int) -> Iterator[str]:
    """Run a llama.cpp server, which ends with this process; yields its address."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(gguf)
    options.model_alias = {gguf.stem}  # replies are stored under this name, so the file may move
    options.n_parallel, options.n_ctx, options.verbosity = AT_ONCE, AT_ONCE * 2560, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.hostnames, options.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(options)
    yield f"{server.listening_address}/v1"
    del server


def first_items(given: argparse.Namespace, limit: int) -> tuple[Item, ...]:
    """The items that `evaluate_prm` uses with this limit."""
    return read_benchmark("processbench", given.data).some(limit, seed=EvalSettings().seed).items


def ask(critic: Critic, format: str, given: argparse.Namespace, limit: int) -> None:
    """Ask the critic about the first items; shows the progress of new requests."""
    items = first_items(given, limit)
    ledger, began, done = critic.ledger, time.monotonic(), 0
    before = ledger.tokens

    def advance(count: int, _more: str = "", /) -> None:
        nonlocal done
        done += count
        if ledger.tokens > before:
            missing = f", without a verdict: {dict(ledger.tally.missing)}" if ledger.tally.missing else ""
            spent = f"{ledger.tokens - before:,} new tokens in {time.monotonic() - began:.0f} s"
            say(f"{format}: {done} of {given.items} items, {spent}{missing}")

    critic.score_trees([item.tree for item in items], advance=advance)


def measure(url: str, format: str, given: argparse.Namespace, limit: int) -> dict[str, Any]:
    """Ask about the first items and evaluate them: a row of the table."""
    folder = given.out / format
    settings = CriticSettings(
        format=format, replies=str(folder / "replies"), on_missing="skip", timeout=1800.0,
        concurrency=1 if format == "direct" else AT_ONCE,  # each question extends the last one
        max_tokens=given.max_tokens if format != "direct" else None,
    )  # fmt: skip
    critic = open_critic(f"critic:openai:{url}", settings)
    with contextlib.closing(critic):
        ask(critic, format, given, limit)
        summary, replies = critic.summary(), critic.replies.by_key.values()
        row: dict[str, Any] = {
            "format": format,
            "verdicts by": "log-probabilities" if summary["by_log_probability"] else "text",
            "tokens read": f"{sum(reply.prompt_tokens for reply in replies):,}",
            "tokens written": f"{sum(reply.completion_tokens for reply in replies):,}",
            "seconds of waiting": f"{sum(reply.seconds for reply in replies):,.0f}",
            "answers": {name: summary[name] for name in ("verdicts", "missing", "notes")},
            "model": summary["model"],
        }
        asked = first_items(given, limit)
        try:
            found = evaluate_prm(critic, "processbench", folder, data=given.data, limit=limit, name=format)
        except DataError:  # no verdict at all
            return {**row, "items": len(asked), "items without a verdict": len(asked)}
    return {**row, **results(found["processbench"], asked)}


def results(found: Evaluation, asked: Sequence[Item]) -> dict[str, Any]:
    """The cells of the table for an evaluation."""
    subset, steps = found.subsets["all"], found.steps
    own = subset.tables["split:gsm8k"]
    with_error = sum(any(node.label == 0 for node in item.tree.nodes) for item in asked)
    sums = metrics.processbench_tallies(
        metrics.first_bad(steps.wrong, steps.starts), metrics.first_bad(steps.probability < 0.5, steps.starts)
    ).sum(axis=0)  # fmt: skip
    sums[0], sums[2] = with_error, len(asked) - with_error  # an item without a verdict is one that was not found
    return {
        "items": len(asked), "with an error": with_error, "items without a verdict": len(asked) - subset.num_items,
        "error found ↑": shown(own["acc_error"]), "no error seen ↑": shown(own["acc_correct"]),
        "F1 ↑": shown(own["f1"]), "F1, no verdict is a miss ↑": percent(float(metrics.processbench_rates(sums)["f1"])),
        "AUROC of steps ↑": shown(subset.tables["steps"].get("auroc")), "left out": found.notes,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown for a page of the docs."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(str(row.get(name, '–')) for name in COLUMNS)} |" for row in rows]
    notes = []
    for row in rows:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in row["answers"]["missing"].items()) or "none"
        others = "".join(f"; {what}: {count:,}" for what, count in row["answers"]["notes"].items())
        read = sum(row["answers"]["verdicts"].values())
        notes.append(f"{row['format']}: {read:,} verdicts; answers without one: {kinds}{others}.")
    about = (
        f"{rows[0]['model']}, ProcessBench gsm8k. In %, with 95 % intervals over problems; at chance the AUROC is 50."
    )
    return "\n".join([about, "", *lines, "", *notes, "", PUBLISHED]) + "\n"


def main() -> None:
    """Evaluate a growing number of items, for one format after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="the model's file")
    parser.add_argument("--url", help="a running server instead of --gguf")
    parser.add_argument("--data", required=True, help="ProcessBench's gsm8k file")
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--formats", nargs="+", default=["direct", "processbench"])
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a critique")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if not (given.gguf or given.url):
        parser.error("name a model's file (--gguf) or a running server (--url)")
    with contextlib.nullcontext(given.url) if given.url else served(given.gguf, given.threads) as url:
        for limit in [*range(CHUNK, given.items, CHUNK), given.items]:
            rows = [measure(url, format, given, limit) for format in given.formats]
            write_text(given.out / "results.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
            write_text(given.out / "table.md", table(rows))
            say(f"{limit} of {given.items} items are in {given.out / 'table.md'}")


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
