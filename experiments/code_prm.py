"""A PRM for code: heads on a frozen code model, trained on pairs of a faulty and a corrected line.

A base PRM is trained by cross-entropy on all labeled lines. From it, each arm is trained with the same number of
updates; learning rates are chosen on validation tasks. Every PRM scores the lines of held-out tasks. The plan and the
decision rule are in LOG.md, "A PRM for code".

    python experiments/code_prm.py train --backbone MODEL --out FOLDER       # all arms; every PRM scores the test lines
    python experiments/code_prm.py likelihood --backbone MODEL --out FOLDER  # what the language model thinks of them
    python experiments/code_prm.py use --backbone MODEL --out FOLDER         # re-rank samples, and one guided search
    python experiments/code_prm.py report --out FOLDER                       # tables and figure of what is there

MODEL is the hub id or the folder of a language model. A stopped stage resumes with the same command. `--tiny` checks
all stages in minutes, with a random model and 20 pairs. Every result is a small file in FOLDER/results; weights are
removed once they are measured, and trained again if they are needed. The PRM that `use` used stays in FOLDER/prm.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from code_run import records
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.backends.load_prm import load_prm
from prism_prm.backends.policy import PolicySettings, Sampling
from prism_prm.backends.rivals import LocalTokens
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.data.pair_examples import Examples, Split
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import load_task
from prism_prm.files import JsonLines, write_text
from prism_prm.grading.code_benchmarks import LIVECODEBENCH_PRELUDE
from prism_prm.grading.extract import find_program
from prism_prm.job import Job
from prism_prm.metrics import pairwise_accuracy
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.models.lower_cache import CacheSettings
from prism_prm.models.model_files import config_folder, plain_folder
from prism_prm.models.prm import PRM
from prism_prm.report import Report, number, percent, signed_percent
from prism_prm.report.figures import draw_dots, finish
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool
from prism_prm.search.search_task import search_task
from prism_prm.segments import split_text
from prism_prm.stats import Interval, cluster_draws, compare_means, mean_interval, number_clusters, over_seeds
from prism_prm.train.margins import fill_cache
from prism_prm.train.recipe import load_recipe
from prism_prm.train.train_prm import DATA, make_data, train_prm
from prism_prm.tree import StepTree

RECIPES = Path(__file__).parent.parent / "recipes"
PAIRS = "qwen2.5-coder-0.5b-pairs"
BASE = "base"
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    BASE: ("qwen2.5-coder-0.5b-base", ()),
    "labels": (PAIRS, ("objective.name=bce", "objective.on=labels", "train.pairs_per_update=128")),
    "pointwise": (f"{PAIRS}-pointwise", ()),
    "contrastive": (PAIRS, ()),
    "hybrid": (f"{PAIRS}-hybrid", ()),
    "lookahead": (f"{PAIRS}-lookahead", ()),
}
"""Arm → its recipe and settings. All but the first start from the base PRM of their seed; `labels` is the base's own
training, continued for as many updates as the other arms have."""
CONTRASTS = (
    ("contrastive", "pointwise"), ("pointwise", "labels"), ("contrastive", "labels"), ("hybrid", "pointwise"),
    ("lookahead", "contrastive"), ("labels", BASE),
)  # fmt: skip
"""The first one is primary."""
KINDS = ("operator", "bound", "condition", "missing line", "other")


@dataclass(frozen=True)
class Plan:
    """The size of everything."""

    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    num_tuning: int = 2
    """Learning rates are tried with this many of the seeds."""
    settings: tuple[str, ...] = ()
    """For every recipe."""
    humaneval: int = 40
    livecodebench: int = 20
    samples: int = 8
    searched: int = 20
    """The first problems of HumanEval's, for the guided search."""
    tokens: int = 512
    """The most tokens of a sample."""
    steps: int = 60
    """The most steps of the guided search."""


TINY = Plan(
    rates=(1e-3, 1e-2), seeds=(0, 1), num_tuning=1, settings=("train.updates=40", "train.pairs_per_update=4"),
    humaneval=2, livecodebench=1, samples=2, searched=1, tokens=16, steps=3,
)  # fmt: skip


# --- held-out pairs, and what can be known about a line from its text

TOKEN = re.compile(r"\d[\w.]*|\w+|[-+*/%=<>!&|^~@:]+|\S")
OPERATOR = re.compile(r"[-+*/%=<>!&|^~@]+|and|or|not|in|is")
NUMBER = re.compile(r"\d[\w.]*|[-+]")
CONDITION = re.compile(r"\s*(?:if|elif|while)\b|.*\sif\s.*\selse\s")


