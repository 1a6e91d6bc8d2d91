"""Settings of a critic: the options that all commands with a critic share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prism_prm.config import SHOWN, Count, Natural, NotNegative, Positive, Range, check

OnMissing = Literal["error", "wrong", "skip"]


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """How to query a critic (`--prm critic:openai:URL` or `critic:hf:FOLDER`), and how much it may cost."""

    format: str = "direct"
    """The critic's format: direct, thinkprm, genprm, processbench, prmbench, or a TOML file of your own."""
    prompt: str | None = None
    """A text file that replaces the format's instruction, e.g. with the published wording."""
    votes: Count | None = None
    """Answers per verdict, averaged. By default the format's."""
    on_missing: OnMissing | None = field(default=None, metadata={SHOWN: "skip in `prism eval`, else error"})
    """What to do with an answer that has no verdict after all redraws: stop (error), count it as a verdict that the
    step is wrong (wrong), or leave the vote out (skip). Benchmarks have their own rule for an item without any vote."""
    redraws: Natural = 2
    """How often to sample an answer without a verdict again. Greedy answers are never redrawn."""
    temperature: NotNegative | None = None
    """The sampling temperature. By default the format's."""
    top_p: Annotated[float, Range(above=0, most=1)] | None = None
    """Nucleus sampling. By default the format's."""
    max_tokens: Count | None = None
    """The maximum number of tokens of a critique. By default the format's."""
    log_probabilities: Literal["auto", "off"] = "auto"
    """Read verdicts from the labels' log-probabilities if the model returns them (auto), or from votes alone (off)."""
    priming: Literal["auto", "on", "off"] = "auto"
    """Start the critic's turn with the format's words: if the server can continue a turn (auto: vLLM, SGLang,
    llama.cpp, local models), always (on), or never (off)."""
    code: bool = False
    """Run the Python code that a genprm critic writes, in a sandbox."""
    model: str | None = None
    """Which of the server's models to use. Not needed if it has only one."""
    concurrency: Count = 16
    """The maximum number of requests in flight."""
    timeout: Positive = 300.0
    """Seconds to wait for one complete answer from the server."""
    retries: Natural = 5
    """How often a failed request is retried."""
    budget_tokens: Count | None = None
    """Stop sending requests once a critic has spent this many new tokens (read and written). Rerun to resume."""
    price_prompt: NotNegative = 0.0
    """The price of a million prompt tokens, for the ledger."""
    price_completion: NotNegative = 0.0
    """The price of a million answer tokens, for the ledger."""
    replies: str = "critic-replies"
    """The folder that stores every reply, so that no question is sent twice."""

    def __post_init__(self) -> None:
        check(self)
