"""Tiny GRPO runs: a policy that learned a few solutions by heart, and a scorer that anyone can follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from prism_prm.rl.trainer import StepGRPOTrainer
from tiny import SOLVED


def by_length(step: str) -> float:
    """A score that differs from step to step."""
    return (1 + len(step) % 7) / 9


def settings(out: Path, **changes: Any) -> GRPOConfig:
    own = {
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 24, "max_steps": 1,
        "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False, "report_to": [], "logging_steps": 1,
        "save_strategy": "no", "temperature": 1.5, "use_cpu": True, "disable_tqdm": True, "seed": 0,
    }  # fmt: skip
    return GRPOConfig(output_dir=str(out), **{**own, **changes})


def problems() -> Dataset:
    return Dataset.from_list(
        [{"prompt": f"{problem}\n\n", "answer": steps[-1][5:]} for problem, steps in SOLVED.items()]
    )


def trainer_of(policy: Path, out: Path, reward: Any, *, kind: type = StepGRPOTrainer, **options: Any) -> Any:
    changes = options.pop("args", {})
    return kind(
        model=AutoModelForCausalLM.from_pretrained(policy), processing_class=AutoTokenizer.from_pretrained(policy),
        reward_funcs=options.pop("reward_funcs", [reward]), args=settings(out, **changes), train_dataset=problems(),
        **options,
    )  # fmt: skip