def kind_of_edit(wrong: str, right: str, after: str) -> str:
    """How the faulty line differs from the corrected one; `after` is what follows the corrected line.

    - missing line: the faulty program has the next line of the corrected one instead.
    - bound: the tokens that differ are numbers and plus or minus signs, among them a number: `n` → `n + 1`.
    - operator: they are operators, words such as `and` among them: `<` → `<=`.
    - condition: another difference, the first of which is in a line with `if`, `elif` or `while` (a step may have
      several lines: what opens a block belongs to the block's first line).
    - other: all the rest, a superfluous line among them.

    `kind_of_edit("if a < b:", "if a <= b:", "")` is "operator".
    """
    if after.strip() and wrong.strip() == after.strip():
        return "missing line"
    a, b = TOKEN.findall(wrong), TOKEN.findall(right)
    changed: list[str] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            changed += [*a[i:j], *b[k:m]]
    if changed and all(map(NUMBER.fullmatch, changed)) and any(token[0].isdigit() for token in changed):
        return "bound"
    if changed and all(map(OPERATOR.fullmatch, changed)):
        return "operator"
    first = next((both for both in zip(wrong.split("\n"), right.split("\n"), strict=False) if both[0] != both[1]), ())
    return "condition" if any(map(CONDITION.match, first)) else "other"


@dataclass(frozen=True)
class Pair:
    """A corrected line, and the program with the faulty one."""

    tree: int
    task: str
    right: int
    """The node of the corrected line."""
    lines: tuple[int, ...]
    """The nodes of the faulty program."""
    fault: int
    """The index of the faulty line in `lines`."""
    texts: tuple[str, ...]
    """The lines of the faulty program, and the corrected line at the end."""
    kind: str
    has_statement: bool


def held_out(split: Split) -> list[Pair]:
    """The pairs of a split."""
    found = []
    columns = (split.pairs.tree, split.pairs.chosen, split.pairs.rejected)
    for tree_id, right, wrong in zip(*(column.tolist() for column in columns), strict=True):
        tree = split.trees[tree_id]
        path = tree.path(len(tree.nodes) - 1)  # the faulty program's own lines come last
        fault = path.index(wrong)
        at = tree.trunk.index(right) + 1
        after = tree.nodes[tree.trunk[at]].text if at < len(tree.trunk) else ""
        task = tree.name.rpartition("/")[0]
        texts = (*tree.texts(path), tree.nodes[right].text)
        kind = kind_of_edit(texts[fault], texts[-1], after)
        found.append(Pair(tree_id, task, right, path, fault, texts, kind, tree.problem.strip() != task))
    return found


FEATURES = ("length", "indentation", "token frequency")


def features(text: str, counts: Mapping[str, int]) -> list[float]:
    """Characters, white space before the first one, and the mean log-frequency of the tokens in the training lines."""
    total = sum(counts.values()) + len(counts) + 1
    tokens = TOKEN.findall(text) or [""]
    frequency = float(np.mean([math.log((counts.get(token, 0) + 1) / total) for token in tokens]))
    return [float(len(text.strip())), float(len(text) - len(text.lstrip())), frequency]


def shortcuts(train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, list[Floats]]:
    """Scores of the test lines that need no model: each feature with the sign that fits the training pairs better, and
    a logistic regression on the differences of all three."""
    from sklearn.linear_model import LogisticRegression

    counts = Counter(token for pair in train for text in pair.texts for token in TOKEN.findall(text))
    gaps_P3 = np.array([
        np.subtract(features(pair.texts[-1], counts), features(pair.texts[pair.fault], counts)) for pair in train
    ])  # fmt: skip
    scale = gaps_P3.std(axis=0) + 1e-9
    fit = LogisticRegression(fit_intercept=False)
    fit.fit(np.concatenate([gaps_P3, -gaps_P3]) / scale, [1] * len(train) + [0] * len(train))
    signs = np.where(np.sign(gaps_P3).sum(axis=0) < 0, -1.0, 1.0)
    weights = {name: signs[i] * np.eye(3)[i] for i, name in enumerate(FEATURES)}
    weights["all three, fitted"] = fit.coef_[0] / scale
    table = [np.array([features(text, counts) for text in pair.texts]) for pair in test]
    return {name: [own_L3 @ weight for own_L3 in table] for name, weight in weights.items()}


# --- training


