"""The schemas of requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from prism_prm.models.load_settings import OnTooLong

T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list in a request. Only its first error is reported: a body of two megabytes can have half a million of them."""
Ids = Many[int]
String = Annotated[str, Field(max_length=10**9)]
"""A string in a request. With a limit, pydantic checks the string and rejects lone surrogates, which are valid JSON but
cannot be tokenized."""
Model = Annotated[String | None, Field(description="The model to use; optional if only one is served.")]

Warnings = Annotated[list[str] | None, Field(description="Parts of the request that were not scored; absent if none.")]


class Strict(BaseModel):
    """Rejects unknown fields and reports the first one."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, given: Any) -> Any:
        unknown = [name for name in given if name not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            raise ValueError(f"unknown field {unknown[0][:40]!r}; known: {', '.join(cls.model_fields)}")
        return given


class TextPart(BaseModel):
    """A text part of a turn."""

    type: Literal["text"]
    text: String

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, given: Any) -> Any:
        if isinstance(given, dict) and (kind := given.get("type")) != "text":
            raise ValueError(f"only text is read, not a part of type {str(kind)[:40]!r}")
        return given


class Message(BaseModel):
    """A turn of a chat. In the assistant's turn `<extra_0>` ends each step, for every family of PRMs."""

    role: Literal["system", "developer", "user", "assistant"]
    content: String | Many[TextPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class PoolingRequest(BaseModel):
    """vLLM's request: `messages`, or `input` with texts or token ids. Other fields are ignored."""

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
    cached_tokens: int = Field(0, description="How many of them were in the cache.")


class PoolingAnswer(BaseModel):
    """vLLM's response."""

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
    """A problem and a solution as one text, which is split into steps at blank lines; the response has the steps."""

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
        None, description="What to do with steps beyond the context; defaults to the server's setting."
    )


class Leaf(BaseModel):
    """A path of a tree, from a first step to a leaf."""

    node: int
    first_error: int | None = Field(description="The first wrong node on the path; null if there is none.")
    score: float | None = Field(description="The score of the path as a solution.")


class ItemAnswer(BaseModel):
    """The scores of one item."""

    probabilities: list[float | None] = Field(
        description="P(right) of each step, calibrated if the model is; null if it was too long to score."
    )
    log_odds: list[dict[str, float | None]] = Field(description="The model's own named log-odds, before calibration.")
    first_error: int | None = Field(description="The first wrong step; null if there is none, and for a tree.")
    score: float | None = Field(description="The solution's score by the model's aggregator; null for a tree.")
    leaves: list[Leaf] | None = Field(None, description="For a tree: its paths as solutions.")
    steps: list[str] | None = Field(None, description="The steps of a solution that was given as one text.")
    too_long: list[int] = Field(description="Steps beyond the model's context.")
    tokens: int
    cached_tokens: int
    prompt_tokens: int | None = Field(description="Of the problem; null if the model counts only whole trees.")
    step_tokens: list[int] | None = Field(description="Of each step; null if the model counts only whole trees.")


class StepsAnswer(BaseModel):
    """The scores of all items, in order."""

    id: str
    object: Literal["steps"] = "steps"
    created: int
    model: str
    model_hash: str
    aggregator: str
    threshold: float = Field(description="A step with a higher probability counts as right.")
    items: list[ItemAnswer]
    usage: Usage
    warnings: Warnings = None


class Sizes(BaseModel):
    """The tokens of one item."""

    tokens: int
    prompt_tokens: int | None
    step_tokens: list[int] | None


class TokensAnswer(BaseModel):
    """The tokens of all items, in order."""

    model: str
    items: list[Sizes]


class RewardRequest(BaseModel):
    """OpenRLHF's request: each query is a prompt with its completion."""

    query: Many[String]
    prompts: Many[String]
    labels: list[Any] | None = None


class RewardAnswer(BaseModel):
    """OpenRLHF's response."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]
    warnings: Warnings = None


class ServedCard(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "prism"
    max_model_len: int
    identity: str = Field(description="Equal for models that give the same scores.")
    model_hash: str
    outputs: list[str]
    aggregator: str
    threshold: float
    calibration: dict[str, Any] | None = Field(None, description="What `prism calibrate` chose, with the data it used.")
    segmenter: str = Field(description="How solutions are cut into steps.")
    thinking: str = Field(description="What becomes of thinking steps.")


class SearchCard(BaseModel):
    """A policy with a way to search, for /v1/chat/completions; any n up to the server's limit can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["prism-search"]
    method: str
    select: str
    n: int
    prm: str


class ModelsAnswer(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ServedCard | SearchCard]


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """OpenAI's request. Other fields are ignored, with a warning."""

    model_config = ConfigDict(extra="allow")
    model: String = Field(description="POLICY@RULE-N, such as my-policy@beam-16, perhaps with ?aggregator=min&prm=NAME")
    messages: Many[Message] = Field(
        description="Turns of user and assistant that end with the user's, perhaps after a system's."
    )
    n: int = Field(1, ge=1, description="How many answers: the chosen one, then the others by score.")
    max_tokens: int | None = Field(None, ge=1, description="The most tokens of one solution.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The same.")
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0)
    stop: String | Many[String] | None = Field(None, description="The answer ends before these.")
    stream: bool = False
    stream_options: StreamOptions | None = None


class ChatMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"]
    content: str


class Choice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"]


class ChatUsage(BaseModel):
    """All tokens of a search."""

    prompt_tokens: int
    completion_tokens: int = Field(description="Written by the policy, also for dropped candidates.")
    total_tokens: int
    prm_tokens: int = Field(description="Read by the PRM.")


class Candidate(BaseModel):
    """A solution that the search found."""

    steps: list[str]
    scores: list[float] | None = Field(description="P(right) of each step; null if one could not be scored.")
    score: float | None
    answer: str | None
    tokens: int
    ended: bool = Field(description="Whether the policy ended it; else it was cut off.")


class Search(BaseModel):
    """What the search did; candidates are in the order of choices."""

    rule: str
    n: int
    prm: str
    aggregator: str
    seed: int
    rounds: int
    candidates: list[Candidate]


class ChatAnswer(BaseModel):
    """OpenAI's response, and the search as `prism`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    prism: Search
    warnings: Warnings = None


class ErrorBody(BaseModel):
    """The error."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorAnswer(BaseModel):
    """The body of every response with a status other than 2xx."""

    error: ErrorBody
