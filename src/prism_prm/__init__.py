"""prism-prm: train, measure and use process reward models.

Names are imported on first use, so that `import prism_prm` stays instant; `docs/api.md` shows how they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism_prm.aggregate import solution_score as solution_score
    from prism_prm.answers import Judge as Judge
    from prism_prm.answers import extract_answer as extract_answer
    from prism_prm.critics.load import open_critic as open_critic
    from prism_prm.critics.settings import CriticSettings as CriticSettings
    from prism_prm.data import ReadOptions as ReadOptions
    from prism_prm.data import read_trees as read_trees
    from prism_prm.data.plain_solutions import split_steps as split_steps
    from prism_prm.demo.pipeline import run_demo as run_demo
    from prism_prm.errors import ConfigError as ConfigError
    from prism_prm.errors import DataError as DataError
    from prism_prm.errors import ModelError as ModelError
    from prism_prm.errors import PrismError as PrismError
    from prism_prm.evaluation.benchmarks import read_benchmark as read_benchmark
    from prism_prm.evaluation.compare import compare_runs as compare_runs
    from prism_prm.evaluation.evaluate import EvalSettings as EvalSettings
    from prism_prm.evaluation.evaluate import evaluate_prm as evaluate_prm
    from prism_prm.evaluation.evaluate import evaluate_steps as evaluate_steps
    from prism_prm.evaluation.scores import steps_from_predictions as steps_from_predictions
    from prism_prm.export import export_pairs as export_pairs
    from prism_prm.label.recipe import LabelRecipe as LabelRecipe
    from prism_prm.label.run import label_task as label_task
    from prism_prm.label.settings import LabelSettings as LabelSettings
    from prism_prm.page.html import view_results as view_results
    from prism_prm.pairs import PairSettings as PairSettings
    from prism_prm.pairs import annotated_pairs as annotated_pairs
    from prism_prm.pairs import lookahead_pairs as lookahead_pairs
    from prism_prm.pairs.build import PairRecipe as PairRecipe
    from prism_prm.pairs.build import build_pairs as build_pairs
    from prism_prm.planning.gpus import Cluster as Cluster
    from prism_prm.planning.plan import ScoringJob as ScoringJob
    from prism_prm.planning.plan import plan_run as plan_run
    from prism_prm.policies import PolicySettings as PolicySettings
    from prism_prm.policies import Sampling as Sampling
    from prism_prm.policies import open_policy as open_policy
    from prism_prm.pools import read_pool as read_pool
    from prism_prm.records import Step as Step
    from prism_prm.records import StepPair as StepPair
    from prism_prm.records import StepTree as StepTree
    from prism_prm.report import Report as Report
    from prism_prm.rerank import best_of_n as best_of_n
    from prism_prm.rerank import majority_vote as majority_vote
    from prism_prm.rerank import weighted_vote as weighted_vote
    from prism_prm.rerank.run import RerankSettings as RerankSettings
    from prism_prm.rerank.run import rerank_pool as rerank_pool
    from prism_prm.rl.pipeline import train_policy as train_policy
    from prism_prm.rl.recipe import GrpoRecipe as GrpoRecipe
    from prism_prm.rl.reward import PRMReward as PRMReward
    from prism_prm.rl.trainer import StepGRPOTrainer as StepGRPOTrainer
    from prism_prm.scorer import PRM as PRM
    from prism_prm.scorer import Prm as Prm
    from prism_prm.scorer import Scorer as Scorer
    from prism_prm.scorer import TreeScores as TreeScores
    from prism_prm.scorer import init_prm as init_prm
    from prism_prm.scorer import load_prm as load_prm
    from prism_prm.scorer.look import look_at as look_at
    from prism_prm.scorer.table import score_files as score_files
    from prism_prm.search import SearchSettings as SearchSettings
    from prism_prm.search import search_problems as search_problems
    from prism_prm.search.recipe import SearchRecipe as SearchRecipe
    from prism_prm.search.run import search_task as search_task
    from prism_prm.serve.run import serve_prms as serve_prms
    from prism_prm.serve.settings import ServeSettings as ServeSettings
    from prism_prm.tasks import load_task as load_task
    from prism_prm.theory_report.report_theory import VerifierSettings as VerifierSettings
    from prism_prm.theory_report.report_theory import report_theory as report_theory
    from prism_prm.training.margins import measure_margins as measure_margins
    from prism_prm.training.recipe import Recipe as Recipe
    from prism_prm.training.recipe import load_recipe as load_recipe
    from prism_prm.training.run import train_prm as train_prm
    from prism_prm.workers.settings import RaySettings as RaySettings
    from prism_prm.world.example_prms import example_folder as example_folder
    from prism_prm.world.example_prms import example_prm as example_prm

__version__ = "0.2.0"

_EXPORTS = {
    "Cluster": "prism_prm.planning.gpus",
    "ConfigError": "prism_prm.errors",
    "CriticSettings": "prism_prm.critics.settings",
    "DataError": "prism_prm.errors",
    "EvalSettings": "prism_prm.evaluation.evaluate",
    "GrpoRecipe": "prism_prm.rl.recipe",
    "Judge": "prism_prm.answers",
    "LabelRecipe": "prism_prm.label.recipe",
    "LabelSettings": "prism_prm.label.settings",
    "ModelError": "prism_prm.errors",
    "PRM": "prism_prm.scorer",
    "PRMReward": "prism_prm.rl.reward",
    "PairRecipe": "prism_prm.pairs.build",
    "PairSettings": "prism_prm.pairs",
    "PolicySettings": "prism_prm.policies",
    "PrismError": "prism_prm.errors",
    "Prm": "prism_prm.scorer",
    "RaySettings": "prism_prm.workers.settings",
    "ReadOptions": "prism_prm.data",
    "Recipe": "prism_prm.training.recipe",
    "Report": "prism_prm.report",
    "RerankSettings": "prism_prm.rerank.run",
    "Sampling": "prism_prm.policies",
    "Scorer": "prism_prm.scorer",
    "ScoringJob": "prism_prm.planning.plan",
    "SearchRecipe": "prism_prm.search.recipe",
    "SearchSettings": "prism_prm.search",
    "ServeSettings": "prism_prm.serve.settings",
    "Step": "prism_prm.records",
    "StepGRPOTrainer": "prism_prm.rl.trainer",
    "StepPair": "prism_prm.records",
    "StepTree": "prism_prm.records",
    "TreeScores": "prism_prm.scorer",
    "VerifierSettings": "prism_prm.theory_report.report_theory",
    "annotated_pairs": "prism_prm.pairs",
    "best_of_n": "prism_prm.rerank",
    "build_pairs": "prism_prm.pairs.build",
    "compare_runs": "prism_prm.evaluation.compare",
    "evaluate_prm": "prism_prm.evaluation.evaluate",
    "evaluate_steps": "prism_prm.evaluation.evaluate",
    "example_folder": "prism_prm.world.example_prms",
    "example_prm": "prism_prm.world.example_prms",
    "export_pairs": "prism_prm.export",
    "extract_answer": "prism_prm.answers",
    "init_prm": "prism_prm.scorer",
    "label_task": "prism_prm.label.run",
    "load_prm": "prism_prm.scorer",
    "load_recipe": "prism_prm.training.recipe",
    "load_task": "prism_prm.tasks",
    "look_at": "prism_prm.scorer.look",
    "lookahead_pairs": "prism_prm.pairs",
    "majority_vote": "prism_prm.rerank",
    "measure_margins": "prism_prm.training.margins",
    "open_critic": "prism_prm.critics.load",
    "open_policy": "prism_prm.policies",
    "plan_run": "prism_prm.planning.plan",
    "read_benchmark": "prism_prm.evaluation.benchmarks",
    "read_pool": "prism_prm.pools",
    "read_trees": "prism_prm.data",
    "report_theory": "prism_prm.theory_report.report_theory",
    "rerank_pool": "prism_prm.rerank.run",
    "run_demo": "prism_prm.demo.pipeline",
    "score_files": "prism_prm.scorer.table",
    "search_problems": "prism_prm.search",
    "search_task": "prism_prm.search.run",
    "serve_prms": "prism_prm.serve.run",
    "solution_score": "prism_prm.aggregate",
    "split_steps": "prism_prm.data.plain_solutions",
    "steps_from_predictions": "prism_prm.evaluation.scores",
    "train_policy": "prism_prm.rl.pipeline",
    "train_prm": "prism_prm.training.run",
    "view_results": "prism_prm.page.html",
    "weighted_vote": "prism_prm.rerank",
}
"""Public name → the module that owns it; type checkers read the imports above, which say the same."""

__all__ = ["__version__", *_EXPORTS]


if not TYPE_CHECKING:  # who sees that there is a way to get any name takes misspelt ones for right

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            return getattr(importlib.import_module(_EXPORTS[name]), name)
        raise AttributeError(f"module 'prism_prm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