class Timed(Terminal):
    """Shows the time left beside every progress bar."""

    @contextlib.contextmanager
    def progress(
        self, description: str, total: float | None, *, unit: str = "", done: int = 0
    ) -> Iterator[Any]:  # fmt: skip
        started, count = time.monotonic(), 0
        with super().progress(description, total, unit=unit, done=done) as bar:

            def advance(steps: int, more: str = "") -> None:
                nonlocal count
                count += steps
                if total and count and not more.endswith("left"):
                    left = (total - done - count) * (time.monotonic() - started) / count
                    more = f"{more}   {timedelta(seconds=round(left))} left".strip()
                bar(steps, more)

            yield advance


class Experiment:
    """The folder of a run: what is done is read, what is missing is computed."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.out: Path = given.out
        self.plan = TINY if given.tiny else Plan()
        if given.seeds:
            self.plan = replace(self.plan, seeds=self.plan.seeds[: given.seeds])
        self.pairs, self.backbone = given.pairs, given.backbone
        self.policy = given.policy or f"hf:{given.backbone}"
        self.humaneval, self.livecodebench = given.humaneval, given.livecodebench
        self.started, self.num_new = time.monotonic(), 0
        for left in (self.out / "runs").glob("*.removed"):
            shutil.rmtree(left)

    @cached_property
    def layers(self) -> int:
        """The number of the backbone's layers, all of which are frozen."""
        from transformers import AutoConfig

        return int(AutoConfig.from_pretrained(plain_folder(config_folder(str(self.backbone)))).num_hidden_layers)

    @property
    def tuning(self) -> tuple[int, ...]:
        return self.plan.seeds[: self.plan.num_tuning]

    def settings(self, arm: str, rate: float, seed: int) -> list[str]:
        """What the recipe of an arm does not say."""
        start = f"base.backbone={self.backbone}"
        if arm != BASE:
            start = f"base.prm={self.weights(BASE, self.chosen(BASE), seed)}"
        return [
            *ARMS[arm][1], *self.plan.settings, start, f'data.inputs=["{self.pairs}"]', f"seed={seed}",
            f"train.lr={rate:g}", f"hardware.cache={self.out / 'cache'}", f"hardware.frozen_layers={self.layers}",
        ]  # fmt: skip

    def folder(self, arm: str, rate: float, seed: int) -> Path:
        return self.out / "runs" / f"{arm}-{rate:g}-seed{seed}"

    def weights(self, arm: str, rate: float, seed: int) -> Path:
        """The folder of a trained PRM."""
        folder = self.folder(arm, rate, seed)
        recipe = RECIPES / f"{ARMS[arm][0]}.toml"
        return Path(train_prm(recipe, folder, assignments=self.settings(arm, rate, seed))["best"])

    def drop(self, arm: str, rate: float, seed: int) -> None:
        """Remove the weights of a run; a killed removal leaves nothing that looks like a run."""
        folder = self.folder(arm, rate, seed)
        if folder.exists():
            shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.removed")))

    def file(self, arm: str, rate: float, seed: int) -> Path:
        return self.out / "results" / f"{arm} {rate:g} {seed}.json"

    def result(self, arm: str, rate: float, seed: int) -> dict[str, Any]:
        """Validation and scores of the test lines of one PRM."""
        path = self.file(arm, rate, seed)
        if not path.exists():
            begun = time.monotonic()
            place = self.weights(arm, rate, seed)
            run = json.loads((self.folder(arm, rate, seed) / "run.json").read_text())
            trained = time.monotonic()
            scores = self.score(place)
            seconds = [round(trained - begun, 1), round(time.monotonic() - trained, 1)]
            found = {"validation": run["rounds"][place.name], "seconds": seconds, "scores": scores}
            write_text(path, json.dumps(found) + "\n")
            self.num_new += 1
            self.show_time_left()
        read: dict[str, Any] = json.loads(path.read_text())
        return read

    def show_time_left(self) -> None:
        """Print how many runs are done, and how long the others take at the rate of this session."""
        plan = self.plan
        total = len(ARMS) * (len(plan.rates) * len(self.tuning) + len(plan.seeds) - len(self.tuning))
        done = sum(path.name.split(" ")[0] in ARMS for path in (self.out / "results").glob("* * *.json"))
        left = timedelta(seconds=round((total - done) * (time.monotonic() - self.started) / max(1, self.num_new)))
        say(f"{done} of {total} PRMs are trained and measured; about {left} left")

    def chosen(self, arm: str) -> float:
        """The rate with the best AUROC within prefix on validation tasks, the mean over the tuning seeds."""

        def value(rate: float) -> float:
            found = [self.result(arm, rate, seed)["validation"]["auroc_prefix"] for seed in self.tuning]
            return float(np.mean(found))

        return max(self.plan.rates, key=value)

    def train(self) -> None:
        """Train and measure what is missing: first the base PRMs, then seed by seed the arms that start from them."""
        for seed in self.tuning:
            for rate in self.plan.rates:
                self.result(BASE, rate, seed)
                self.drop(BASE, rate, seed)
        for seed in self.plan.seeds:
            self.result(BASE, self.chosen(BASE), seed)
            for arm in list(ARMS)[1:]:
                for rate in self.plan.rates if seed in self.tuning else [self.chosen(arm)]:
                    self.result(arm, rate, seed)
                    self.drop(arm, rate, seed)
            self.drop(BASE, self.chosen(BASE), seed)

    # --- the test lines

    @cached_property
    def data(self) -> Path:
        """The folder of all pairs; the same as in every run."""
        given = [f'data.inputs=["{self.pairs}"]', f"base.backbone={self.backbone or 'none'}"]
        recipe = load_recipe(RECIPES / f"{ARMS[BASE][0]}.toml", given)
        with Job(self.out / "data") as job:
            make_data(recipe, job)
        return self.out / "data" / DATA

    @cached_property
    def split(self) -> Split:
        return Split.read(self.data, "test")

    @cached_property
    def test(self) -> list[Pair]:
        return held_out(self.split)

    def load(self, place: Path, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]) -> PRM:
        """A trained PRM, and in the cache the states that it needs for these nodes."""
        cache = CacheSettings(self.out / "cache", self.layers, bf16=True)
        prm = load_prm(place, cache=cache, on_too_long="skip")
        assert isinstance(prm, PRM), "a local PRM"
        tree = np.repeat([each.tree_id for each in trees], [len(each) for each in nodes]).astype(np.int64)
        node = np.concatenate([*nodes, []]).astype(np.int64)
        labels = np.ones(len(node))
        by_id = {each.tree_id: each for each in trees}
        if len(node):
            fill_cache(prm, Examples(by_id, np.arange(len(node)), tree, node, node, tree, labels))
        return prm

    def score(self, place: Path) -> list[list[float]]:
        """The log-odds of all lines of each faulty program, and of the corrected line at the end."""
        trees = [self.split.trees[pair.tree] for pair in self.test]
        nodes = [(*pair.lines, pair.right) for pair in self.test]
        found = self.load(place, trees, nodes).score_trees(trees, nodes)
        return [
            [round(float(scores.log_odds_NO[node, 0]), 5) for node in own]
            for scores, own in zip(found, nodes, strict=True)
        ]

    def likelihood(self) -> None:
        """Write the log-probability and the number of tokens of every test line, by the language model."""
        path = self.out / "results" / "likelihood.jsonl"
        log = JsonLines(path)
        done = len(log.read())  # without a line that was being written when the run was killed
        prm = load_prm(
            self.backbone, family="implicit", settings={"system": "", "separator": "\n"}, dtype="bfloat16",
        )  # fmt: skip
        assert isinstance(prm, PRM), "a local model"
        source = LocalTokens(prm)
        for number_, pair in enumerate(self.test[done:], start=done + 1):
            (values,), _ = source.values([self.split.trees[pair.tree]], [[pair.lines[-1], pair.right]], "logprob")
            own = [values[node] for node in (*pair.lines, pair.right)]
            log.append({"sums": [round(float(each.sum()), 4) for each in own], "tokens": [len(each) for each in own]})
            if number_ % 10 == 0:
                rate = (time.monotonic() - self.started) / (number_ - done)
                left = timedelta(seconds=round((len(self.test) - number_) * rate))
                say(f"{number_} of {len(self.test)} programs read; about {left} left")
        log.close()

    # --- use

    def best_arm(self) -> str:
        """The arm with the best AUROC within prefix on validation tasks, at its chosen rate."""

        def value(arm: str) -> float:
            results = [self.result(arm, self.chosen(arm), seed) for seed in self.plan.seeds]
            return float(np.mean([found["validation"]["auroc_prefix"] for found in results]))

        return max(list(ARMS)[1:], key=value)

    def problems(self) -> Iterator[tuple[str, Path, int]]:
        """Each task: its name, its file, and how many of its problems are used."""
        folder = self.out / "use"
        humaneval = folder / "humaneval.jsonl"
        write_text(humaneval, "".join(json.dumps(record) + "\n" for record in records(self.humaneval)))
        yield "humaneval", humaneval, self.plan.humaneval
        found = []
        for line in self.livecodebench.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            tests = record["sample_tests_parsed_from_statement"]
            if record["difficulty"] == "easy" and not record["starter_code"] and len(tests) > 1:
                text = (
                    f"{record['question_content']}\n\nWrite a program that reads standard input and prints the answer."
                    "\n\nPut the program into one block that begins with ```python and ends with ```."
                )
                # The official tests are not at hand, and those recovered from logs are samples again: the first sample
                # is public, and the others judge.
                found.append({
                    "problem": text, "name": record["question_id"], "date": record["contest_date"],
                    "public_tests": tests[:1], "tests": tests[1:], "prelude": LIVECODEBENCH_PRELUDE,
                })  # fmt: skip
        livecodebench = folder / "livecodebench.jsonl"
        write_text(livecodebench, "".join(json.dumps(record) + "\n" for record in found))
        yield "livecodebench", livecodebench, min(self.plan.livecodebench, len(found))

    def recipe(self, file: Path, count: int, search: SearchSettings, prm: Path | None = None) -> SearchRecipe:
        """Samples, or with a PRM a guided search."""
        return SearchRecipe(
            task=str(file), limit=count, n=(self.plan.samples,), at_once=4, search=search,
            prm=() if prm is None else (str(prm),), select="majority" if prm is None else "argmax",
            policy=PolicySettings(self.policy, dtype="bfloat16", log_likelihood=True),
        )  # fmt: skip

    def use(self) -> None:
        """Sample, re-rank, and search with the best arm, whose PRM is kept in the folder `prm`."""
        if (self.out / "prm").exists():
            return
        plan, arm = self.plan, self.best_arm()
        tokens = plan.tokens
        sampling = Sampling(
            temperature=0.8, top_p=0.95, max_step_tokens=tokens, max_tokens=tokens, segmenter="code"
        )  # fmt: skip
        wanted = {BASE: self.chosen(BASE), arm: self.chosen(arm)}
        places = {name: self.weights(name, rate, self.plan.seeds[0]) for name, rate in wanted.items()}
        for name, file, count in self.problems():
            path = self.out / "results" / f"use {name}.json"
            if path.exists():
                continue
            folder = self.out / "use" / name
            search_task(
                self.recipe(file, count, SearchSettings("sample", sampling=sampling)), folder / "samples"
            )  # fmt: skip
            pool, likelihood = programs(folder / "samples" / "journal" / f"n{plan.samples}.jsonl", file, count)
            write_text(folder / "likelihood.jsonl", "".join(json.dumps(line) + "\n" for line in likelihood))
            trees = pool.trees()
            nodes = [range(len(tree.nodes)) for tree in trees]
            prms = {name: self.load(place, trees, nodes) for name, place in places.items()}
            results = rerank_pool(
                pool, folder / "reranked", prms={**prms, "both": f"ensemble:mean:{arm},{LIKELIHOOD}"},
                scores={LIKELIHOOD: folder / "likelihood.jsonl"}, settings=RerankSettings(aggregators=("min", "mean")),
            )  # fmt: skip
            table = {}
            for rule, method, scored in rules(arm):
                curve = results.curve(method, scored, "min" if scored else "")
                table[rule] = {"ns": curve.ns, "values": curve.values.tolist()}
            means = [(f"{rule}, mean", "best-of-n", prm) for rule, prm in (("base PRM", BASE), ("PRM", arm))]
            for rule, method, prm in means:
                curve = results.curve(method, prm, "mean")
                table[rule] = {"ns": curve.ns, "values": curve.values.tolist()}
            statuses = dict(results.graded.count("status").most_common())
            about = {"arm": arm, "rules": table, "statuses": statuses, "clusters": curve.clusters.tolist()}
            write_text(path, json.dumps(about) + "\n")
            del prms
        path = self.out / "results" / "use beam.json"
        if not path.exists():
            beam = SearchSettings("beam", expand=4, max_steps=plan.steps, sampling=sampling)
            recipe = self.recipe(self.out / "use" / "humaneval.jsonl", plan.searched, beam, places[arm])
            [point] = search_task(recipe, self.out / "use" / "beam")
            about = {"correct": point.correct.tolist(), "oracle": point.oracle.value, "seconds": point.seconds}
            about |= {"policy_tokens": point.policy_tokens, "prm_tokens": point.prm_tokens, "arm": arm}
            write_text(path, json.dumps(about) + "\n")
        places[arm].rename(self.out / "prm")
        for name, rate in wanted.items():
            self.drop(name, rate, self.plan.seeds[0])
        say(f"The PRM of {arm} is in {self.out / 'prm'}")


