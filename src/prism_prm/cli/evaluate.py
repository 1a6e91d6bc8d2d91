"""`prism eval`: measure a PRM on PRMBench, ProcessBench or labeled data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli.options import Command, Out, check_store, narrow, prm_options
from prism_prm.cli.ui import conclude_report, print_table
from prism_prm.config import Count, Word
from prism_prm.console import say
from prism_prm.errors import ConfigError
from prism_prm.evaluate.evaluate_prm import EvalSettings
from prism_prm.models.load_settings import LoadSettings
from prism_prm.ray import RaySettings


@dataclass(frozen=True, slots=True)
class EvalCommand(EvalSettings):
    """The settings of `prism eval`."""

    bench: tuple[Word, ...] = ()
    """The benchmarks: prmbench, processbench, labeled, pairs, or one that an installed package adds."""
    prm: tuple[str, ...] = ()
    """The PRM: a folder, a hub id, a training run, prism:URL, vllm:URL, critic:openai:URL, critic:hf:FOLDER, or
    another scorer: ensemble:…, implicit:…, orm:…, logprob:… (docs/guides/rivals.md)."""
    data: tuple[str, ...] = ()
    """The benchmark's files, folders or hub id. A folder may contain one named after the benchmark. By default the data
    comes from the hub. Partial benchmarks are fine."""
    split: str | None = None
    """For labeled and pairs: use only this split. Folders of `prism pairs` have splits."""
    scores: Path | None = None
    """A scores table of this data. It comes from `prism score` or an earlier run."""
    predictions: Path | None = None
    """Scores from elsewhere: JSON lines {"id": "…", "scores": [0.9, …]} or {"id": "…", "labels": [true, …]}."""
    name: str | None = None
    """The PRM's name in the report."""
    trained_on: tuple[str, ...] = ()
    """Training data: items on its problems are reported separately."""
    limit: Count | None = None
    """Use at most this many items of each class or split, chosen by the seed."""
    store: Path | None = None
    """A folder of scores to reuse and extend, shared by all commands."""
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        super(EvalCommand, self).__post_init__()
        if len(self.prm) > 1:
            raise ConfigError("--prm is given more than once: run `prism eval` once per PRM, then `prism compare`")
        if not self.bench:
            raise ConfigError("no benchmark: name one with --bench, e.g. --bench processbench")
        if self.load.on_too_long == "skip":
            raise ConfigError("load.on_too_long = 'skip': every step of a benchmark needs a score; use error or window")


def evaluate(settings: EvalCommand, out: Path) -> None:
    """Measure how well a PRM judges steps, and write a report.

    Scores come from a PRM (--prm), a scores table (--scores) or elsewhere (--predictions). The output folder keeps the
    scores: to try another threshold, rerun with the same --out.
    """
    from prism_prm.evaluate.benchmarks import find_benchmark
    from prism_prm.evaluate.evaluate_prm import evaluate_prm
    from prism_prm.evaluate.measure import AUROCS, NO_SIBLINGS, RATES, known_aurocs, metric_rows

    evaluations = evaluate_prm(
        next(iter(settings.prm), None), settings.bench, out, data=settings.data, split=settings.split,
        scores=settings.scores, predictions=settings.predictions, name=settings.name, trained_on=settings.trained_on,
        limit=settings.limit, settings=narrow(settings, EvalSettings), store=check_store(settings.store),
        prm_options=prm_options(settings),
    )  # fmt: skip

    def show() -> None:
        for evaluation in evaluations.values():
            tables = evaluation.subsets["all"].tables
            own = find_benchmark(evaluation.bench).headlines(tables)
            aurocs = known_aurocs([tables["steps"]])
            rows = metric_rows({**RATES, **aurocs}, [tables["steps"]])
            rows += metric_rows({label: label for label in own}, [own])
            print_table(evaluation.described, ["metric (%)", "value [95 % interval]"], rows)
            if aurocs and len(aurocs) < len(AUROCS):
                say(NO_SIBLINGS)
            say(f"Threshold: {evaluation.threshold.value:.4g}, {evaluation.threshold.origin}")

    conclude_report(out, show)


COMMAND = Command(
    EvalCommand,
    evaluate,
    out=Out("Folder for report.html, report.md, metrics.json and scores."),
    options={
        "--prm": "prm", "--bench": "bench", "--data": "data", "--split": "split", "--scores": "scores",
        "--predictions": "predictions", "--trained-on": "trained_on", "--threshold": "threshold",
        "--target-tpr": "target_tpr", "--limit": "limit", "--dtype": "load.dtype", "--device": "load.device",
        "--store": "store", "--ray": "ray.address",
    },
    examples={
        "Two benchmarks from local files":
            "prism eval --prm runs/my-prm --bench prmbench,processbench --data benchmarks/ --out eval/my-prm",
        "Held-out problems of a training run":
            "prism eval --prm runs/my-prm --bench labeled,pairs --data runs/my-prm/data --split validation "
            "--out eval/held-out",
        "A chat model behind a server as a critic":
            "prism eval --prm critic:openai:http://localhost:8000/v1 -C format=thinkprm -C votes=4 "
            "--bench processbench --out eval/thinkprm",
    },
)  # fmt: skip
