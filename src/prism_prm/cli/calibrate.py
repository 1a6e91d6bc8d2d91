"""`prism calibrate`: choose a PRM's threshold, and calibrate its scores, on held-out problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.cli.options import Command, Out, check_store, narrow, prm_options
from prism_prm.cli.ui import conclude, print_table, report_facts, tell
from prism_prm.evaluate.calibrate_prm import CalibrateSettings
from prism_prm.models.load_settings import LoadSettings
from prism_prm.ray import RaySettings


@dataclass(frozen=True, slots=True)
class CalibrateCommand(CalibrateSettings):
    """The settings of `prism calibrate`."""

    model: str | None = None
    """The PRM: a folder, a hub id, prism:URL or vllm:URL."""
    data: tuple[str, ...] = ()
    """Labeled solutions of problems that it was not trained on."""
    benchmark: str | None = None
    """The benchmark that the data belongs to. By default labeled, or the only one of the run."""
    split: str | None = None
    """For labeled and pairs: use only this split. Folders of `prism pairs` have splits."""
    run: Path | None = None
    """Instead: scores, labels and PRM of a folder of `prism eval`."""
    scores: Path | None = None
    """A scores table of this data. It comes from `prism score` or an earlier run."""
    predictions: Path | None = None
    """Scores from elsewhere: JSON lines {"id": "…", "scores": [0.9, …]}."""
    trained_on: tuple[str, ...] = ()
    """Training data: its problems are refused."""
    store: Path | None = None
    """A folder of scores to reuse and extend, shared by all commands."""
    load: LoadSettings = field(default_factory=LoadSettings)
    ray: RaySettings = field(default_factory=RaySettings)


def calibrate(settings: CalibrateCommand, out: Path | None) -> None:
    """Choose a PRM's threshold for a target, and calibrate its scores, without training.

    It takes labeled steps of held-out problems. The threshold goes into the PRM's card, which all commands and the
    server use. With --out, it goes there as calibration.json instead; use it with --set load.calibration=FOLDER.
    """
    from prism_prm.evaluate.calibrate_prm import calibrate_prm, comparison_rows

    found = calibrate_prm(
        settings.model, settings.data, settings=narrow(settings, CalibrateSettings), bench=settings.benchmark,
        split=settings.split, run=settings.run, scores=settings.scores, predictions=settings.predictions, out=out,
        trained_on=settings.trained_on, store=check_store(settings.store), prm_options=prm_options(settings),
    )  # fmt: skip
    page, written = found.page, found.written
    assert page is not None, "it was written"

    def show() -> None:
        print_table(f"Calibrated on {found.calibration.on}", *comparison_rows(found))
        tell(f"Threshold for {found.calibration.target}: {found.shown_threshold()}")
        tell(written)
        tell(page)

    conclude(lambda: {"written": str(written), **report_facts(page.parent)}, show)


COMMAND = Command(
    CalibrateCommand,
    calibrate,
    out=Out("Folder for calibration.json and the report, instead of the PRM's own card.", required=False),
    options={
        "--prm": "model", "--data": "data", "--bench": "benchmark", "--split": "split", "--target": "target",
        "--method": "method", "--run": "run", "--predictions": "predictions", "--trained-on": "trained_on",
        "--store": "store",
    },
    examples={
        "Keep 90 % of the right steps": "prism calibrate --prm my-prm --data held-out.jsonl --target tpr=0.9",
        "An evaluated PRM, with calibrated scores":
            "prism calibrate --run eval/my-prm --target prm-score --method isotonic",
        "A PRM of the hub":
            "prism calibrate --prm Qwen/Qwen2.5-Math-PRM-7B --data held-out.jsonl --target cost=5:1 --out calibrated",
    },
)  # fmt: skip