LIKELIHOOD = "log-probability"
ORACLE = "oracle (pass@n)"


def rules(arm: str) -> list[tuple[str, str, str]]:
    """Row of the table, method, and scores of its curve."""
    return [
        ("one sample (pass@1)", "mean", ""),
        ("vote by outputs on the public tests", "majority", ""),
        ("public tests", "public-tests", ""),
        ("log-probability", "best-of-n", LIKELIHOOD),
        ("base PRM", "best-of-n", BASE),
        ("PRM", "best-of-n", arm),
        ("PRM and log-probability", "best-of-n", "both"),
        ("public tests, then log-probability", "public-tests", LIKELIHOOD),
        ("public tests, then PRM", "public-tests", arm),
        ("public tests, then PRM and log-probability", "public-tests", "both"),
        (ORACLE, "oracle", ""),
    ]


def programs(journal: Path, file: Path, count: int) -> tuple[Pool, list[dict[str, Any]]]:
    """The samples as bare programs, cut into lines as in training, and a score file with exp(mean log-probability)."""
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    done = {line["key"]: line["record"] for line in lines if "key" in line}
    entries, likelihood = [], []
    for problem in load_task(str(file)).problems[:count]:
        solutions, scores = [], []
        for one in done[problem.text]["solutions"]:
            text = "\n".join(one["steps"])
            program = find_program(text).answer
            steps = tuple(split_text(program, "code")) if program else ()
            written = f"```python\n{program}\n```" if program else text
            solutions.append(Solution(steps, written, tokens=one["tokens"]))
            mean = math.exp(one["log_likelihood"] / max(1, one["tokens"]))
            scores.append([mean] * len(steps) if steps else None)
        entries.append(PoolProblem(problem, tuple(solutions)))
        likelihood.append({"name": problem.name, "scores": scores})
    return Pool(tuple(entries)), likelihood


