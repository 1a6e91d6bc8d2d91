"""`prism score`: P(right) of every step, in one table, on the terminal, or as margins of pairs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli.options import Command, Out, check_store, families_of, prm_options
from prism_prm.cli.plan import show_plan
from prism_prm.cli.ui import conclude, print_table, tell
from prism_prm.config import Count, Share, check
from prism_prm.data.formats import ReadOptions
from prism_prm.errors import ConfigError
from prism_prm.models.load_settings import LoadSettings
from prism_prm.paths import named_places
from prism_prm.plan.plan_settings import PlanSettings
from prism_prm.ray import RaySettings

if TYPE_CHECKING:
    from prism_prm.backends.open_scorer import PrmOptions


@dataclass(frozen=True, slots=True)
class ScoreCommand:
    """The settings of `prism score`."""

    inputs: tuple[str, ...] = ()
    """Files, folders or hub datasets: problems with steps, trees, or pools. With --pairs, a folder of `prism pairs`."""
    prm: tuple[str, ...] = ()
    """The PRM: a folder, a hub id, a training run, prism:URL, vllm:URL, critic:openai:URL, critic:hf:FOLDER, or
    another scorer: ensemble:…, implicit:…, orm:…, logprob:… (docs/guides/rivals.md). --show shows several side by side;
    NAME=PRM names one."""
    pairs: bool = False
    """Write the margin r⁺ − r⁻ of every pair instead, and show the paper's curriculum bins."""
    show: bool = False
    """Print the first solutions with a mark, color and score for each step; write nothing."""
    limit: Count | None = None
    """With --show: how many solutions to print. By default 10."""
    threshold: Share | None = None
    """With --show: a step counts as right above this probability. By default as the PRM's card says."""
    format: str = "auto"
    """The format of the input. With auto, the fields of the records decide. pool is a pool of solutions."""
    split: str | None = None
    """With --pairs: use only the pairs of this split."""
    family: tuple[str, ...] = ()
    """The PRM's family, if its folder does not name it; NAME=FAMILY for one of several. my_file.py:Mine is a class in
    your own file."""
    store: Path | None = None
    """A folder of scores to reuse and extend, shared by all commands."""
    chunk: Count = 64
    """How many trees are scored and saved together. A stopped run loses at most this many."""
    read: ReadOptions = field(default_factory=ReadOptions)
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    plan: PlanSettings = field(default_factory=PlanSettings)

    def __post_init__(self) -> None:
        check(self)
        if not self.inputs:
            raise ConfigError("no input: name files, folders or hub datasets to score")
        if not self.prm:
            raise ConfigError("no PRM: name one with --prm, e.g. --prm Qwen/Qwen2.5-Math-PRM-7B")
        if len(self.prm) > 1 and not self.show:
            raise ConfigError("--prm is given more than once: only --show scores with several PRMs")
        if not self.show and (self.limit is not None or self.threshold is not None):
            raise ConfigError("--limit and --threshold are for --show; without it, all steps are scored and written")
        if self.plan.hardware and (self.show or self.pairs):
            raise ConfigError("--plan counts all steps of the input; leave out --show and --pairs")
        if self.split is not None and not self.pairs:
            raise ConfigError("--split is for --pairs; for one split of a trees.parquet, add --set read.split=NAME")
        if self.pairs and (self.show or len(self.inputs) > 1):
            raise ConfigError("--pairs takes one folder of `prism pairs`, and no --show")


def score(settings: ScoreCommand, out: Path | None) -> None:
    """Score every step of solutions or trees with a PRM.

    Writes one row per step: its ids, the family's named log-odds, the probability that the step is right, and the hash
    of the model. Rerun to resume.
    """
    from prism_prm.backends.open_scorer import check_scorer
    from prism_prm.data.inputs import find_sources

    prms = named_places(settings.prm)
    families = families_of(settings.family, prms)
    if settings.show:
        options = prm_options(settings, families=families)
        for name, place in prms.items():
            check_scorer(place, options, name)
        find_sources(settings.inputs)
        _show_solutions(settings, prms, options)
        return
    [(name, prm)] = prms.items()
    load = replace(settings.load, family=families.get(name, settings.load.family))
    if settings.plan.hardware:
        from prism_prm.plan.plan_run import ScoringJob

        show_plan(ScoringJob(prm, settings.inputs, load), settings.plan)
        return
    if out is None:
        raise ConfigError("--out is missing: name the table to write, e.g. --out scores.parquet, or use --show")
    options = prm_options(replace(settings, load=load))
    check_scorer(prm, options)
    if settings.pairs:
        _score_pairs(settings, prm, out, options)
        return
    find_sources(settings.inputs)
    from prism_prm.evaluate.score_files import score_files

    report = score_files(
        prm, settings.inputs, out, format=settings.format, options=settings.read, store=check_store(settings.store),
        chunk=settings.chunk, prm_options=options,
    )  # fmt: skip
    facts = {"out": str(out), "trees": report.trees, "steps": report.steps, "too_long": report.too_long}
    facts |= {"unjudged": report.unjudged} if report.unjudged else {}
    conclude(lambda: facts, lambda: tell(f"{report.steps:,} steps of {report.trees:,} trees → {out}"))


