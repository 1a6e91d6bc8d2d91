"""The settings of `prism search` and `prism label`, from a recipe file and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from prism_prm.backends.policy import PolicySettings
from prism_prm.config import Count, check
from prism_prm.data.tasks import Errata, Level, Window
from prism_prm.errors import ConfigError, SettingError
from prism_prm.search.engine import AT_ONCE
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.methods import SearchSettings, find_method
from prism_prm.search.select import SELECTORS


@dataclass(frozen=True, slots=True)
class SearchRecipe:
    """One experiment: a policy, PRMs, a task, a method, and the sizes to run it at."""

    task: str = ""
    """A known task (math-500, gsm8k, humaneval, livecodebench, …), or a file of problems with answers or tests."""
    task_data: str | None = None
    """The local file of a known task. By default the task comes from the hub."""
    answer_field: str | None = None
    """The field of the task's file that holds the reference answer. By default `answer`, `final_answer`,
    `expected_answer` or `ground_truth`."""
    limit: Count | None = None
    """Use only this many problems, starting with the first."""
    since: str | None = None
    """Of a code task: use only problems from this day on, e.g. 2024-08-01."""
    until: str | None = None
    """Of a code task: use only problems up to this day."""
    errata: Errata = "keep"
    """Whether to keep problems that the benchmark itself lists as flawed."""
    sandbox: Level = "auto"
    """What programs run in: bubblewrap, landlock, the better one that works here (auto), or nothing (none), which lets
    them do whatever you may do."""
    n: tuple[Count, ...] = (16,)
    """How many solutions to sample, or candidates per round of a tree search. Several sizes (`-n 4,16,64`) run one
    after the other."""
    select: Literal["argmax", "majority", "weighted", "public-tests"] | None = None
    """How solutions become one answer. By default weighted with a PRM and majority without. public-tests is for code
    tasks: programs that pass the samples first, then the best-scored."""
    prm: tuple[str, ...] = ()
    """A PRM: a folder, a hub id, a server (prism:URL, vllm:URL), a critic (critic:openai:URL, critic:hf:FOLDER), or
    NAME=place. Repeat to compare several."""
    at_once: Count = AT_ONCE
    """The number of problems searched together: a chunk, which a Ray worker gets at a time."""
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
            raise SettingError("n", self.n, "must name at least one size, such as 16")
        if self.selector not in SELECTORS:
            raise ConfigError(f"Unknown selection rule {self.select!r}. Known: {', '.join(SELECTORS)}.")
        self.window  # noqa: B018 - refuses a day that is none
        if self.selector in ("argmax", "weighted") and not self.prm and self.search.method != "greedy":
            raise ConfigError(
                f"--select {self.selector} needs a PRM's scores: give a PRM with --prm, or use --select majority"
            )

    @property
    def window(self) -> Window:
        """Which problems of the task are used."""
        return Window(self.since, self.until, self.errata)

    @property
    def selector(self) -> str:
        """How solutions become one answer."""
        return self.select or ("weighted" if self.prm else "majority")

    @property
    def ns(self) -> tuple[int, ...]:
        """The sizes to run, in order; greedy has one solution."""
        return (1,) if self.search.method == "greedy" else tuple(sorted(set(self.n)))


@dataclass(frozen=True, slots=True)
class LabelRecipe:
    """Problems, the policy that solves them, and how its steps are labelled."""

    task: str = ""
    """A known task (math-500, aime-2024, gsm8k, …), or a file of problems with answers or tests."""
    task_data: str | None = None
    """The local file of a known task. By default the task comes from the hub."""
    answer_field: str | None = None
    """The field of the task's file that holds the reference answer. By default `answer`, `final_answer`,
    `expected_answer` or `ground_truth`."""
    limit: Count | None = None
    """Use only this many problems, starting with the first."""
    sandbox: Level = "auto"
    """What programs run in: bubblewrap, landlock, the better one that works here (auto), or nothing (none), which lets
    them do whatever you may do."""
    second_policy: str | None = None
    """Another policy for a second opinion: only labels on which the rollouts of both agree are kept."""
    second_model: str | None = None
    """Which of its server's models the second policy is. Not needed if it has only one."""
    second_tokenizer: str | None = None
    """Hub id or folder of the tokenizer whose chat template is applied for the second policy. By default that of the
    served model."""
    consensus: str | None = None
    """A PRM or a critic (critic:openai:URL, critic:hf:FOLDER) for a second opinion: only labels that its scores confirm
    are kept."""
    check: str | None = None
    """A file of exactly labelled solutions. Its steps are labelled by rollouts, too, and the labels' own error rates
    are reported. The solutions must be of problems of the task, or have reference answers."""
    check_limit: Count | None = None
    """Use only this many trees of that file, starting with the first."""
    at_once: Count = AT_ONCE
    """The number of problems labelled together: a chunk, which a Ray worker gets at a time."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    label: LabelSettings = field(default_factory=LabelSettings)

    def __post_init__(self) -> None:
        check(self)
        if not self.policy.name:
            raise ConfigError("no policy: give one with --policy, e.g. --policy hf:Qwen/Qwen2.5-Math-1.5B-Instruct")
        if (self.second_model or self.second_tokenizer) and not self.second_policy:
            raise ConfigError("second_model and second_tokenizer are for a second policy: give --second-policy")
        if self.second_policy and self.consensus:
            raise ConfigError("give --second-policy or --consensus, not both: labels have one second opinion")
        if not self.task:
            raise ConfigError("no task: name one, e.g. math-500, or a file of problems with answers")

    @property
    def second(self) -> PolicySettings | None:
        """The second policy: its place, model and tokenizer are its own, all else is as for the first."""
        if not self.second_policy:
            return None
        return replace(self.policy, name=self.second_policy, model=self.second_model, tokenizer=self.second_tokenizer)