# --- measuring


@dataclass(frozen=True)
class Measured:
    """What one system gets on the test pairs, one value per pair."""

    hit_P: Floats
    """1 if the corrected line scores above the faulty one, ½ for a tie."""
    below_P: Floats
    """The share of the program's other lines that score below the faulty one; ties count half. NaN for one line."""
    lowest_P: Floats
    """1 if the faulty line scores lowest in its program; tied lines share it."""
    right_S: Bools
    scores_S: Floats
    clusters_S: Ints
    """All labeled lines: whether they are right, their scores, and their task."""

    @classmethod
    def of(cls, scores: Sequence[Sequence[float] | Floats], pairs: Sequence[Pair], tasks_P: Ints) -> Measured:
        hits, below, lowest, right, values, clusters = [], [], [], [], [], []
        for own, pair, task in zip(scores, pairs, tasks_P.tolist(), strict=True):
            lines, corrected = np.asarray(own[:-1]), float(own[-1])
            wrong = lines[pair.fault]
            others = np.delete(lines, pair.fault)
            hits.append(float(pairwise_accuracy(np.array([corrected]), np.array([wrong]))[0]))
            below.append(float(((others < wrong) + 0.5 * (others == wrong)).mean()) if len(others) else math.nan)
            lowest.append(0.0 if (others < wrong).any() else 1 / (1 + int((others == wrong).sum())))
            labeled = [*lines[: pair.fault], corrected, wrong]
            right += [True] * (len(labeled) - 1) + [False]
            values += labeled
            clusters += [task] * len(labeled)
        return cls(
            np.array(hits), np.array(below), np.array(lowest), np.array(right, bool), np.array(values),
            np.array(clusters, np.int64),
        )  # fmt: skip

    def fpr(self, draws: Any) -> tuple[float, Floats]:
        """FPR at TPR 90 of the labeled lines, and its value in every draw of tasks."""
        from prism_prm.evaluate.measure import measure_rankings

        none = np.zeros(len(self.scores_S), np.int64)
        name = "fpr_at_tpr_90"
        found = measure_rankings(self.right_S, self.scores_S, none, self.clusters_S, draws, (name,))[name]
        return found.value, found.replicates


