"""Cases of training that must not depend on the number of processes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from some_pairs import random_examples
from torch.distributed.tensor import DTensor

from launching import together
from prism_prm import init_prm, load_prm
from prism_prm.config import from_mapping
from prism_prm.data.pair_examples import Examples, labeled_steps
from prism_prm.losses import Objective
from prism_prm.train.batches import RowLimits, batch_maker
from prism_prm.train.loop import TrainingRound
from prism_prm.train.model import prepare, save_trained, shard
from prism_prm.train.recipe import HardwareSettings, Lora, Recipe, TrainSettings
from tiny import exact_norms, language_model

PLAIN, TIED = "plain", "tied"


@dataclass(frozen=True)
class Case:
    """How a round is trained."""

    objective: Objective
    hardware: dict[str, Any] = field(default_factory=dict)
    base: str = PLAIN
    train: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> HardwareSettings:
        return HardwareSettings(**{"dtype": "float64", "sharding": "fsdp", **self.hardware})


OBJECTIVES = {"sc": Objective(), "hybrid": Objective("hybrid", space="log-odds"), "bce": Objective("bce")}
LORA = Lora(r=2, targets=("q_proj", "up_proj"))
LONG = {"row_tokens": 160, "microbatch_tokens": 320}
"""The tied PRM's prompt alone has 80 tokens."""
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "recomputed": {"hardware": {"gradient_checkpointing": True}},
    "adapters": {"hardware": {"lora": LORA}},
    "tied": {"base": TIED, "train": LONG},
    "frozen": {"hardware": {"frozen_layers": 1}},
}
CASES = {
    f"{objective}-{setting}": Case(OBJECTIVES[objective], **SETTINGS[setting])
    for objective in OBJECTIVES
    for setting in SETTINGS
} | {
    "tied-recomputed": Case(OBJECTIVES["sc"], {"gradient_checkpointing": True}, TIED, LONG),
    "frozen-adapters-recomputed": Case(
        OBJECTIVES["hybrid"], {"lora": LORA, "frozen_layers": 1, "gradient_checkpointing": True}
    ),
    "labels-one-by-one": Case(Objective("bce", on="labels"), train={"pack": "none"}),
    "16-bit": Case(OBJECTIVES["hybrid"], {"dtype": "float32", "mixed_precision": "bf16"}),
    "16-bit-adapters": Case(OBJECTIVES["hybrid"], {"dtype": "bfloat16", "save_dtype": "float32", "lora": LORA}),
}
QUICK = [
    *(name for name in CASES if name.endswith("-all")), "hybrid-recomputed", "hybrid-adapters", "sc-tied", "bce-frozen",
    *list(CASES)[len(OBJECTIVES) * len(SETTINGS) :],
]  # fmt: skip
"""Each objective and each setting once."""
RESUMED = ["hybrid-all", "sc-tied", "frozen-adapters-recomputed"]
"""Cases that are also resumed from a checkpoint of another number of processes."""


def write_bases(root: Path) -> None:
    """The PRMs that cases start from."""
    init_prm(language_model("qwen2", root / "lms" / "qwen2"), family="qwen", dtype="float64").save(root / PLAIN)
    tied = language_model("llama", root / "lms" / "tied", tie_word_embeddings=True)
    init_prm(tied, family="rlhflow", dtype="float64").save(root / TIED)


@cache
def examples(on: str) -> Examples:
    pairs = random_examples(num_trees=4, steps=3)
    return pairs if on == "pairs" else labeled_steps(pairs.trees)


def train(root: Path, out: Path, case: Case, accelerator: Accelerator) -> None:
    """Three updates, a checkpoint after two; writes the PRM, the log, and the share of the weights held here."""
    hardware = case.settings()
    prm = load_prm(root / case.base, dtype=hardware.dtype, device="cpu")
    if hardware.dtype == "float64":
        exact_norms(prm.module)
    model = prepare(prm.module, hardware, seed=0)
    shard(model, hardware, accelerator)
    chosen = examples(case.objective.on)
    wanted: dict[str, Any] = {"lr": 1e-3, "warmup": 0.0, "microbatch_tokens": 160, "row_tokens": 80}
    wanted |= {"pairs_per_update": -(-len(chosen) // 3), "max_pairs_per_tree_per_update": 99}
    settings = TrainSettings(**{**wanted, "checkpoint_every": 2, "max_grad_norm": 0.1, **case.train})
    lines: list[dict[str, Any]] = []
    work = TrainingRound(
        "1_all", model, prm.family, batch_maker(prm.module, settings.microbatch_tokens), RowLimits(settings.row_tokens),
        chosen, case.objective, settings, (0, 1), out / "checkpoints", on_update=lines.append,
    )  # fmt: skip
    assert len(work.updates) == 3
    work.run(accelerator)
    parameters = list(model.parameters())
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in parameters)
    recipe = from_mapping(Recipe, {"data": {"inputs": ["x"]}, "base": {"prm": "x"}})
    object.__setattr__(recipe, "hardware", hardware)
    save_trained(prm, model, out / "prm", accelerator, recipe)
    if accelerator.is_main_process:
        share = held / sum(p.numel() for p in parameters)
        (out / "log.json").write_text(json.dumps({"lines": lines, "held": share}))


def resume(root: Path, made: Path, out: Path, case: Case, accelerator: Accelerator) -> None:
    """The last update, from the checkpoint that is in `made`."""
    if accelerator.is_main_process:
        shutil.copytree(made / "checkpoints", out / "checkpoints")
    accelerator.wait_for_everyone()
    train(root, out, case, accelerator)


def run_in_processes(root: Path, processes: int, names: Iterable[str]) -> None:
    """Cases in several processes; results are in a folder of that name."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import sharded_cases; sharded_cases.main()"
    done = together(root, *names, processes=processes, code=code)
    assert done.returncode == 0, done.stderr


def main() -> None:
    """One process of several: a folder and the names of cases are its arguments."""
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        case = CASES[name]
        AcceleratorState._reset_state()
        accelerator = Accelerator(mixed_precision=case.settings().mixed_precision)
        out = root / str(accelerator.num_processes) / name
        train(root, out, case, accelerator)
        if name in RESUMED:
            resume(root, root / "1" / name, out.with_name(f"{name}-resumed"), case, accelerator)
    torch.distributed.destroy_process_group()
