"""The recipe of `prism grpo`: one TOML file, whose [trainer] table is passed to TRL unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from prism_prm.aggregate import check_aggregator
from prism_prm.backends.open_scorer import PrmOptions, check_scorer
from prism_prm.backends.policy import Prompting, Sampling
from prism_prm.config import Count, Natural, NotNegative, Share, check
from prism_prm.data.inputs import find_sources
from prism_prm.data.tasks import Level
from prism_prm.errors import ConfigError, SettingError
from prism_prm.models.model_files import check_model
from prism_prm.rl.alarm import MonitorSettings
from prism_prm.rl.credit import find_credit
from prism_prm.search.label_rules import LabelSettings
from prism_prm.train.recipe import Lora, Recipe, load_recipe
from prism_prm.train.recipe import check_places as check_training


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
    clip: Share | Literal["card"] | None = None
    """Cap scores at this value, or at the threshold of the PRM's card (card), and subtract it from the reward. By
    default scores are not capped."""
    scale: Literal["group", "batch", "none"] = "group"
    """What rewards are divided by, after the mean of the solutions to the same problem was subtracted: their standard
    deviation (group), that of the whole batch (batch), or nothing (none). Scaling by group makes small differences
    between good solutions as important as large ones. For the credit outcome; TRL's `scale_rewards`."""
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
class RoundSettings:
    """Section [rounds]: retrain the PRM on the errors that the policy exploits, and train the policy again."""

    count: Natural = 0
    """Rounds after the first training of the policy. Each samples the trained policy's steps, labels those that the
    PRM overrates, retrains the PRM with them, and trains the policy with the new PRM. With 0 there is only the first
    training."""
    train: str = ""
    """The recipe of `prism train` that trained the PRM. Every round trains by it again, with the new steps added to its
    data."""
    restart: Literal["reference", "last"] = "reference"
    """Where the next policy starts: at the recipe's policy (reference), or at the one that was just trained (last)."""
    problems: Count = 600
    """Training problems whose steps are sampled in a round. The next round continues with the problems after them."""
    tries: Count = 8
    """Solutions of each problem by the reference policy. Of those with the right answer, the one that the PRM scores
    highest gives the prefixes, if it scores all its steps above its threshold; else the problem is left out."""
    samples: Count = 6
    """Continuations by the trained policy after each prefix. Equal steps count once."""
    min_score: Share | None = None
    """Only steps with a score above this are suspect. By default the threshold of the PRM's card."""
    disagree: Literal["answers", "judge", "none"] = "answers"
    """What else makes a step suspect: no continuation through it has the right answer (answers), `judge` scores it
    below its own threshold (judge), or nothing more (none)."""
    labels: Literal["rollouts", "answers", "judge", "file"] = "rollouts"
    """What labels suspects: rollouts of the reference policy (rollouts), whether any of the trained policy's own
    continuations has the right answer (answers), the scores of `judge` (judge), or people, in a file that the run
    writes and waits for (file)."""
    judge: str | None = None
    """A second PRM or a critic (critic:openai:URL, critic:hf:FOLDER), for `disagree` and `labels`."""
    rollouts: Count = 8
    """With labels = "rollouts": the maximum number of rollouts per step. They stop when the label is decided."""
    rule: str = "half"
    """With labels = "rollouts": a step is right if any of its rollouts reaches the answer (any), at least half of them
    (half), or a fraction above T (value>T)."""
    repeat: Count = 4
    """How many times the new trees are in the data of the retrained PRM. They are few beside the old ones: seen
    once or twice, most exploits would still pass."""
    seed: Natural = 0
    """The seed for all sampling."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))

    def __post_init__(self) -> None:
        check(self)
        self.labeling  # noqa: B018 - raises if the rule is unknown, or soft
        if "judge" in (self.disagree, self.labels) and not self.judge:
            name = "disagree" if self.disagree == "judge" else "labels"
            raise SettingError(name, "judge", "needs a second PRM or a critic: set rounds.judge")
        if self.judge and "judge" not in (self.disagree, self.labels):
            raise SettingError("judge", self.judge, 'is not asked: set rounds.disagree or rounds.labels to "judge"')

    @property
    def labeling(self) -> LabelSettings:
        """How steps are labeled by rollouts."""
        return LabelSettings(
            "adaptive", self.rollouts, alternatives=0, rule=self.rule, seed=self.seed, sampling=self.sampling
        )


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
    rounds: RoundSettings = field(default_factory=RoundSettings)
    load: PrmOptions = field(default_factory=PrmOptions)
    """How to load the PRM: dtype, device, family, …; for a critic, its settings in the table `critic`."""
    lora: Lora | None = None
    """Train adapters of the policy instead of all its weights; `policy/` has them merged in. By default all weights."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Settings of TRL's GRPOConfig, passed on unchanged."""

    def __post_init__(self) -> None:
        if not self.policy:
            raise ConfigError('no policy: set policy, e.g. policy = "Qwen/Qwen2.5-1.5B-Instruct"')
        find_credit(self.credit)
        if self.load.ray is not None or self.load.families:
            raise ConfigError("load: the PRM runs in the trainer's own processes; remove ray and families")
        if "scale_rewards" in self.trainer:
            raise ConfigError("trainer.scale_rewards is the setting reward.scale here: move it there")
        if self.rounds.count and not self.prm:
            raise ConfigError("rounds.count retrains a PRM: set prm, or rounds.count = 0")
        if self.rounds.count and not self.rounds.train:
            raise ConfigError("rounds.count needs the recipe that trained the PRM: set rounds.train, e.g. to prm.toml")
        if not self.prm and self.credit != "outcome":
            raise ConfigError(f'credit = {self.credit!r} needs step scores: set prm, or credit = "outcome"')


def check_places(recipe: GrpoRecipe) -> None:
    """Raise if models or local files are missing, before anything is loaded."""
    check_model(recipe.policy)
    if recipe.prm:
        check_scorer(recipe.prm, recipe.load)
    if recipe.rounds.count:
        check_training(training_recipe(recipe))
        if recipe.rounds.judge:
            check_scorer(recipe.rounds.judge, recipe.load)
    problems = recipe.problems
    find_sources(
        [place for place in (problems.train_data, problems.held_out_data, *recipe.evaluation.data.values()) if place]
    )


def training_recipe(recipe: GrpoRecipe) -> Recipe:
    """The recipe that retrains the PRM in every round."""
    place = recipe.rounds.train
    training = load_recipe(place)
    if not training.data.inputs:
        raise ConfigError(
            f"{place}: data.folder has finished pairs, to which no steps can be added; name their inputs in "
            "data.inputs instead."
        )
    if recipe.reward.clip == "card" and not training.validation.split:
        raise ConfigError(
            f'{place}: without validation, a retrained PRM gets no threshold for reward.clip = "card"; set '
            "validation.split, or reward.clip to a number."
        )
    return training