def make_report(run: Experiment) -> None:
    """Write the tables and the figure of what is there."""
    report = Report("A PRM for code", subtitle=f"{run.out.name}: {len(run.test)} held-out pairs")
    tasks_P, num_tasks = number_clusters(pair.task for pair in run.test)
    draws = cluster_draws(num_tasks)
    seeds: dict[str, list[Measured]] = {}
    trained = [arm for arm in ARMS if all(run.file(arm, r, s).exists() for r in run.plan.rates for s in run.tuning)]
    rates = {arm: run.chosen(arm) for arm in trained}
    for arm, rate in rates.items():
        there = [seed for seed in run.plan.seeds if run.file(arm, rate, seed).exists()]
        scores = [run.result(arm, rate, seed)["scores"] for seed in there]
        seeds[arm] = [Measured.of(own, run.test, tasks_P) for own in scores]
    systems = dict(seeds)
    path = run.out / "results" / "likelihood.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if len(lines) == len(run.test):
        sums = [np.array(line["sums"]) for line in lines]
        means = [np.divide(line["sums"], line["tokens"]) for line in lines]
        systems["log-probability of the line"] = [Measured.of(sums, run.test, tasks_P)]
        systems["log-probability per token"] = [Measured.of(means, run.test, tasks_P)]
    for name, values in shortcuts(held_out(Split.read(run.data, "train")), run.test).items():
        systems[name] = [Measured.of(values, run.test, tasks_P)]

    def mean(of: Sequence[Measured], name: str, keep: Any = slice(None)) -> Interval:
        value_P = np.mean([getattr(each, name) for each in of], axis=0)[keep]
        known = ~np.isnan(value_P)
        return mean_interval(value_P[known], tasks_P[keep][known])

    rows, fprs = [], {}
    for name, of in systems.items():
        found = [each.fpr(draws) for each in of]
        fprs[name] = [value for value, _ in found]
        low, high = np.nanquantile(np.mean([drawn for _, drawn in found], axis=0), [0.025, 0.975])
        fpr = Interval(float(np.mean(fprs[name])), float(low), float(high), num_tasks)
        cells = [percent(mean(of, "hit_P")), percent(fpr), percent(mean(of, "below_P")), percent(mean(of, "lowest_P"))]
        rows.append([name, str(len(of)) if name in seeds else NONE, *cells])
    sizes = np.array([len(pair.lines) for pair in run.test])
    rows.append(["chance", NONE, "50.0", "90.0", "50.0", percent(float((1 / sizes).mean()))])
    report.table(
        ["", "seeds", "pairs ranked right ↑", "FPR at TPR 90 ↓", "lines below the fault ↓", "fault lowest ↑"],
        rows, caption=f"Held-out lines: {len(run.test)} pairs of {num_tasks} tasks, 95 % intervals over tasks (%)",
    )  # fmt: skip

    rows = []
    for one, other in CONTRASTS:
        if one in seeds and other in seeds and len(seeds[one]) == len(seeds[other]):
            a, b = (np.mean([each.hit_P for each in seeds[name]], axis=0) for name in (one, other))
            gaps = [float((x.hit_P - y.hit_P).mean()) for x, y in zip(seeds[one], seeds[other], strict=True)]
            gap = compare_means(a, b, tasks_P)
            positive = f"{sum(each > 0 for each in gaps)} of {len(gaps)}"
            rows.append([f"{one} − {other}", signed_percent(gap), number(gap.p), positive, percent(over_seeds(gaps))])
    for arm, of in seeds.items():
        for name in [name for name in systems if name not in seeds]:
            gap = compare_means(np.mean([each.hit_P for each in of], axis=0), systems[name][0].hit_P, tasks_P)
            rows.append([f"{arm} − {name}", signed_percent(gap), number(gap.p), NONE, NONE])
    report.table(
        ["", "difference, over tasks", "p", "seeds above 0", "over seeds"], rows,
        caption="Pairs ranked right: paired differences (points). The first is primary",
    )  # fmt: skip

    shown = list(seeds) + [name for name in systems if name not in seeds]
    parts: dict[str, Any] = {kind: np.array([pair.kind == kind for pair in run.test]) for kind in KINDS}
    longer = np.array([len(pair.texts[-1].strip()) - len(pair.texts[pair.fault].strip()) for pair in run.test])
    stated = np.array([pair.has_statement for pair in run.test])
    parts |= {"right line longer": longer > 0, "equally long": longer == 0, "right line shorter": longer < 0}
    parts |= {"right line not longer": longer <= 0}
    parts |= {"with a statement": stated, "without one": ~stated}
    rows = [
        [part, str(int(keep.sum())), *(percent(mean(systems[name], "hit_P", keep)) for name in shown)]
        for part, keep in parts.items() if keep.any()
    ]  # fmt: skip
    report.table(["", "pairs", *shown], rows, caption="Pairs ranked right (%), by kind of edit, length and statement")

    rows = []
    for arm, rate in rates.items():
        tried = [
            float(np.mean([run.result(arm, each, seed)["validation"]["auroc_prefix"] for seed in run.tuning]))
            for each in run.plan.rates
        ]
        rows.append([arm, *map(percent, tried), f"{rate:g}"])
    report.table(
        ["", *(f"{rate:g}" for rate in run.plan.rates), "chosen"], rows,
        caption="Tuning: AUROC within prefix on validation tasks, by learning rate (%)",
    )  # fmt: skip
    if seeds:
        with report.figure(
            "code-prm", caption="Held-out pairs, a dot per seed", panels=2, size=(4.4, 3.0),
            alt="Pairs ranked right and FPR at TPR 90 of every arm, a dot per seed",
        ) as panels:  # fmt: skip
            dots = {name: [100 * float(each.hit_P.mean()) for each in of] for name, of in seeds.items()}
            draw_dots(panels[0], dots)
            draw_dots(panels[1], {name: [100 * value for value in fprs[name]] for name in seeds})
            finish(panels[0], "pairs ranked right (%)", percent="")
            finish(panels[1], "FPR at TPR 90 (%)", percent="")
    report_use(run, report)
    say(str(report.write(run.out / "report")))


