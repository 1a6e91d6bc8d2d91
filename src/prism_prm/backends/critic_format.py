"""Critic formats: TOML files that define the prompt, the stages of the critic's turn, and how to read its verdict."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from prism_prm.aggregate import DEFAULT_AGGREGATOR, check_aggregator
from prism_prm.config import MAY_BE_EMPTY, Count, Natural, NotNegative, Range, Share, check, from_mapping, read_toml
from prism_prm.errors import ConfigError
from prism_prm.file_types import read_text

FORMATS = ("direct", "thinkprm", "genprm", "processbench", "prmbench")
"""The formats that ship with the package."""
_FIELD = re.compile(r"\{(problem|solution|step|number|index|next|instruction|question|reply|output)\}")


@dataclass(frozen=True, slots=True)
class FormatStage:
    """One part of the critic's turn, and one request."""

    prime: str = ""
    """How the part begins. Without priming, the prompt requests these words."""
    stops: tuple[str, ...] = ()
    """Stop strings."""
    close: str = ""
    """The end of the part, in case the server removes the stop string."""
    max_tokens: Count = 2048
    ask: str = ""
    """For servers that cannot continue a turn: the user turn that requests this part."""
    code: bool = False
    """Whether the part is Python code to run; left out unless code is allowed."""
    rounds: Count = 1
    """How often to run code and show its output to the critic."""
    code_output: str = ""
    """How to show the output; `{output}` is replaced."""
    ends: str = ""
    """For a part with code: the string with which the critic ends its judgment, so that no further part is needed."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class FormatLabels:
    """Section [label]: the words of a verdict."""

    yes: str = "Yes"
    no: str = "No"
    at: Literal["start", "boxed"] = "start"
    """The position of the verdict: the first word of the last part, or the last `\\boxed{…}`."""

    def __post_init__(self) -> None:
        check(self)
        if self.yes.strip().lower() == self.no.strip().lower():
            raise ConfigError(f"[label] yes and no are the same word, {self.yes!r}")


@dataclass(frozen=True, slots=True)
class FormatSampling:
    """Section [sampling]: the format's sampling defaults."""

    temperature: NotNegative = 0.0
    temperature_of_votes: NotNegative | None = None
    """The temperature for more than one vote. By default the same."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    top_k: Natural = 0
    """Sample from this many of the most likely tokens; 0: from all."""
    votes: Count = 1

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class CriticFormat:
    """The content of a format file."""

    granularity: Literal["prefix", "step", "solution"]
    """What one verdict covers: all steps so far, one step of a conversation, or every step of a whole solution."""
    reads: Literal["label", "index", "scores"]
    """How to read a reply: as a word, the index of the earliest wrong step, or JSON lists of scores."""
    stages: tuple[FormatStage, ...] = (FormatStage(),)
    outputs: tuple[str, ...] = ("correct",)
    aggregator: str = DEFAULT_AGGREGATOR
    instruction: str = ""
    question: str = ""
    system: str = ""
    user: str = ""
    """The user turn for prefixes and solutions."""
    first: str = ""
    """The user turn for the first step of a conversation."""
    later: str = ""
    """The user turn for later steps of a conversation."""
    history: str = ""
    """The critic's earlier turns; `{reply}` is replaced by what it wrote."""
    opening: str = ""
    """What the model's chat template adds at the start of its turn, such as `<think>`, before the first `prime`. Sent
    to servers that do not add it when they continue a turn."""
    step: str = "Step {number}: {step}"
    """How to write a step in `{solution}`."""
    between: Annotated[str, MAY_BE_EMPTY] = "\n\n"
    """The separator between steps."""
    label: FormatLabels = field(default_factory=FormatLabels)
    scores: dict[str, str] = field(default_factory=dict)
    """Section [scores]: output → its key in the JSON."""
    sampling: FormatSampling = field(default_factory=FormatSampling)
    redundancy_threshold: Share | None = None
    """The default threshold for redundant steps, if `redundancy` is an output."""

    def __post_init__(self) -> None:
        check(self)
        check_aggregator(self.aggregator)
        if not self.stages:
            raise ConfigError("stages is empty; a format needs at least one")
        needed = {"first": ("problem", "step"), "later": ("step",)}
        if self.granularity != "step":
            needed = {"user": ("problem", "solution")}
        for name, fields in needed.items():
            if missing := [part for part in fields if f"{{{part}}}" not in getattr(self, name)]:
                raise ConfigError(f"{name} lacks {{{missing[0]}}}, where the {missing[0]} goes")
        if (self.reads == "label") != (self.granularity != "solution"):
            raise ConfigError(f"reads = {self.reads!r} does not fit granularity = {self.granularity!r}")
        if self.reads == "scores" and set(self.scores) != set(self.outputs):
            raise ConfigError(f"[scores] must have a key for each of the outputs {list(self.outputs)}")

    def identity(self) -> str:
        """Hash everything that affects questions and how replies are read."""
        return hashlib.blake2b(repr(sorted(asdict(self).items())).encode(), digest_size=8).hexdigest()

    @property
    def judges_every_step(self) -> bool:
        """Whether steps after the first wrong one are judged too."""
        return self.reads != "index"

    @property
    def is_direct(self) -> bool:
        """Whether the verdict is the first word of the reply, without a critique."""
        return self.reads == "label" and self.label.at == "start" and len(self.stages) == 1

    def solution(self, steps: Sequence[str]) -> str:
        """Format steps as the text of a solution."""
        return self.between.join(self.fill(self.step, step=text, number=i + 1, index=i) for i, text in enumerate(steps))

    def fill(self, text: str, **values: object) -> str:
        """Replace known names in braces; other braces, as in \\boxed{}, stay."""
        values |= {"instruction": self.instruction, "question": self.question}
        return _FIELD.sub(lambda match: str(values.get(match[1], match[0])), text)


def read_format(name: str, prompt: str | None = None) -> CriticFormat:
    """Read a built-in format by its name, or a TOML file; `prompt` is a text file that replaces the instruction."""
    shipped = {each: Path(str(files("prism_prm.backends").joinpath("formats", f"{each}.toml"))) for each in FORMATS}
    if name in shipped:
        path = shipped[name]
    elif name.endswith(".toml"):
        path = Path(name)
    else:
        raise ConfigError(
            f"Unknown critic format {name!r}. Known: {', '.join(FORMATS)}; or a file of your own: my.toml"
        )
    try:
        format = from_mapping(CriticFormat, read_toml(path, shipped=shipped))
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from None
    if prompt is None:
        return format
    try:
        return replace(format, instruction=read_text(prompt).strip())
    except OSError as error:
        raise ConfigError(f"{prompt}: cannot be read ({error.strerror}); name a text file") from None
