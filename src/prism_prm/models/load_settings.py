"""Settings for loading a PRM: the options that all commands with a PRM share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prism_prm.config import SHOWN, Count, Natural, NotNegative, Positive, check
from prism_prm.segments import find_segmenter, thinking_tokens

OnTooLong = Literal["error", "window", "skip"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How to load and run a PRM; `load_prm` takes each of these as a keyword argument."""

    family: str | None = None
    """The PRM's family, needed if its folder does not name it. my_file.py:Mine is a class in your own file."""
    adapter: Path | None = None
    """A LoRA adapter (peft) to merge into the PRM."""
    compat: bool | None = None
    """Read the PRM exactly as its published code does, including quirks. By default as its card says."""
    dtype: str | None = None
    """The precision of the weights: bfloat16, float16, float32 or auto. On a GPU, auto is the checkpoint's own and the
    default. On a CPU, it is bfloat16 if the CPU has it and the hidden size is at least 256; the default is float32."""
    device: str | None = None
    """Where the model runs: cpu, cuda, cuda:1, … By default a GPU if there is one."""
    device_map: str | None = None
    """Set this to auto to spread the model over all GPUs."""
    attn: Literal["sdpa", "flex"] = "sdpa"
    """The attention kernel. flex packs several trees into a row and needs a GPU."""
    token_budget: Count | None = None
    """Tokens per forward pass, padding included. By default 16,384 on a GPU and 8,192 on a CPU."""
    context: Count | None = None
    """The maximum length of a path in tokens. By default the model's own limit."""
    on_too_long: OnTooLong | None = field(default=None, metadata={SHOWN: "error; skip in search and RL"})
    """What to do with a step whose path exceeds the context: stop (error), score it in a window of the last steps that
    fit (window), or leave it without a score (skip, where offered)."""
    segmenter: str | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """How solutions are cut into steps: paragraph, thinking, marker, sentence, tokens or code. thinking:128 and
    tokens:256 set the number of tokens."""
    thinking: str | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """What the PRM reads of thinking steps: all, and scores them (scored), all (context), none (dropped), or the last
    ones of at most N tokens (last-N)."""
    cache: Path | None = None
    """A folder that caches frozen-layer activations. PRMs that share their frozen layers then score faster."""
    cache_gb: NotNegative = 50.0
    """The size limit of the cache folder in GB. When it is full, further activations are computed each time."""
    allow_pickle: bool = False
    """Allow pickled weights, which can run arbitrary code."""
    trust_remote_code: bool = False
    """Run code from the model's repository."""
    local: str | None = None
    """A local copy of a remote PRM: vllm:URL takes its tokenizer and card. By default the served model's own."""
    check: bool = False
    """Compare a remote PRM's scores of one solution with those of its local copy first."""
    calibration: Path | None = None
    """What `prism calibrate --out` wrote for this PRM: its folder or calibration.json, used instead of the card's."""
    prm_timeout: Positive = 300.0
    """Seconds to wait for one complete answer from a remote PRM."""
    prm_retries: Natural = 5
    """How often a failed request to a remote PRM is retried."""
    prm_concurrency: Count = 16
    """The maximum number of requests to a remote PRM in flight."""

    def __post_init__(self) -> None:
        check(self)
        if self.segmenter is not None:
            find_segmenter(self.segmenter)
        if self.thinking is not None:
            thinking_tokens(self.thinking)