NONE = "–"


def report_use(run: Experiment, report: Report) -> None:
    """Add the tables of re-ranking and search."""
    for name in ("humaneval", "livecodebench"):
        path = run.out / "results" / f"use {name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        clusters, table = np.array(found["clusters"]), found["rules"]
        ns, tests = table["public tests"]["ns"], np.array(table["public tests"]["values"][-1])
        likely = np.array(table[LIKELIHOOD]["values"][-1])
        rows = []
        for rule, curve in table.items():
            *few, most = [np.array(values) for values in curve["values"]]
            gaps = [signed_percent(compare_means(most, each, clusters)) for each in (tests, likely)]
            cells = [*(percent(float(v.mean())) for v in few), percent(mean_interval(most, clusters))]
            rows.append([rule, *cells, *(gaps if rule != ORACLE else ["", ""])])
        report.table(
            [f"selection ({found['arm']})", *(f"n = {n}" for n in ns), "− public tests", "− log-probability"], rows,
            caption=f"{name}: {len(tests)} problems, share solved (%)",
        )  # fmt: skip
        statuses = ", ".join(f"{count} {status}" for status, count in found["statuses"].items())
        report.text(f"How the runs of the programs on the public tests ended: {statuses}.")
    path = run.out / "results" / "use beam.json"
    other = run.out / "results" / "use humaneval.json"
    if path.exists() and other.exists():
        beam = json.loads(path.read_text())
        correct = np.array(beam["correct"])
        table = json.loads(other.read_text())["rules"]
        rows = [["guided beam search", percent(mean_interval(correct)), ""]]
        for rule in ("one sample (pass@1)", "PRM", "public tests"):
            same = np.array(table[rule]["values"][-1])[: len(correct)]
            rows.append([rule, percent(mean_interval(same)), signed_percent(compare_means(correct, same))])
        report.table(
            ["", "solved", "beam search minus it"], rows,
            caption=f"The first {len(correct)} problems of HumanEval, {run.plan.samples} candidates each (%)",
        )  # fmt: skip
        report.text(
            f"The search wrote {beam['policy_tokens']:,.0f} tokens per problem, and the PRM read "
            f"{beam['prm_tokens']:,.0f}; {beam['seconds']:,.0f} s in all."
        )


