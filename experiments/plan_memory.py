"""The memory predicted by `prism train --plan`, compared with the peak of real training runs on a CPU.

Each case is a random PRM of a real architecture (Qwen2, float32), trained for two updates of several micro-batches by
the loop of `prism train` in its own process. The measured value is the peak resident memory during the updates, minus
that before the model was created. malloc returns freed blocks at once, so that resident memory is the memory in use.
The last column of the table is predicted / measured.

Run: python experiments/plan_memory.py [case …]
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "small": {"hidden": 256, "layers": 4},
    "between": {"hidden": 384, "layers": 6},
    "middle": {"hidden": 512, "layers": 8},
    "large": {"hidden": 768, "layers": 10},
    "middle, checkpointing": {"hidden": 512, "layers": 8, "gradient_checkpointing": True},
    "middle, 6 frozen layers": {"hidden": 512, "layers": 8, "frozen_layers": 6},
    "middle, LoRA": {"hidden": 512, "layers": 8, "lora": True},
    "middle, grouped queries": {"hidden": 512, "layers": 8, "kv_heads": 2},
}
TOKENS = 1536
"""Per micro-batch."""


def resident(name: str) -> int:
    """The memory of this process in bytes: VmRSS is the current value, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured(hidden: int, layers: int, kv_heads: int | None = None, lora: bool = False, **hardware: Any) -> None:
    """Train one case, and print the measured and the predicted memory in bytes."""
    import numpy as np
    import torch
    from accelerate import Accelerator
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModel, PreTrainedTokenizerFast, Qwen2Config

    from prism_prm.data.pair_examples import Examples
    from prism_prm.losses import Objective
    from prism_prm.models.attention import ATTENTION
    from prism_prm.models.families.qwen import Qwen
    from prism_prm.models.module import PrmModule
    from prism_prm.models.prm import pair_cost
    from prism_prm.plan.costs import training_memory
    from prism_prm.plan.plan_training import setup_of
    from prism_prm.plan.skeleton import count_round, sizes_of
    from prism_prm.train.batches import RowLimits, batch_maker
    from prism_prm.train.loop import TrainingRound
    from prism_prm.train.model import prepare
    from prism_prm.train.recipe import HardwareSettings, Lora, TrainSettings
    from prism_prm.tree import Step, StepTree

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.add_tokens(list(Qwen.new_tokens), special_tokens=True)
    rng = np.random.default_rng(0)

    def text() -> str:
        return "".join(chr(97 + letter) for letter in rng.integers(0, 20, rng.integers(40, 120)))

    trees = {
        i: StepTree(i, text(), tuple(Step(text()) for _ in range(8)), (-1, -1, 0, 0, 2, 2, 4, 4), (0, 2, 4, 6))
        for i in range(12)
    }
    pairs = np.array([(i, node, node + 1, i) for i in trees for node in (0, 2, 4, 6)]).T
    examples = Examples(trees, np.arange(pairs.shape[1]), *pairs)
    chosen = HardwareSettings(**hardware, lora=Lora(r=8) if lora else None)
    settings = TrainSettings(pairs_per_update=24, row_tokens=TOKENS, microbatch_tokens=TOKENS)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64))  # triggers lazy loading
    gc.collect()
    before = resident("VmRSS")
    config = Qwen2Config(
        vocab_size=8192, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=kv_heads or hidden // 64, max_position_embeddings=4096,
    )  # fmt: skip
    family = Qwen(tokenizer)
    backbone = AutoModel.from_config(config, attn_implementation=ATTENTION["sdpa"])
    module = PrmModule(backbone, family.make_head(hidden, config), family)
    sizes = sizes_of(module.backbone, module.head)
    work = TrainingRound(
        "plan", prepare(module, chosen, 0), family, batch_maker(module, TOKENS), RowLimits(TOKENS, pair_cost(module)),
        examples, Objective(), settings, (0,), Path(tempfile.gettempdir()) / "no-checkpoints",
    )  # fmt: skip
    counted = count_round(work, module, 1)
    setup = setup_of(chosen, module)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    work.run(accelerator)
    peak = resident("VmHWM") - before
    found = training_memory(sizes, counted.tally.largest, replace(setup, on_cpu=True))
    facts = {"parameters": sizes.parameters, "tokens": counted.tally.largest.tokens, "measured": peak,
             "predicted": found.peak, "parts": found.parts, "micro-batches": counted.passes}  # fmt: skip
    print(json.dumps(facts))


def run_case(name: str) -> dict[str, Any]:
    """Measure one case in a new process."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
                   "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}  # fmt: skip
    words = [sys.executable, __file__, "--measure", json.dumps(CASES[name])]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measured(**json.loads(sys.argv[2]))
        return
    print("| model | parameters (M) | tokens per pass | measured (MB) | predicted (MB) | ratio |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:] or CASES:
        found = run_case(name)
        numbers = (found["parameters"] / 1e6, found["tokens"], found["measured"] / 1e6, found["predicted"] / 1e6)
        cells = [
            "{hidden}, {layers} layers".format(**CASES[name]),
            f"{numbers[0]:.1f}",
            *(f"{one:,.0f}" for one in numbers[1:]),
        ]
        print(f"| {name}: hidden {' | '.join(cells)} | {found['predicted'] / found['measured']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