def _show_solutions(settings: ScoreCommand, prms: dict[str, str], options: PrmOptions) -> None:
    from rich.console import Console

    from prism_prm.cli.step_lines import show
    from prism_prm.evaluate.look_at import look_at

    found = look_at(
        prms, settings.inputs, limit=settings.limit or 10, threshold=settings.threshold, format=settings.format,
        options=settings.read, prm_options=options,
    )  # fmt: skip
    solutions = [
        {
            "name": one.tree.name, "problem": one.tree.problem, "steps": [node.text for node in one.tree.nodes],
            "parents": list(one.tree.parents), "prms": [asdict(judged) for judged in one.by_prm],
        }
        for one in found
    ]  # fmt: skip
    conclude(
        lambda: {"solutions": solutions},
        lambda: show(Console(highlight=False, markup=False, emoji=False), found),
    )


def _score_pairs(settings: ScoreCommand, prm: str, out: Path, options: PrmOptions) -> None:
    from prism_prm.curriculum import Curriculum, assign
    from prism_prm.data.tables import check_pairs_folder

    [pairs] = map(Path, settings.inputs)
    if settings.load.on_too_long == "skip":
        raise ConfigError("load.on_too_long = 'skip': every step of a pair needs a score; use error or window")
    check_pairs_folder(pairs, settings.split)
    from prism_prm.train.margins import histogram, measure_margins

    found = measure_margins(
        prm, pairs, out, split=settings.split, store=check_store(settings.store), prm_options=options
    )
    margins = found.margin_N
    facts = histogram(margins, found.kind_N, width=0.1)
    binned = assign(margins, Curriculum())
    about = {"out": str(out), "pairs": len(margins), "bins": binned.bin_sizes, "dropped": binned.dropped, **facts}

    def show() -> None:
        print_table("Margins r⁺ − r⁻", ["margin", *facts["counts"], "all", ""], _histogram_rows(facts))
        tell(f"the paper's bins: {binned.bin_sizes}; dropped: {binned.dropped}; table: {out}")

    conclude(lambda: about, show)


def _histogram_rows(facts: dict[str, Any]) -> list[list[str]]:
    """A row per bin, with a bar as long as its share of the fullest one."""
    totals = [sum(counts) for counts in zip(*facts["counts"].values(), strict=True)]
    most = max(totals, default=0) or 1
    rows = []
    for i, total in enumerate(totals):
        lo, hi = facts["edges"][i : i + 2]
        counts = [str(of_kind[i]) for of_kind in facts["counts"].values()]
        rows.append([f"{lo:+.1f} to {hi:+.1f}", *counts, str(total), "█" * round(30 * total / most)])
    return rows


COMMAND = Command(
    ScoreCommand,
    score,
    argument="inputs",
    out=Out("The table to write (Parquet).", ".parquet", required=False),
    options={
        "--prm": "prm", "--pairs": "pairs", "--show": "show", "--limit": "limit", "--threshold": "threshold",
        "--format": "format", "--split": "split", "--family": "family", "--dtype": "load.dtype",
        "--device": "load.device", "--store": "store", "--plan": "plan.hardware", "--ray": "ray.address",
    },
    examples={
        'A line of input: {"problem": "What is 1 + 2?", "steps": ["Add them.", "1 + 2 = 3"]}':
            "prism score solutions.jsonl --prm Qwen/Qwen2.5-Math-PRM-7B --out scores.parquet",
        "Look at the first solutions, with two PRMs side by side":
            "prism score pool.jsonl --prm base=prms/base --prm prism=prms/prism --show",
        "Margins of pairs": "prism score pairs/ --pairs --prm runs/base --out margins.parquet",
        "On 64 GPUs of a Ray cluster":
            "prism score trees/ --prm runs/my-prm --out scores.parquet --ray auto -R workers=64",
    },
)  # fmt: skip
