"""ms-swift: the reward function `prism_prm`, as an external plugin. docs/guides/integrations.md has the command.

Options are environment variables: PRISM_RL_PRM, PRISM_RL_VERIFIABLE, …. A column `solution` or `answer` of the dataset
has the right answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.rewards import ORM, orms

from prism_prm.errors import DataError
from prism_prm.rl.connectors.batcher import configured_batcher
from prism_prm.rl.reward import Judged, problem_text, reply_text
from prism_prm.steps import STOP

Turns = Sequence[dict[str, Any]]


class PrismPRM(ORM):  # type: ignore[misc]
    """The PRM's reward of each completion. A wrong PRM raises when the trainer is built."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        super().__init__(args, **kwargs)
        self.calls = configured_batcher()
        self.last: list[Judged] = []
        """The outcomes of the last call."""

    def __call__(
        self,
        completions: Sequence[str],
        messages: Sequence[Turns] | None = None,
        is_truncated: Sequence[bool] | None = None,
        response_token_ids: Sequence[Sequence[Any]] | None = None,
        solution: Sequence[Any] | None = None,
        answer: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float]:
        """The columns are those of ms-swift: `messages` end with the completion, after the turns before it."""
        if messages is None or is_truncated is None:
            raise DataError(
                "ms-swift passed no messages or no is_truncated to the reward; the tested version is in "
                "docs/guides/integrations.md",
                reason="missing-field",
            )
        references = solution if solution is not None else answer
        asked = []
        for i, (turns, cut) in enumerate(zip(messages, is_truncated, strict=True)):
            problem, text = _split(turns, len(response_token_ids[i] or ()) if response_token_ids else 1)
            reference = None if references is None else references[i]
            asked.append(self.calls.submit(problem, text, cut=bool(cut), reference=reference))
        assert len(asked) == len(completions), "one reward per completion"
        self.last = [one.result() for one in asked]
        return [outcome.reward for outcome in self.last]


def _split(turns: Turns, num_sampled: int) -> tuple[str, str]:
    """The problem, and all that the policy wrote: its last turns; those before them are part of the prompt."""
    replies = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"][-max(1, num_sampled) :]
    prompt = turns[: replies[0]] if replies else turns
    return problem_text(prompt), STOP.join(reply_text([turns[i]]) for i in replies)


orms["prism_prm"] = PrismPRM
