"""`prism rerank`: Best-of-N and votes on a pool of solutions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import LOADING, Options, Store, with_settings
from prism_prm.cli.ui import print_table, progress, say
from prism_prm.errors import ConfigError
from prism_prm.names import file_name, named_places

if TYPE_CHECKING:
    from prism_prm.pools import Pool
    from prism_prm.rerank.grading import GradedPool
    from prism_prm.rerank.results import Results
    from prism_prm.rerank.step_scores import StepScores
    from prism_prm.scorer.settings import LoadSettings

SOLUTIONS = "solutions.parquet"

EXAMPLES = """
**Examples**

- The votes that need no PRM, and what a perfect one could reach:

  `prism rerank pool.jsonl --out rerank`

- With a PRM:

  `prism rerank pool.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B --out rerank`

- Two PRMs compared on the same pool:

  `prism rerank pool.jsonl --prm base=prms/base --prm prism=prms/prism --out rerank`

**A pool** has one record per problem, whose solutions are texts, lists of steps, or objects with more about them:

`{"problem": "…", "answer": "12", "solutions": ["a text", ["two", "steps"], {"text": "…", "answer": "12"}]}`
"""


LOADED = ("family", "dtype", "device", "device_map", "token_budget", "on_too_long", "cache", "cache_gb")


@with_settings(loading=Options(LOADING, {"PRM": LOADED}))
def rerank(
    *,
    pool: Annotated[
        list[str], typer.Argument(help="Pool of solutions: .jsonl, .json, .parquet, a folder, or a hub data set.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", file_okay=False, help="Folder for tables, metrics.json and the report.")
    ],
    prm: Annotated[
        list[str] | None,
        typer.Option(help="Score with this PRM: folder or hub id, or NAME=folder. Give several to compare them."),
    ] = None,
    scores: Annotated[
        list[str] | None, typer.Option(help="Scores of this pool made before: scores.parquet, or NAME=file.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Take the reference answers from this task (math-500, gsm8k, …) or file, not from the pool."),
    ] = None,
    task_data: Annotated[str | None, typer.Option(help="Local file of --task; default: the hub.")] = None,
    aggregators: Annotated[
        str, typer.Option(help="How step scores become a solution's score; the first is drawn in the main figure.")
    ] = "last,min,product,mean,soft-min",
    n: Annotated[
        str | None, typer.Option("-n", help="Numbers of solutions, e.g. 1,4,16; default 1, 2, 4, … N.")
    ] = None,
    extract: Annotated[
        str, typer.Option(help="Ways to find the answer in a solution, surest first.")
    ] = "boxed,####,answer is,last number",
    draws: Annotated[int, typer.Option(min=1, help="Draws per problem for the votes.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of these draws.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that judge answers; default: all cores.")
    ] = None,
    loading: LoadSettings,
    store: Store = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="CPU seconds for one comparison of answers.")] = 5.0,
) -> None:
    """Select one of N solutions (Best-of-N, majority, PRM-weighted vote) and measure it, for n = 1, 2, 4, … N.

    Interrupted, the same command goes on where it was: grades and scores are kept in the output folder.
    """
    from prism_prm.aggregate import check_aggregator
    from prism_prm.rerank.curves import check_ns, compute_curves
    from prism_prm.rerank.page import make_report
    from prism_prm.rerank.results import Results
    from prism_prm.rerank.solutions import write_solutions

    hows = _words(aggregators)
    for how in hows:
        check_aggregator(how)
    named_prms, named_scores = named_places(prm or []), named_places(scores or [])
    wanted = [_whole(word) for word in _words(n)] if n else None
    found = _read_pool(pool, task, task_data)
    ns = None if wanted is None else check_ns(found, wanted)
    graded, graded_as = _grade(found, out, _words(extract), workers, time_limit)
    step_scores = _collect_scores(found, named_prms, named_scores, out, store, asdict(loading))
    with progress("curves", len(found.problems), unit="problems") as advance:
        curves = compute_curves(
            graded, step_scores, aggregators=hows, ns=ns, num_draws=draws, seed=seed, advance=advance
        )
    title = f"Re-ranking {', '.join(Path(name).name for name in pool)}"
    results = Results(title, graded, step_scores, curves, hows, draws)
    write_solutions(out / SOLUTIONS, graded, graded_as, step_scores, hows)
    results.write_curves(out / "curves.parquet")
    page = make_report(results).write(out)
    _show(results)
    say(f"Report: {page}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _whole(word: str) -> int:
    if not word.isdecimal():
        raise ConfigError(f"-n {word}: expected whole numbers, e.g. -n 1,4,16")
    return int(word)


def _read_pool(sources: list[str], task: str | None, task_data: str | None) -> Pool:
    from prism_prm.data.inputs import find_sources
    from prism_prm.pools import read_pool
    from prism_prm.rerank.grading import with_task
    from prism_prm.tasks import load_task

    sizes = [source.size() for source in find_sources(sources)]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    with progress("reading", total, is_bytes=True) as advance:
        pool = read_pool(sources, advance)
    return with_task(pool, load_task(task, task_data)) if task else pool


def _grade(pool: Pool, out: Path, methods: list[str], workers: int | None, seconds: float) -> tuple[GradedPool, str]:
    """The grades of the pool, from an earlier run where it has them."""
    from prism_prm.rerank.grading import grade_pool
    from prism_prm.rerank.solutions import grading_hash, read_grades, write_solutions
    from prism_prm.tasks import MathGrader

    with MathGrader(methods=methods, workers=workers, seconds=seconds) as grader:
        graded_as = grading_hash(pool, grader)
        known = read_grades(out / SOLUTIONS, pool, graded_as)
        if known is not None:
            say(f"Grades: taken from {out / SOLUTIONS}")
            return known, graded_as
        with progress("judging", 2 * len(pool.solutions), unit="comparisons") as advance:
            graded = grade_pool(pool, grader, advance)
    write_solutions(out / SOLUTIONS, graded, graded_as)
    return graded, graded_as


def _collect_scores(
    pool: Pool, prms: dict[str, str], tables: dict[str, str], out: Path, store: Path | None, options: dict[str, Any]
) -> dict[str, StepScores]:
    """PRM → scores: those in the pool, those made before, and those to make now."""
    from prism_prm.rerank.step_scores import scores_in_pool, scores_in_table
    from prism_prm.scorer import load_prm
    from prism_prm.scorer.table import write_scores

    found: dict[str, StepScores] = {}
    if (own := scores_in_pool(pool)) is not None:
        found["pool"] = own
    if twice := [name for name in prms if name in tables] + [name for name in (*prms, *tables) if name in found]:
        raise ConfigError(
            f"Two sets of scores are called {twice[0]!r}; give them names, e.g. --scores old=scores.parquet"
        )
    for name, path in tables.items():
        found[name] = scores_in_table(path, pool)
    for name, place in prms.items():
        table = out / "scores" / f"{file_name(name)}.parquet"
        model = load_prm(place, **options)
        with progress(f"scoring, {name}", len(pool.trees()), unit="solutions") as advance:
            write_scores(model, pool.trees(), table, store=store, advance=advance)
        found[name] = scores_in_table(table, pool)
    return found


def _show(results: Results) -> None:
    """The curves, and what could not be judged."""
    from prism_prm.report import percent
    from prism_prm.rerank.page import TITLES, without_solution

    rows = [
        [" · ".join(part for part in (curve.prm, TITLES[curve.method], curve.aggregator) if part)]
        + [percent(point.value) for point in curve.points]
        for curve in results.curves
    ]
    print_table("Expected accuracy (%)", ["selection", *(f"n={n}" for n in results.ns)], rows)
    pool = results.graded.pool
    if empty := without_solution(pool.num_empty, len(pool.problems)):
        say(empty)
    guessed = results.graded.count("method")["last number"]
    failed = {status: count for status, count in results.graded.count("status").items() if status != "ok"}
    shown = [f"{count:,} {status}" for status, count in failed.items()]
    shown += [f"{guessed:,} guessed from the last number"] if guessed else []
    shown += [
        f"{results.num_unscored(prm):,} not scored by {prm}" for prm in results.scores if results.num_unscored(prm)
    ]
    if shown:
        say(f"Of {len(pool.solutions):,} solutions: {', '.join(shown)}.")
