"""Solutions of held-out problems, and who says whether they are right, whatever a policy writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from prism_prm.backends.policy import Prompting
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.lab.demo.reinforcement import OracleGold
from prism_prm.lab.world.build import load_policy
from prism_prm.lab.world.policy import prompt_of
from prism_prm.rl.monitor import AnswerGold, Rollout, generate_solutions, problem_rows

ODD = ["", "user\n", "assistant", "1+2=3" * 500, "1\n\n" * 1000, "#### ", "\n\n#### 3"]
"""Nothing, words of the chat's frame, one endless step, a thousand tiny ones, an answer that says nothing."""


def test_rows_hold_the_prompt_that_a_search_would_send(world_policy: Path) -> None:
    _, tokenizer = load_policy(world_policy)
    (row,) = problem_rows([TaskProblem("1+2", "3", tolerance=0.1)], Prompting(), tokenizer)
    assert row == {"prompt": prompt_of("1+2"), "problem": "1+2", "answer": "3", "tolerance": 0.1}


def test_solutions_are_written_for_each_prompt_and_chance_is_left_alone(world_policy: Path) -> None:
    model, tokenizer = load_policy(world_policy)
    prompts = [prompt_of(problem) for problem in ("1+2-3", "4-1", "2+2-1")]
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    how: Any = {"copies": 5, "max_tokens": 24, "temperature": 1.0, "seed": 1}
    found = generate_solutions(model, tokenizer, prompts, [tokenizer.eos_token_id], **how)
    assert torch.rand(1) == expected
    assert [len(some) for some in found] == [5, 5, 5]
    assert found == generate_solutions(model, tokenizer, prompts, [tokenizer.eos_token_id], **how)
    for some in found:
        for one in some:
            assert one.ended == (one.ids[-1] == tokenizer.eos_token_id)
            assert one.text == tokenizer.decode(one.ids, skip_special_tokens=True)
    greedy: Any = {"copies": 1, "max_tokens": 24, "temperature": 0.0}
    alone = generate_solutions(model, tokenizer, prompts[1:2], [tokenizer.eos_token_id], **greedy)
    assert generate_solutions(model, tokenizer, prompts, [tokenizer.eos_token_id], **greedy)[1] == alone[0]


def test_what_does_not_end_is_cut(world_policy: Path) -> None:
    model, tokenizer = load_policy(world_policy)
    (found,) = generate_solutions(
        model, tokenizer, [prompt_of("1+2-3")], [tokenizer.eos_token_id], copies=2, max_tokens=3, temperature=1.0
    )
    assert [(one.ended, len(one.ids)) for one in found] == [(False, 3)] * 2


def test_odd_texts_are_judged(world_policy: Path) -> None:
    _, tokenizer = load_policy(world_policy)
    rows = problem_rows([TaskProblem("1+2", "3")] * len(ODD), Prompting(), tokenizer)
    written = [Rollout(text, (1, 2), True) for text in ODD]
    truth = OracleGold(5)(rows, written)
    assert truth.right["answer"] == [False] * 6 + [True]
    assert truth.right["steps"] == [False] * len(ODD)
    with TaskGrader(workers=1) as grader:
        found = AnswerGold(grader)(rows, [*written[:-1], Rollout("1+2=3\n\n#### 3", (1,), True)])
        assert found.right["answer"][0] is False
        assert found.right["answer"][-1] is True
        cut = AnswerGold(grader)(rows[:1], [Rollout("#### 3", (1,), False)])
        assert (cut.right["answer"], cut.answers) == ([False], [None]), "what was cut has no answer"
