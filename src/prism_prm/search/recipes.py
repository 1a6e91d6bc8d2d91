"""The recipes of `prism search` and `prism label`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from prism_prm.backends.policy import PolicySettings
from prism_prm.config import Count, Share, check
from prism_prm.data.tasks import Errata, Level, Window
from prism_prm.errors import ConfigError, SettingError
from prism_prm.search.engine import AT_ONCE
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.methods import SearchSettings, find_method
from prism_prm.search.select import SELECTORS


@dataclass(frozen=True, slots=True)
class SearchRecipe:
    """All settings of `prism search`."""

    task: str = ""
    """A known task (math-500, gsm8k, humaneval, livecodebench, …), or a file of problems with answers or tests."""
    task_data: str | None = None
    """The local file of a known task. By default the task comes from the hub."""
    answer_field: str | None = None
    """The field of the task's file with the reference answer. By default `answer`, `final_answer`, `expected_answer` or
    `ground_truth`."""
    limit: Count | None = None
    """The number of problems to use, starting with the first. By default all."""
    since: str | None = None
    """For code tasks: use only problems from this day on, such as 2024-08-01."""
    until: str | None = None
    """For code tasks: use only problems up to this day."""
    errata: Errata = "keep"
    """Whether to keep problems that the benchmark itself lists as flawed."""
    sandbox: Level = "auto"
    """The sandbox for programs: bubblewrap, landlock, the better one that works here (auto), or none, which lets them
    do everything that you can do."""
    n: tuple[Count, ...] = (16,)
    """The number of solutions to sample, or of candidates per round of a tree search. Several sizes (`-n 4,16,64`) run
    one after the other."""
    select: Literal["argmax", "majority", "weighted", "public-tests"] | None = None
    """How one of the solutions is selected. By default weighted with a PRM, and majority without. public-tests is for
    code tasks: programs that pass the public tests first, then the best score."""
    prm: tuple[str, ...] = ()
    """A PRM: a folder, a hub id, a server (prism:URL, vllm:URL), a critic (critic:openai:URL, critic:hf:FOLDER),
    another scorer (ensemble:…, implicit:…, orm:…, logprob:…; docs/guides/rivals.md), or NAME=PLACE. Repeat to compare
    several."""
    at_once: Count = AT_ONCE
    """The number of problems searched at the same time. On Ray, this is the chunk that a worker gets."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    search: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        check(self)
        if not self.policy.name:
            raise ConfigError("no policy: give one with --policy, e.g. --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct")
        if not self.task:
            raise ConfigError("no task: give one with --task, e.g. --task math-500, or a file of problems with answers")
        find_method(self.search, bool(self.prm))
        if not self.n:
            raise SettingError("n", self.n, "must have at least one size, such as 16")
        if self.selector not in SELECTORS:
            raise ConfigError(f"Unknown selection rule {self.select!r}. Known: {', '.join(SELECTORS)}.")
        self.window  # noqa: B018 - raises if a day is invalid
        if self.selector in ("argmax", "weighted") and not self.prm and self.search.method != "greedy":
            raise ConfigError(
                f"--select {self.selector} needs a PRM's scores: give a PRM with --prm, or use --select majority"
            )

    @property
    def window(self) -> Window:
        """The filter on the task's problems."""
        return Window(self.since, self.until, self.errata)

    @property
    def selector(self) -> str:
        """The selector, or the default."""
        return self.select or ("weighted" if self.prm else "majority")

    @property
    def ns(self) -> tuple[int, ...]:
        """The sizes to run, in order; 1 for greedy."""
        return (1,) if self.search.method == "greedy" else tuple(sorted(set(self.n)))


@dataclass(frozen=True, slots=True)
class LabelRecipe:
    """All settings of `prism label`."""

    task: str = ""
    """A known task (math-500, aime-2024, gsm8k, …), or a file of problems with answers or tests."""
    task_data: str | None = None
    """The local file of a known task. By default the task comes from the hub."""
    answer_field: str | None = None
    """The field of the task's file with the reference answer. By default `answer`, `final_answer`, `expected_answer` or
    `ground_truth`."""
    limit: Count | None = None
    """The number of problems to use, starting with the first. By default all."""
    sandbox: Level = "auto"
    """The sandbox for programs: bubblewrap, landlock, the better one that works here (auto), or none, which lets them
    do everything that you can do."""
    from_search: str | None = None
    """A pool of solutions with scores, or the folder of a `prism search`, instead of sampled solutions: those with a
    wrong answer and a high score are labeled."""
    min_score: Share = 0.5
    """With from_search: only those are labeled whose worst step has a score above this."""
    second_policy: str | None = None
    """Another policy for a second opinion: only labels that its rollouts confirm are kept."""
    second_model: str | None = None
    """The model of the second policy's server. Not needed if it has only one."""
    second_tokenizer: str | None = None
    """The hub id or folder of the tokenizer whose chat template is used for the second policy. By default that of the
    served model."""
    consensus: str | None = None
    """A PRM or a critic (critic:openai:URL, critic:hf:FOLDER) for a second opinion: only labels that its scores confirm
    are kept."""
    check: str | None = None
    """A file of exactly labeled solutions, which are labeled by rollouts too, to measure the error rates of the labels.
    They must be of problems of the task, or have reference answers."""
    check_limit: Count | None = None
    """The number of trees of that file to use, starting with the first. By default all."""
    at_once: Count = AT_ONCE
    """The number of problems labeled at the same time. On Ray, this is the chunk that a worker gets."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    label: LabelSettings = field(default_factory=LabelSettings)

    def __post_init__(self) -> None:
        check(self)
        if not self.policy.name:
            raise ConfigError("no policy: give one with --policy, e.g. --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct")
        if (self.second_model or self.second_tokenizer) and not self.second_policy:
            raise ConfigError(
                "second_model and second_tokenizer are for a second policy: name one with --second-policy"
            )
        if self.second_policy and self.consensus:
            raise ConfigError("give --second-policy or --consensus, not both: there is only one second opinion")
        if not self.task:
            raise ConfigError("no task: name one, e.g. math-500, or a file of problems with answers")

    @property
    def second(self) -> PolicySettings | None:
        """The second policy, with its own name, model and tokenizer, and all other settings of the first."""
        if not self.second_policy:
            return None
        return replace(self.policy, name=self.second_policy, model=self.second_model, tokenizer=self.second_tokenizer)
