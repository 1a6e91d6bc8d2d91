"""prism-prm: train, measure and use process reward models.

Names are imported on first use, so `import prism_prm` stays fast. `docs/reference/python.md` shows how to use them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_prm.aggregate import solution_score as solution_score
    from prism_prm.backends.critic_settings import CriticSettings as CriticSettings
    from prism_prm.backends.load_prm import init_prm as init_prm
    from prism_prm.backends.load_prm import load_prm as load_prm
    from prism_prm.backends.open_critic import open_critic as open_critic
    from prism_prm.backends.open_scorer import PrmOptions as PrmOptions
    from prism_prm.backends.policy import PolicySettings as PolicySettings
    from prism_prm.backends.policy import Sampling as Sampling
    from prism_prm.backends.policy import open_policy as open_policy
    from prism_prm.data.build_pairs import PairRecipe as PairRecipe
    from prism_prm.data.build_pairs import build_pairs as build_pairs
    from prism_prm.data.export import export_pairs as export_pairs
    from prism_prm.data.formats import ReadOptions as ReadOptions
    from prism_prm.data.pair_rules import PairSettings as PairSettings
    from prism_prm.data.pair_rules import annotated_pairs as annotated_pairs
    from prism_prm.data.pair_rules import lookahead_pairs as lookahead_pairs
    from prism_prm.data.pools import read_pool as read_pool
    from prism_prm.data.reader import read_trees as read_trees
    from prism_prm.data.tasks import load_task as load_task
    from prism_prm.errors import ConfigError as ConfigError
    from prism_prm.errors import DataError as DataError
    from prism_prm.errors import ModelError as ModelError
    from prism_prm.errors import PrismError as PrismError
    from prism_prm.evaluate.benchmarks import read_benchmark as read_benchmark
    from prism_prm.evaluate.calibrate_prm import CalibrateSettings as CalibrateSettings
    from prism_prm.evaluate.calibrate_prm import calibrate_prm as calibrate_prm
    from prism_prm.evaluate.calibrate_prm import calibrate_steps as calibrate_steps
    from prism_prm.evaluate.compare import compare_runs as compare_runs
    from prism_prm.evaluate.compare_rates import compare_rates as compare_rates
    from prism_prm.evaluate.evaluate_prm import EvalSettings as EvalSettings
    from prism_prm.evaluate.evaluate_prm import evaluate_prm as evaluate_prm
    from prism_prm.evaluate.evaluate_prm import evaluate_steps as evaluate_steps
    from prism_prm.evaluate.look_at import look_at as look_at
    from prism_prm.evaluate.score_files import score_files as score_files
    from prism_prm.evaluate.score_files import steps_from_predictions as steps_from_predictions
    from prism_prm.grading.extract import extract_answer as extract_answer
    from prism_prm.grading.graders import Judge as Judge
    from prism_prm.lab.demo.run_demo import run_demo as run_demo
    from prism_prm.lab.theory.report_theory import VerifierSettings as VerifierSettings
    from prism_prm.lab.theory.report_theory import report_theory as report_theory
    from prism_prm.lab.world.example_prms import example_folder as example_folder
    from prism_prm.lab.world.example_prms import example_prm as example_prm
    from prism_prm.models.prm import PRM as PRM
    from prism_prm.models.prm import Prm as Prm
    from prism_prm.plan.costs import Cluster as Cluster
    from prism_prm.plan.plan_run import ScoringJob as ScoringJob
    from prism_prm.plan.plan_run import plan_run as plan_run
    from prism_prm.ray import RaySettings as RaySettings
    from prism_prm.report import Report as Report
    from prism_prm.rl.alarm import MonitorSettings as MonitorSettings
    from prism_prm.rl.monitor import Monitor as Monitor
    from prism_prm.rl.recipe import GrpoRecipe as GrpoRecipe
    from prism_prm.rl.reward import PRMReward as PRMReward
    from prism_prm.rl.rounds import train_rounds as train_rounds
    from prism_prm.rl.train_policy import train_policy as train_policy
    from prism_prm.rl.trainer import StepGRPOTrainer as StepGRPOTrainer
    from prism_prm.scorer import Scorer as Scorer
    from prism_prm.scorer import TreeScores as TreeScores
    from prism_prm.search.engine import search_problems as search_problems
    from prism_prm.search.label_rules import LabelSettings as LabelSettings
    from prism_prm.search.label_task import label_task as label_task
    from prism_prm.search.methods import SearchSettings as SearchSettings
    from prism_prm.search.recipes import LabelRecipe as LabelRecipe
    from prism_prm.search.recipes import SearchRecipe as SearchRecipe
    from prism_prm.search.rerank_pool import RerankSettings as RerankSettings
    from prism_prm.search.rerank_pool import rerank_pool as rerank_pool
    from prism_prm.search.search_task import search_task as search_task
    from prism_prm.search.select import best_of_n as best_of_n
    from prism_prm.search.select import majority_vote as majority_vote
    from prism_prm.search.select import weighted_vote as weighted_vote
    from prism_prm.serve.page_html import view_results as view_results
    from prism_prm.serve.serve_prms import serve_prms as serve_prms
    from prism_prm.serve.settings import ServeSettings as ServeSettings
    from prism_prm.steps import split_steps as split_steps
    from prism_prm.train.margins import measure_margins as measure_margins
    from prism_prm.train.recipe import Recipe as Recipe
    from prism_prm.train.recipe import load_recipe as load_recipe
    from prism_prm.train.train_prm import train_prm as train_prm
    from prism_prm.tree import Step as Step
    from prism_prm.tree import StepPair as StepPair
    from prism_prm.tree import StepTree as StepTree

__version__ = "0.2.0"

_EXPORTS = {
    "PrmOptions": "prism_prm.backends.open_scorer",
    "CalibrateSettings": "prism_prm.evaluate.calibrate_prm",
    "Cluster": "prism_prm.plan.costs",
    "ConfigError": "prism_prm.errors",
    "CriticSettings": "prism_prm.backends.critic_settings",
    "DataError": "prism_prm.errors",
    "EvalSettings": "prism_prm.evaluate.evaluate_prm",
    "GrpoRecipe": "prism_prm.rl.recipe",
    "Judge": "prism_prm.grading.graders",
    "LabelRecipe": "prism_prm.search.recipes",
    "LabelSettings": "prism_prm.search.label_rules",
    "ModelError": "prism_prm.errors",
    "Monitor": "prism_prm.rl.monitor",
    "MonitorSettings": "prism_prm.rl.alarm",
    "PRM": "prism_prm.models.prm",
    "PRMReward": "prism_prm.rl.reward",
    "PairRecipe": "prism_prm.data.build_pairs",
    "PairSettings": "prism_prm.data.pair_rules",
    "PolicySettings": "prism_prm.backends.policy",
    "PrismError": "prism_prm.errors",
    "Prm": "prism_prm.models.prm",
    "RaySettings": "prism_prm.ray",
    "ReadOptions": "prism_prm.data.formats",
    "Recipe": "prism_prm.train.recipe",
    "Report": "prism_prm.report",
    "RerankSettings": "prism_prm.search.rerank_pool",
    "Sampling": "prism_prm.backends.policy",
    "Scorer": "prism_prm.scorer",
    "ScoringJob": "prism_prm.plan.plan_run",
    "SearchRecipe": "prism_prm.search.recipes",
    "SearchSettings": "prism_prm.search.methods",
    "ServeSettings": "prism_prm.serve.settings",
    "Step": "prism_prm.tree",
    "StepGRPOTrainer": "prism_prm.rl.trainer",
    "StepPair": "prism_prm.tree",
    "StepTree": "prism_prm.tree",
    "TreeScores": "prism_prm.scorer",
    "VerifierSettings": "prism_prm.lab.theory.report_theory",
    "annotated_pairs": "prism_prm.data.pair_rules",
    "best_of_n": "prism_prm.search.select",
    "build_pairs": "prism_prm.data.build_pairs",
    "calibrate_prm": "prism_prm.evaluate.calibrate_prm",
    "calibrate_steps": "prism_prm.evaluate.calibrate_prm",
    "compare_rates": "prism_prm.evaluate.compare_rates",
    "compare_runs": "prism_prm.evaluate.compare",
    "evaluate_prm": "prism_prm.evaluate.evaluate_prm",
    "evaluate_steps": "prism_prm.evaluate.evaluate_prm",
    "example_folder": "prism_prm.lab.world.example_prms",
    "example_prm": "prism_prm.lab.world.example_prms",
    "export_pairs": "prism_prm.data.export",
    "extract_answer": "prism_prm.grading.extract",
    "init_prm": "prism_prm.backends.load_prm",
    "label_task": "prism_prm.search.label_task",
    "load_prm": "prism_prm.backends.load_prm",
    "load_recipe": "prism_prm.train.recipe",
    "load_task": "prism_prm.data.tasks",
    "look_at": "prism_prm.evaluate.look_at",
    "lookahead_pairs": "prism_prm.data.pair_rules",
    "majority_vote": "prism_prm.search.select",
    "measure_margins": "prism_prm.train.margins",
    "open_critic": "prism_prm.backends.open_critic",
    "open_policy": "prism_prm.backends.policy",
    "plan_run": "prism_prm.plan.plan_run",
    "read_benchmark": "prism_prm.evaluate.benchmarks",
    "read_pool": "prism_prm.data.pools",
    "read_trees": "prism_prm.data.reader",
    "report_theory": "prism_prm.lab.theory.report_theory",
    "rerank_pool": "prism_prm.search.rerank_pool",
    "run_demo": "prism_prm.lab.demo.run_demo",
    "score_files": "prism_prm.evaluate.score_files",
    "search_problems": "prism_prm.search.engine",
    "search_task": "prism_prm.search.search_task",
    "serve_prms": "prism_prm.serve.serve_prms",
    "solution_score": "prism_prm.aggregate",
    "split_steps": "prism_prm.steps",
    "steps_from_predictions": "prism_prm.evaluate.score_files",
    "train_policy": "prism_prm.rl.train_policy",
    "train_prm": "prism_prm.train.train_prm",
    "train_rounds": "prism_prm.rl.rounds",
    "view_results": "prism_prm.serve.page_html",
    "weighted_vote": "prism_prm.search.select",
}
"""Public name → the module that defines it; type checkers read the imports above instead."""

__all__ = ["__version__", *_EXPORTS]


if not TYPE_CHECKING:  # hidden from type checkers, or every typo would type-check

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            return getattr(importlib.import_module(_EXPORTS[name]), name)
        raise AttributeError(f"module 'prism_prm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