def tiny_inputs(given: argparse.Namespace) -> None:
    """A random model, and 20 short pairs of different tasks, instead of real ones."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    language_model = importlib.import_module("tiny").language_model

    folder = given.out / "model"
    if not (folder / "config.json").exists():
        language_model("qwen2", folder, max_position_embeddings=4096)
    found: dict[str, str] = {}
    for line in given.pairs.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if len(record["faulty"]) < 300 and len(found) < 20:
            found.setdefault(record["task"], line)
    given.pairs, given.backbone = given.out / "pairs.jsonl", folder
    write_text(given.pairs, "".join(line + "\n" for line in found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("PRISM_DATA", "."))
    parser.add_argument("stage", choices=["train", "likelihood", "use", "report"])
    parser.add_argument("--backbone", help="hub id or folder of the language model")
    parser.add_argument("--policy", help="what writes the samples, such as openai:URL; default: the backbone")
    parser.add_argument("--pairs", type=Path, default=data / "code_pairs" / "condefects_python.jsonl")
    parser.add_argument("--livecodebench", type=Path, default=data / "livecodebench" / "problems_120.jsonl")
    parser.add_argument("--humaneval", type=Path, default=os.environ.get("PRISM_HUMANEVAL"))
    parser.add_argument("--seeds", type=int, help="fewer seeds than planned")
    parser.add_argument("--tiny", action="store_true", help="check everything with a random model")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.tiny:
        tiny_inputs(given)
    if given.stage != "report" and not given.backbone:
        parser.error("--backbone is needed")
    run = Experiment(given)
    stages: dict[str, Callable[[], None]] = {"train": run.train, "likelihood": run.likelihood, "use": run.use}
    stages["report"] = partial(make_report, run)
    with quiet_transformers():
        stages[given.stage]()


if __name__ == "__main__":
    with shown_on(Timed()):
        main()
