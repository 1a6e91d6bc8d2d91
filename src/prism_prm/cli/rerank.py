"""`prism rerank`: Best-of-N and votes on a pool of solutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli.options import Command, Out, check_store, families_of, narrow, prm_options
from prism_prm.cli.ui import conclude_report, print_table
from prism_prm.console import say
from prism_prm.errors import ConfigError
from prism_prm.models.load_settings import LoadSettings
from prism_prm.paths import named_places
from prism_prm.ray import RaySettings
from prism_prm.search.rerank_pool import RerankSettings


@dataclass(frozen=True, slots=True)
class RerankCommand(RerankSettings):
    """The settings of `prism rerank`."""

    pool: tuple[str, ...] = ()
    """The pool of solutions: .jsonl, .json, .parquet, a folder, or a hub dataset."""
    prm: tuple[str, ...] = ()
    """A PRM to score with, or NAME=PRM: a folder, hub id, prism:URL, vllm:URL, critic:openai:URL, critic:hf:FOLDER,
    or another scorer: ensemble:…, implicit:…, orm:…, logprob:… (docs/guides/rivals.md)."""
    scores: tuple[str, ...] = ()
    """Existing scores of this pool, or NAME=FILE: a table, or JSON lines of {"name", "scores"} per problem."""
    task: str | None = None
    """Take reference answers and tests from this task or file, not from the pool."""
    task_data: str | None = None
    """The local file of the task. By default it comes from the hub."""
    family: tuple[str, ...] = ()
    """The family of all PRMs, or NAME=FAMILY for one, if their folders do not name it."""
    store: Path | None = None
    """A folder of scores to reuse and extend, shared by all commands."""
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        super(RerankCommand, self).__post_init__()
        if not self.pool:
            raise ConfigError("no pool: name a file of solutions, e.g. pool.jsonl")


def rerank(settings: RerankCommand, out: Path) -> None:
    """Select one of N solutions (Best-of-N, majority, PRM-weighted vote) and measure it, for n = 1, 2, 4, … N.

    Writes selected.jsonl with the solution that each rule selects. Programs run in a sandbox, and vote by what they do
    on the public tests. Rerun to resume.
    """
    from prism_prm.aggregate import GIVEN
    from prism_prm.report import percent
    from prism_prm.search.rerank_pool import SELECTED, rerank_pool
    from prism_prm.search.rerank_report import notes, row_name

    prms = named_places(settings.prm)
    results = rerank_pool(
        settings.pool, out, prms=prms, scores=named_places(settings.scores), task=settings.task,
        task_data=settings.task_data, settings=narrow(settings, RerankSettings), store=check_store(settings.store),
        prm_options=prm_options(settings, families=families_of(settings.family, prms)),
    )  # fmt: skip

    def show() -> None:
        # Named aggregators are all shown; otherwise each PRM's own, and the report has the others.
        named = any(choice.origin == GIVEN for choice in results.own_aggregator.values())
        rows = [
            [row_name(curve, with_aggregator=named), *(percent(point.value) for point in curve.points)]
            for curve in (results.curves if named else results.own_curves)
        ]
        if rows:
            print_table("Expected accuracy (%)", ["selection", *(f"n={n}" for n in results.ns)], rows)
        for note in notes(results):
            say(note)
        guessed = results.graded.count("method")["last number"]
        failed = {status: count for status, count in results.graded.count("status").items() if status != "ok"}
        problems = [f"{count:,} {status}" for status, count in failed.items()]
        problems += [f"{guessed:,} guessed from the last number"] if guessed else []
        unscored = {prm: results.num_unscored(prm) for prm in results.scores}
        problems += [f"{count:,} not scored by {prm}" for prm, count in unscored.items() if count]
        if problems:
            say(f"Of {len(results.graded.pool.solutions):,} solutions: {', '.join(problems)}.")

    say(f"Selected: {out / SELECTED}")
    conclude_report(out, show)


COMMAND = Command(
    RerankCommand,
    rerank,
    argument="pool",
    out=Out("Folder for tables, metrics.json and the report."),
    options={
        "--prm": "prm", "--scores": "scores", "--task": "task", "--task-data": "task_data",
        "--aggregators": "aggregators", "-n": "ns", "--adaptive": "adaptive.error",
        "--answer-field": "answer_field", "--family": "family",
        "--dtype": "load.dtype", "--device": "load.device", "--store": "store", "--ray": "ray.address",
    },
    examples={
        'A line of a pool: {"problem": "…", "answer": "12", "solutions": ["a text", ["two", "steps"]]}':
            "prism rerank pool.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B --out rerank",
        "Two PRMs compared on the same pool":
            "prism rerank pool.jsonl --prm base=prms/base --prm prism=prms/prism --out rerank",
    },
)  # fmt: skip
