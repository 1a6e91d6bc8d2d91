"""A critic's format: what is asked, how the critic's turn begins and ends, and how its verdict is read. It is data."""

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
    """How the part begins. Without priming it is asked for in words."""
    stops: tuple[str, ...] = ()
    """Stop strings: the server stops writing there."""
    close: str = ""
    """What ends the part, in case the server removes the stop string."""
    max_tokens: Count = 2048
    ask: str = ""
    """For servers that cannot continue a turn: the user's turn that asks for this part."""
    code: bool = False
    """Whether the part is Python code to be run; left out unless code is allowed."""
    rounds: Count = 1
    """How often code is run and its output shown to the critic."""
    code_output: str = ""
    """How the output is shown; `{output}` is replaced."""
    ends: str = ""
    """For a part with code: the text with which the critic gives its judgment, and needs no further part."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class FormatLabels:
    """Section [label]: the words of a verdict."""

    yes: str = "Yes"
    no: str = "No"
    at: Literal["start", "boxed"] = "start"
    """Where the verdict is: the first word of the last part, or the last `\\boxed{…}`."""

    def __post_init__(self) -> None:
        check(self)
        if self.yes.strip().lower() == self.no.strip().lower():
            raise ConfigError(f"[label] yes and no are the same word, {self.yes!r}")


@dataclass(frozen=True, slots=True)
class FormatSampling:
    """Section [sampling]: how answers are drawn unless the user says otherwise."""

    temperature: NotNegative = 0.0
    temperature_of_votes: NotNegative | None = None
    """The temperature if there is more than one vote. By default the same."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    top_k: Natural = 0
    """Sample from this many of the likeliest tokens; 0: from all."""
    votes: Count = 1

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class CriticFormat:
    """All of a format file."""

    granularity: Literal["prefix", "step", "solution"]
    """What one verdict is on: all steps so far, one step of a conversation, or every step of a whole solution."""
    reads: Literal["label", "index", "scores"]
    """How a reply is read: a word, the index of the earliest wrong step, or JSON lists of scores."""
    stages: tuple[FormatStage, ...] = (FormatStage(),)
    outputs: tuple[str, ...] = ("correct",)
    aggregator: str = DEFAULT_AGGREGATOR
    instruction: str = ""
    question: str = ""
    system: str = ""
    user: str = ""
    """The user's turn for prefixes and solutions."""
    first: str = ""
    """The user's turn for the first step of a conversation."""
    later: str = ""
    """The user's turn for its later steps."""
    history: str = ""
    """The critic's earlier turns; `{reply}` is what it wrote."""
    opening: str = ""
    """What the model's chat template writes at the head of its turn, such as `<think>`, before the first `prime`. Sent
    where a turn is continued without it."""
    step: str = "Step {number}: {step}"
    """How a step is written in `{solution}`."""
    between: Annotated[str, MAY_BE_EMPTY] = "\n\n"
    """What stands between steps."""
    label: FormatLabels = field(default_factory=FormatLabels)
    scores: dict[str, str] = field(default_factory=dict)
    """Section [scores]: output → its key in the JSON."""
    sampling: FormatSampling = field(default_factory=FormatSampling)
    redundancy_threshold: Share | None = None
    """A step is redundant above this, if `redundancy` is an output and the user does not say otherwise."""

    def __post_init__(self) -> None:
        check(self)
        check_aggregator(self.aggregator)
        if not self.stages:
            raise ConfigError("stages is empty; a format needs at least one")
        needed = {"first": ("problem", "step"), "later": ("step",)}
        if self.granularity != "step":
            needed = {"user": ("problem", "solution")}
        for name, fields in needed.items():
            if lacking := [one for one in fields if f"{{{one}}}" not in getattr(self, name)]:
                raise ConfigError(f"{name} lacks {{{lacking[0]}}}, where the {lacking[0]} goes")
        if (self.reads == "label") != (self.granularity != "solution"):
            raise ConfigError(f"reads = {self.reads!r} does not fit granularity = {self.granularity!r}")
        if self.reads == "scores" and set(self.scores) != set(self.outputs):
            raise ConfigError(f"[scores] must have a key for each of the outputs {list(self.outputs)}")

    def identity(self) -> str:
        """A hash of all that decides what is asked and how it is read."""
        return hashlib.blake2b(repr(sorted(asdict(self).items())).encode(), digest_size=8).hexdigest()

    @property
    def judges_every_step(self) -> bool:
        """Whether steps after the first wrong one are judged too."""
        return self.reads != "index"

    @property
    def is_direct(self) -> bool:
        """Whether the verdict is the first word of all, without a critique."""
        return self.reads == "label" and self.label.at == "start" and len(self.stages) == 1

    def solution(self, steps: Sequence[str]) -> str:
        """Steps as the text of a solution."""
        return self.between.join(
            self.filled(self.step, step=text, number=i + 1, index=i) for i, text in enumerate(steps)
        )

    def filled(self, text: str, **values: object) -> str:
        """A text with known names in braces replaced; other braces, as in \\boxed{}, stay."""
        values |= {"instruction": self.instruction, "question": self.question}
        return _FIELD.sub(lambda found: str(values.get(found[1], found[0])), text)


def read_format(name: str, prompt: str | None = None) -> CriticFormat:
    """One of ours by its name, or a user's TOML file; `prompt` is a file whose text replaces the instruction."""
    shipped = {one: Path(str(files("prism_prm.backends").joinpath("formats", f"{one}.toml"))) for one in FORMATS}
    if name in shipped:
        path = shipped[name]
    elif name.endswith(".toml"):
        path = Path(name)
    else:
        raise ConfigError(
            f"Unknown critic format {name!r}. Known: {', '.join(FORMATS)}; or a file of your own: my.toml"
        )
    try:
        found = from_mapping(CriticFormat, read_toml(path, shipped=shipped))
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from None
    if prompt is None:
        return found
    try:
        return replace(found, instruction=read_text(prompt).strip())
    except OSError as error:
        raise ConfigError(f"{prompt}: cannot be read ({error.strerror}); name a text file") from None
