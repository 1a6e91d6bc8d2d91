"""A chat model as critic on ProcessBench's gsm8k: F1 with intervals, by several formats, beside published rows.

The model is a GGUF file behind llama.cpp (`pip install xllamacpp`), or any server by its address. Replies are kept in
OUT/replies, so that the command can be stopped at any time and goes on where it was, also days later; after every
portion of items the table is written anew from what is there. `--budget-tokens` ends a sitting cleanly.

Run: python experiments/critic_run.py --gguf qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --data processbench/gsm8k.json \
         --items 60 --out runs/critic-qwen
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from prism_prm import CriticSettings, EvalSettings, evaluate_prm, read_benchmark
from prism_prm.cli.ui import say
from prism_prm.critics.asking import BudgetError
from prism_prm.critics.load import open_critic
from prism_prm.evaluation.display import shown
from prism_prm.files import write_text

PORTION = 4
"""Items between two looks at the table."""


@contextlib.contextmanager
def served(gguf: Path, threads: int) -> Iterator[str]:
    """The address of llama.cpp's server for a model."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(gguf)
    settings.n_parallel, settings.n_ctx = 2, 8192
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(settings)
    yield f"{server.listening_address}/v1"


def measure(url: str, format: str, given: argparse.Namespace) -> dict[str, object] | None:
    """Ask about all items, portion by portion, then evaluate; None if the budget of this sitting is spent."""
    settings = CriticSettings(
        format=format, replies=str(given.out / "replies"), on_missing="skip", concurrency=2, timeout=900.0,
        budget_tokens=given.budget_tokens, max_tokens=given.max_tokens if format != "direct" else None,
    )  # fmt: skip
    critic = open_critic(f"critic:openai:{url}", settings)
    items = read_benchmark("processbench", given.data)
    some = items.some(given.items, seed=0)
    trees = [item.tree for item in some.items]
    try:
        for start in range(0, len(trees), PORTION):
            critic.score_trees(trees[start : start + PORTION])
            say(f"{format}: {min(start + PORTION, len(trees))} of {len(trees)} items")
    except BudgetError as error:
        say(str(error))
        return None
    found = evaluate_prm(
        critic, "processbench", given.out / format, data=given.data, limit=given.items, settings=EvalSettings(),
        name=f"critic, {format}",
    )["processbench"]  # fmt: skip
    table = found.subsets["all"].tables
    own = table["split:gsm8k"]
    run = json.loads((given.out / format / "metrics.json").read_text())["run"]
    return {
        "format": format, "items": found.subsets["all"].num_items, "left_out": found.notes, "tokens": run["tokens"],
        "error found": shown(own["acc_error"]), "no error seen": shown(own["acc_correct"]), "F1": shown(own["f1"]),
        "AUROC of steps": shown(table["steps"].get("auroc")),
        "verdicts": "log-probabilities" if run["critic"]["by_log_probability"] else "votes",
    }  # fmt: skip


def main() -> None:
    """Run the formats one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="the model's file")
    parser.add_argument("--url", help="a running server instead of --gguf")
    parser.add_argument("--data", required=True, help="ProcessBench's gsm8k file")
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--formats", nargs="+", default=["direct", "processbench"])
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a critique")
    parser.add_argument("--budget-tokens", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    with contextlib.nullcontext(given.url) if given.url else served(given.gguf, given.threads) as url:
        for format in given.formats:
            row = measure(url, format, given)
            if row is None:
                break
            rows.append(row)
            names = [name for name in row if name != "left_out"]
            lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
            lines += [f"| {' | '.join(str(one[name]) for name in names)} |" for one in rows]
            notes = [f"{one['format']}: {one['left_out']}" for one in rows if one["left_out"]]
            write_text(given.out / "table.md", "\n".join([*lines, "", *notes]) + "\n")
            write_text(given.out / "results.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
            say(f"Table: {given.out / 'table.md'}")


if __name__ == "__main__":
    main()
