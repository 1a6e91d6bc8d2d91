"""The recipe of `prism grpo`: one TOML file, whose [trainer] table is passed to TRL unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prism_prm.aggregate import check_aggregator
from prism_prm.backends.open_scorer import PrmOptions, check_scorer
from prism_prm.backends.policy import Prompting, Sampling
from prism_prm.config import Count, Natural, NotNegative, Share, check
from prism_prm.data.inputs import find_sources
from prism_prm.data.tasks import Level
from prism_prm.errors import ConfigError
from prism_prm.models.model_files import check_model
from prism_prm.rl.alarm import MonitorSettings
from prism_prm.rl.credit import find_credit


@dataclass(frozen=True, slots=True)
class ProblemSets:
    """Section [problems]: the problems to train on, and the held-out problems."""

    train: str = ""
    """A known task (gsm8k, math-500, …), a file of problems with answers, or a hub id (`openai/gsm8k:main:train`)."""
    train_data: str | None = None
    """The local file of a known task or hub id."""
    limit: Count | None = None
    """The number of problems to use, starting with the first. By default all."""
    held_out: str | None = None
    """The held-out problems, on which the policy is monitored: a task, file or hub id. By default the last problems of
    `train`."""
    held_out_data: str | None = None
    """The local file of the held-out task."""
    num_held_out: Count = 200
    """The number of held-out problems. Neither they nor the evaluation's problems are trained on."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ConfigError('no problems: set problems.train, e.g. to "openai/gsm8k:main:train" or a JSONL file')
        check(self)


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """Section [reward]: how a PRM's scores become a reward."""

    aggregator: str | None = None
    """How step scores become a solution's score. By default the PRM's own aggregator."""
    gate: bool = True
    """Give the worst reward to a solution that is cut off or states no answer. Without it, policies learn to stop
    early."""
    verifiable: NotNegative = 0.0
    """The bonus for a right final answer."""
    clip: Share | None = None
    """Cap scores at this value, and subtract it from the reward. By default scores are not capped."""
    delta: bool = False
    """Use the differences between the scores of successive steps as step rewards. Needs `verifiable`."""

    def __post_init__(self) -> None:
        check(self)
        if self.aggregator is not None:
            check_aggregator(self.aggregator)


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Section [evaluation]: tasks that `prism search` solves before and after training."""

    tasks: tuple[str, ...] = ()
    """Known tasks, or files of problems."""
    data: dict[str, str] = field(default_factory=dict)
    """Local files of tasks, by task. By default the data comes from the hub."""
    limit: Count | None = None
    """The number of problems of each task. By default all."""
    samples: Natural = 4
    """Sampled solutions per problem, in addition to the greedy one. With 0, only the greedy one."""
    sampling: Sampling = field(default_factory=Sampling)
    max_steps: Count = 40
    """The maximum number of steps of a solution."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GrpoRecipe:
    """All settings of `prism grpo`. Paths are relative to the working directory."""

    policy: str = ""
    """The folder or hub id of the causal language model to train."""
    prm: str = ""
    """The folder or hub id of the PRM that gives the reward, or a critic (critic:openai:URL, critic:hf:FOLDER). By
    default right final answers are the reward."""
    credit: str = "outcome"
    """How steps get their advantage from the reward: outcome, process, pure or progress."""
    sandbox: Level = "auto"
    """The sandbox for programs: bubblewrap, landlock, the better one that works here (auto), or none, which lets them
    do everything that you can do."""
    prompting: Prompting = field(default_factory=Prompting)
    problems: ProblemSets = field(default_factory=ProblemSets)
    reward: RewardSettings = field(default_factory=RewardSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    load: PrmOptions = field(default_factory=PrmOptions)
    """How to load the PRM: dtype, device, family, …; for a critic, its settings in the table `critic`."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Settings of TRL's GRPOConfig, passed on unchanged."""

    def __post_init__(self) -> None:
        if not self.policy:
            raise ConfigError('no policy: set policy, e.g. policy = "Qwen/Qwen2.5-1.5B-Instruct"')
        find_credit(self.credit)
        if self.load.ray is not None or self.load.families:
            raise ConfigError("load: the PRM runs in the trainer's own processes; remove ray and families")
        if not self.prm and self.credit != "outcome":
            raise ConfigError(f'credit = {self.credit!r} needs step scores: set prm, or credit = "outcome"')


def check_places(recipe: GrpoRecipe) -> None:
    """Raise if models or local files are missing, before anything is loaded."""
    check_model(recipe.policy)
    if recipe.prm:
        check_scorer(recipe.prm, recipe.load)
    problems = recipe.problems
    find_sources(
        [place for place in (problems.train_data, problems.held_out_data, *recipe.evaluation.data.values()) if place]
    )
