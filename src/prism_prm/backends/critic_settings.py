"""Settings of a critic: the options that all commands with a critic share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prism_prm.config import SHOWN, Count, Natural, NotNegative, Positive, Range, check

OnMissing = Literal["error", "wrong", "skip"]


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """How a critic (`--prm critic:openai:URL` or `critic:hf:FOLDER`) is asked, and what its answers may cost."""

    format: str = "direct"
    """The critic's format: direct, thinkprm, genprm, processbench, prmbench, or a TOML file of your own."""
    prompt: str | None = None
    """A text file that replaces the format's instruction, e.g. with the published wording."""
    votes: Count | None = None
    """Answers per verdict, averaged. By default as the format says."""
    on_missing: OnMissing | None = field(default=None, metadata={SHOWN: "skip in `prism eval`, else error"})
    """What an answer without a verdict does after all redraws: error stops, wrong counts it as a verdict that the step
    is wrong, and skip leaves the vote out. An item of a benchmark without any vote counts by the benchmark's rule."""
    redraws: Natural = 2
    """How often an answer without a verdict is drawn again, unless it is greedy."""
    temperature: NotNegative | None = None
    """The sampling temperature. By default as the format says."""
    top_p: Annotated[float, Range(above=0, most=1)] | None = None
    """Nucleus sampling. By default as the format says."""
    max_tokens: Count | None = None
    """The maximum number of tokens of a critique. By default as the format says."""
    log_probabilities: Literal["auto", "off"] = "auto"
    """Read verdicts from the labels' log-probabilities where the model gives them (auto), or from votes alone (off)."""
    priming: Literal["auto", "on", "off"] = "auto"
    """Whether the critic's turn begins with the format's words: where the server is known to continue a turn (auto:
    vLLM, SGLang, llama.cpp, local models), always, or never."""
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
    """Begin no further request once this many new tokens (read and written) are spent, by each critic of a command.
    Rerun to resume."""
    price_prompt: NotNegative = 0.0
    """The price of a million prompt tokens, for the ledger."""
    price_completion: NotNegative = 0.0
    """The price of a million answer tokens, for the ledger."""
    replies: str = "critic-replies"
    """The folder that keeps every reply, so that nothing is asked twice."""

    def __post_init__(self) -> None:
        check(self)
