"""The bodies of requests and answers, as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from prism_prm.models.load_settings import OnTooLong

T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list of a request. Only its first mistake is reported: a body of two megabytes can have half a million of them."""
Ids = Many[int]
String = Annotated[str, Field(max_length=10**9)]
"""A string of a request. Only with a limit does pydantic look into it, and refuse half of a surrogate pair, which JSON
can hold and no tokenizer reads."""
Model = Annotated[String | None, Field(description="Which model to use; not needed if only one is served.")]

Warnings = Annotated[list[str] | None, Field(description="What of the request was not scored; absent if all was.")]


class Strict(BaseModel):
    """Refuses unknown fields, of which it reports the first, as `Many` does."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, given: Any) -> Any:
        unknown = (
            next((name for name in given if name not in cls.model_fields), None) if isinstance(given, dict) else None
        )
        if unknown is not None:
            raise ValueError(f"unknown field {unknown[:40]!r}; known: {', '.join(cls.model_fields)}")
        return given


class Message(BaseModel):
    """A turn of a chat. In the assistant's turn `<extra_0>` ends each step, whatever the PRM's family."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant"]
    content: String | Many[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class TextPart(BaseModel):
    """A part of a turn."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: String


class PoolingRequest(BaseModel):
    """vLLM's request: `messages`, or `input` with texts or token ids. Its other fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    model: Model = None
    messages: Many[Message] | None = None
    input: String | Ids | Many[String] | Many[Ids] | None = None
    add_special_tokens: bool = True
    encoding_format: Literal["float"] = "float"


class Pooled(BaseModel):
    """The scores of one input."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] = Field(description="[P(wrong), P(right)] of each step.")


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = Field(0, description="How many of them were computed before.")


class PoolingAnswer(BaseModel):
    """vLLM's answer."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: Usage
    warnings: Warnings = None


class Solution(Strict):
    """A problem and the steps of one solution."""

    problem: String
    steps: Many[String]


class Text(Strict):
    """A problem and a solution as one text, which is cut into steps at blank lines; the answer has the steps."""

    problem: String
    solution: String


class Tree(Strict):
    """A problem and a tree of steps."""

    problem: String
    nodes: Many[String]
    parents: Many[int] = Field(description="The node before each node, or -1 for a first step. Parents come first.")


class StepsRequest(Strict):
    """Solutions and trees to score."""

    model: Model = None
    items: Many[Solution | Text | Tree]
    on_too_long: OnTooLong | None = Field(
        None, description="What to do with steps beyond the context; by default as the server was told."
    )


class Leaf(BaseModel):
    """A path of a tree, from a first step to a node that nothing follows."""

    node: int
    first_error: int | None = Field(description="The first node on the path that is not right; null if all are.")
    score: float | None = Field(description="The score of the path as a solution.")


class ItemAnswer(BaseModel):
    """The scores of one item."""

    probabilities: list[float | None] = Field(description="P(right) of each step; null if it was too long to score.")
    log_odds: list[dict[str, float | None]] = Field(description="The model's named log-odds of each step.")
    first_error: int | None = Field(description="The first step that is not right; null if all are, and for a tree.")
    score: float | None = Field(description="The solution's score, by the model's own aggregator; null for a tree.")
    leaves: list[Leaf] | None = Field(None, description="For a tree: its paths as solutions.")
    steps: list[str] | None = Field(None, description="What a solution that was one text was cut into.")
    too_long: list[int] = Field(description="Steps beyond the model's context.")
    tokens: int
    cached_tokens: int
    prompt_tokens: int | None = Field(description="Of the problem; null if the model counts only whole trees.")
    step_tokens: list[int] | None = Field(description="Of each step; null if the model counts only whole trees.")


class StepsAnswer(BaseModel):
    """The scores of all items, in their order."""

    id: str
    object: Literal["steps"] = "steps"
    created: int
    model: str
    model_hash: str
    aggregator: str
    threshold: float = Field(description="A step counts as right above this.")
    items: list[ItemAnswer]
    usage: Usage
    warnings: Warnings = None


class Sizes(BaseModel):
    """The tokens of one item."""

    tokens: int
    prompt_tokens: int | None
    step_tokens: list[int] | None


class TokensAnswer(BaseModel):
    """The tokens of all items, in their order."""

    model: str
    items: list[Sizes]


class RewardRequest(BaseModel):
    """OpenRLHF's request: each query is a prompt and its completion."""

    model_config = ConfigDict(extra="ignore")
    query: Many[String]
    prompts: Many[String]
    labels: list[Any] | None = None


class RewardAnswer(BaseModel):
    """OpenRLHF's answer."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]
    warnings: Warnings = None


class ServedCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "prism"
    max_model_len: int
    identity: str = Field(description="Equal for models that score alike.")
    model_hash: str
    outputs: list[str]
    aggregator: str
    threshold: float


class ModelsAnswer(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ServedCard]


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorAnswer(BaseModel):
    """Every answer but a 2xx."""

    error: ErrorBody


Message.model_rebuild()
