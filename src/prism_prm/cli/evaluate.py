"""`prism eval`: measure a PRM on PRMBench, ProcessBench or labelled data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism_prm.cli.options import (
    A_CRITIC,
    FITTING,
    FITTING_HELP,
    LOADING,
    REMOTE,
    Options,
    Store,
    critic_options,
    out_folder,
    prm_options,
    ray_options,
    with_settings,
)
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.console import say
from prism_prm.errors import ConfigError, SettingError

if TYPE_CHECKING:
    from prism_prm.backends.critic_settings import CriticSettings
    from prism_prm.evaluate.evaluate_prm import EvalSettings, Evaluation
    from prism_prm.models.load_settings import LoadSettings
    from prism_prm.ray import RaySettings

EXAMPLES = """
**Examples**

- Two benchmarks from local files:

  `prism eval --prm runs/my-prm --bench prmbench,processbench --data benchmarks/ --out eval/my-prm`

- A benchmark from the hub:

  `prism eval --prm Qwen/Qwen2.5-Math-PRM-7B --bench processbench --out eval/qwen --dtype bfloat16`

- Scores from elsewhere:

  `prism eval --bench prmbench --data prmbench/ --predictions scores.jsonl --out eval/other`

- Another threshold for existing scores:

  `prism eval --bench labeled --data my_labels.jsonl --scores eval/my-prm/labeled.scores.parquet
  --threshold tpr=0.95 --out eval/at-95`

- Held-out problems; `pairs` measures annotated errors and early steps separately:

  `prism eval --prm runs/my-prm --bench labeled,pairs --data runs/my-prm/data --split validation
  --out eval/held-out`

- A chat model behind a server as the critic (vLLM, llama.cpp, an OpenAI-compatible API):

  `prism eval --prm critic:openai:http://localhost:8000/v1 --critic thinkprm --votes 4 --bench processbench
  --out eval/thinkprm`

- Contaminated items reported separately:

  `prism eval --prm runs/my-prm --bench prmbench --data prmbench/ --trained-on phase1_train.jsonl --out eval/my-prm`
"""


MEASURING = ("holdout", "redundancy_threshold", "num_draws", "seed")
LOADED = ("family", "dtype", "device", "token_budget", "context", "on_too_long", "cache", "cache_gb")


@with_settings(
    settings=Options(
        "prism_prm.evaluate.evaluate_prm:EvalSettings", {"Measuring": MEASURING}, names={"num_draws": "--draws"}
    ),
    loading=Options(
        LOADING,
        {"PRM": LOADED, "Remote PRM": REMOTE},
        narrowed={"on_too_long": FITTING},
        helps={"on_too_long": FITTING_HELP},
    ),
    critic=critic_options(),
    cluster=ray_options(),
)
def evaluate(
    *,
    bench: Annotated[
        str,
        typer.Option(
            help="The benchmarks, separated by commas: prmbench, processbench, labeled, pairs, or one that an "
            "installed package adds."
        ),
    ],
    out: Annotated[Path, out_folder("Folder for report.html, report.md, metrics.json and scores.")],
    prm: Annotated[
        str | None,
        typer.Option(
            help=f"The PRM to measure: a folder, a hub id, a training run, prism:URL, vllm:URL, or {A_CRITIC}."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="The benchmark's files or folders, a folder that contains a folder named after it, or a hub id. "
            "Partial benchmarks are fine. By default the data comes from the hub."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="For labelled and pairs: use only this split of a folder written by `prism pairs`."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="A scores table of this data (from `prism score` or an earlier run).")
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help='JSON lines {"id": "…", "scores": [0.9, …]} or {"id": "…", "labels": [true, …]}.'),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The PRM's name in the report.")] = None,
    trained_on: Annotated[
        list[Path] | None,
        typer.Option(help="Training data. Items on its problems are reported separately, as contaminated."),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="A step counts as right above this. tpr=0.95 chooses the threshold for this TPR on held-out problems. "
            "prm uses the threshold of the PRM's card for PRMBench and ProcessBench too.",
            show_default="the PRM's card; 0.5 for PRMBench and ProcessBench",
        ),
    ] = None,
    settings: EvalSettings,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="Use at most this many items of each class or split, chosen by --seed."),
    ] = None,
    loading: LoadSettings,
    critic: CriticSettings,
    store: Store = None,
    cluster: RaySettings,
) -> None:
    """Measure how well a PRM judges steps, and write a report.

    Scores come from a PRM (--prm), a scores table (--scores) or elsewhere (--predictions). The output folder keeps the
    scores: to try another threshold without scoring again, rerun with the same --out.
    """
    from prism_prm.evaluate.evaluate_prm import evaluate_prm
    from prism_prm.report import PAGE

    settings = settings if threshold is None else _with_threshold(settings, threshold)
    evaluations = evaluate_prm(
        prm, [part.strip() for part in bench.split(",") if part.strip()], out,
        data=data or (), split=split, scores=scores, predictions=predictions, name=name, trained_on=trained_on or (),
        limit=limit, settings=settings, store=store,
        prm_options=prm_options(loading, critic=critic, ray=cluster.given),
    )  # fmt: skip

    def show() -> None:
        for evaluation in evaluations.values():
            _print(evaluation)
        tell(out / PAGE)

    conclude(lambda: report_facts(out), show)


def _with_threshold(settings: EvalSettings, text: str) -> EvalSettings:
    try:
        return replace(settings, **_threshold(text))
    except SettingError as error:
        raise ConfigError(f"--threshold {text}: {error.reason}, e.g. 0.5 or tpr=0.95") from None


def _threshold(text: str) -> dict[str, Any]:
    """The setting that --threshold fills."""
    if text == "prm":
        return {"threshold": text}
    key, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if key not in ("", "tpr") or number != number:
        raise ConfigError(f"--threshold {text!r} must be a number such as 0.5, tpr=0.95, or prm")
    return {"target_tpr" if key else "threshold": number}


def _print(evaluation: Evaluation) -> None:
    from prism_prm.evaluate.benchmarks import find_benchmark
    from prism_prm.evaluate.measure import RATES, metric_rows

    tables = evaluation.subsets["all"].tables
    own = find_benchmark(evaluation.bench).headlines(tables)
    rows = metric_rows({**RATES, "auroc": "AUROC ↑"}, [tables["steps"]])
    rows += metric_rows({label: label for label in own}, [own])
    print_table(evaluation.described, ["metric (%)", "value [95 % interval]"], rows)
    say(f"Threshold: {evaluation.threshold.value:.4g}, {evaluation.threshold.origin}")
