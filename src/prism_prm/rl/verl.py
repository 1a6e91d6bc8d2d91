"""The reward file for verl: one completion at a time, or a batch, in which common prefixes are scored once.

    python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo … \\
        reward_model.reward_manager=batch \\
        custom_reward_function.path=$(python -c 'import prism_prm.rl.verl as f; print(f.__file__)') \\
        custom_reward_function.name=compute_score_batch \\
        +custom_reward_function.reward_kwargs.prm=my-prm

Options of the reward (prm, aggregator, gate, verifiable, clip, stop) are `reward_kwargs`, or environment variables
(PRISM_RL_PRM, …). The problem comes from `extra_info`. verl strips end-of-text tokens before it calls the reward, so a
completion that was cut off is detected only by its missing answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism_prm.errors import DataError
from prism_prm.rl.reward import configured_reward, problem_text, without_end

PROBLEM_FIELDS = ("problem", "question", "prompt")
"""The fields of `extra_info` that may have the problem."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """The reward of one completion as `score`, and its parts."""
    return compute_score_batch([data_source], [solution_str], [ground_truth], [extra_info], **options)[0]


def compute_score_batch(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None],
    **options: Any,
) -> list[dict[str, float]]:
    """The same for each completion of a batch."""
    problems = [_find_problem(source, extra) for source, extra in zip(data_sources, extra_infos, strict=True)]
    texts, cut = zip(*map(without_end, solution_strs), strict=True) if len(solution_strs) else ((), ())
    judged = configured_reward(options).judge(problems, texts, cut=cut, references=list(ground_truths))
    return [
        {
            "score": outcome.reward, "prm": outcome.prm_reward, "bonus": outcome.bonus, "gated": float(outcome.gated),
            "steps": float(len(outcome.steps)), "unreadable_steps": float(outcome.num_unreadable),
        }
        for outcome in judged
    ]  # fmt: skip


def _find_problem(source: str, extra: Mapping[str, Any] | None) -> str:
    problem = next((extra[field] for field in PROBLEM_FIELDS if extra.get(field)), None) if extra else None
    if problem is None:
        raise DataError(
            f"{source}: extra_info has no problem under any of {', '.join(PROBLEM_FIELDS)}. Add the problem's text "
            "there when you prepare the data: a PRM reads it before the steps.",
            reason="missing-field",
        )
    return problem_text(problem)
