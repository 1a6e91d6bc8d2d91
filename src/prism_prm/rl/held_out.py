"""The current policy's solutions of held-out problems, and the gold that judges them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from prism_prm.backends.policy import Prompting, render
from prism_prm.data.tasks import Grader, TaskProblem

Row = Mapping[str, Any]
"""A problem as the trainer and rewards see it: `prompt`, `problem`, `answer`, and what else a reward reads."""

ROWS_AT_ONCE = 1024
"""Solutions that are written side by side at most."""
TOKENS_AT_ONCE = 2**18
"""Their tokens at most, prompts included, at full length."""


def problem_rows(problems: Sequence[TaskProblem], prompting: Prompting, tokenizer: Any) -> list[dict[str, Any]]:
    """Problems as rows; the prompt is what `prism search` would send."""
    return [
        {
            "prompt": render(problem.text, prompting, tokenizer),
            "problem": problem.text,
            "answer": problem.reference,
            "tolerance": problem.tolerance,
        }
        for problem in problems
    ]


@dataclass(frozen=True, slots=True)
class Written:
    """One solution."""

    text: str
    ids: tuple[int, ...]
    """Its tokens, the end token included."""
    ended: bool
    """Whether it ended by itself; else it was cut."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth about some solutions."""

    right: Mapping[str, Sequence[bool]]
    """By measure; the first one is what alarms go by."""
    answers: Sequence[Any]
    """What each one votes under; None where it has no answer."""


class Gold(Protocol):
    """Says what is true of solutions, which no reward needs to know."""

    def __call__(self, rows: Sequence[Row], written: Sequence[Written]) -> Truth:
        """Judge solutions; `rows` are their problems, one per solution."""


class AnswerGold:
    """Right is whose final answer equals the reference, or whose program passes the tests."""

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    def __call__(self, rows: Sequence[Row], written: Sequence[Written]) -> Truth:
        problems = [TaskProblem.with_reference(row["problem"], row["answer"], row["tolerance"]) for row in rows]
        answers = [
            (problem, self.grader.extract(problem, one.text).answer if one.ended else None)
            for problem, one in zip(problems, written, strict=True)
        ]
        verdicts = self.grader.judge(answers)
        keys = [key.key for key in self.grader.keys(answers)]
        return Truth({"answer": [verdict.correct for verdict in verdicts]}, keys)


@dataclass(frozen=True, slots=True)
class Writing:
    """How solutions are written."""

    copies: int
    max_tokens: int
    temperature: float
    """0 takes the likeliest token."""
    seed: int = 0


@torch.no_grad()
def write_solutions(
    model: Any, tokenizer: Any, prompts: Sequence[str], writing: Writing, end_ids: Sequence[int]
) -> list[list[Written]]:
    """`copies` solutions for each prompt, prompts of similar length side by side; the caller's chance is left alone."""
    ids = tokenizer(list(prompts))["input_ids"]
    found: list[list[Written]] = [[]] * len(ids)
    with torch.random.fork_rng():
        torch.manual_seed(writing.seed)
        for portion in _portions([len(prompt) for prompt in ids], writing):
            rows = _generate(model, tokenizer, [ids[i] for i in portion], writing, end_ids)
            texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
            written = [
                Written(text, tuple(row), bool(row) and row[-1] in end_ids)
                for text, row in zip(texts, rows, strict=True)
            ]
            for at, i in enumerate(portion):
                found[i] = written[at * writing.copies : (at + 1) * writing.copies]
    return found


def _portions(lengths: Sequence[int], writing: Writing) -> Iterator[list[int]]:
    portion: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        rows = (len(portion) + 1) * writing.copies
        if portion and (rows > ROWS_AT_ONCE or rows * (lengths[i] + writing.max_tokens) > TOKENS_AT_ONCE):
            yield portion
            portion = []
        portion.append(i)
    if portion:
        yield portion


def _generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], writing: Writing, end_ids: Sequence[int]
) -> list[list[int]]:
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids_BS = torch.tensor([[*[pad] * (width - len(prompt)), *prompt] for prompt in prompts], device=model.device)
    mask_BS = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    drawn = {"do_sample": True, "temperature": writing.temperature} if writing.temperature else {"do_sample": False}
    # What is left unsaid would be taken from the model's own generation settings.
    how = GenerationConfig(
        **drawn, max_new_tokens=writing.max_tokens, top_k=0, top_p=1.0, repetition_penalty=1.0, pad_token_id=pad,
        eos_token_id=list(end_ids), num_return_sequences=writing.copies, disable_compile=True,
    )  # fmt: skip
    out_BS = model.generate(input_ids=ids_BS, attention_mask=mask_BS, generation_config=how)[:, width:]
    return [_up_to_end(row, end_ids) for row in out_BS.tolist()]


def _up_to_end(row: list[int], end_ids: Sequence[int]) -> list[int]:
    at = next((i for i, token in enumerate(row) if token in end_ids), len(row) - 1)
    return row[: at + 1]
