"""`diagnose_pairs`: what a model could learn from pairs without reasoning, and how much independent data they are.

Each feature of a step is tried alone: how often does the right step of a pair have more (or less) of it? Pairs of the
same prefix, tree and problem repeat each other, so their effective numbers are those of Kish. Labels that differ by
prefix beyond chance have a random intercept, which says what loss may fit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prism_prm import __version__
from prism_prm.arrays import Floats, Ints
from prism_prm.data.pair_rules import PairSettings, tokens
from prism_prm.data.tables import iter_pairs, iter_trees
from prism_prm.evaluate.measure import measure_rankings
from prism_prm.file_types import read_json
from prism_prm.job import Job
from prism_prm.metrics import pairwise_accuracy
from prism_prm.report import Report, number, percent
from prism_prm.stats import Interval, cluster_draws, mean_interval, number_clusters
from prism_prm.tree import PAIR_KINDS, ROOT, StepPair, StepTree

FOLDER = "diagnosis"
"""The folder of the report, in that of the pairs."""
FEATURES = {
    "authorship": ("is by a person", "is by a model"),
    "length": ("is longer", "is shorter"),
    "position": ("comes later", "comes earlier"),
    "overlap": ("shares more with the step before", "shares less with the step before"),
    "unseen_numbers": ("has more new numbers", "has fewer new numbers"),
}
"""Feature of a step → what the right step does if its value is higher, and if it is lower."""
LABELS = "labels"
"""The name of the labeled steps themselves, without pairing."""
SAYS_WRITER = {"prm800k"}
"""Formats that say who wrote each step."""
SHORTCUT = 0.6
"""A feature that alone ranks more pairs right than this, with its whole interval, gets a warning."""
CROSSOVER = 1.5
"""The SD of the intercept from which pairs beat labels in docs/lab/demo.md: labels with an offset of one SD of quality
have 1.4 to 1.5 in log-odds."""
LARGEST_SD = 10.0
_CHI_SQUARE = 3.841458820694124
"""The 95 % quantile, one degree of freedom."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class _Features:
    """The features of steps after the prefixes of one tree."""

    def __init__(self, tree: StepTree) -> None:
        self.tree = tree
        self._depths = tree.depths()
        # Those of the problem are last, at the index ROOT.
        self._tokens = [*(tokens(step.text) for step in tree.nodes), tokens(tree.problem)]
        self._known = [*[frozenset[str]()] * len(tree.nodes), frozenset(_NUMBER.findall(tree.problem))]
        for node, step in enumerate(tree.nodes):
            self._known[node] = self._known[tree.parents[node]] | frozenset(_NUMBER.findall(step.text))

    def of(self, parent: int, text: str, words: frozenset[str], origin: str) -> tuple[float, ...]:
        """The values of FEATURES of a step after a prefix; the step before a first one is the problem."""
        before, known, numbers = self._tokens[parent], self._known[parent], _NUMBER.findall(text)
        either = len(words | before)
        return (
            float(origin == "human"),
            float(len(text)),
            float(0 if parent == ROOT else self._depths[parent] + 1),
            len(words & before) / either if either else 0.0,
            sum(each not in known for each in numbers) / len(numbers) if numbers else 0.0,
        )

    def of_node(self, node: int, parent: int) -> tuple[float, ...]:
        """The features of a node after a prefix: its own, or another."""
        step = self.tree.nodes[node]
        return self.of(parent, step.text, self._tokens[node], step.origin)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """How well one feature alone tells right from wrong."""

    feature: str
    direction: str
    """What the right step does more often: words of FEATURES, or "" if neither."""
    accuracy: Interval
    """The share of pairs that it ranks right in this direction, ties count half; of labels, the AUROC. Intervals are
    over problems; 0.5 is chance."""


@dataclass(frozen=True, slots=True)
class KindDiagnosis:
    """The pairs of one kind, or the labeled steps."""

    num: int
    """Pairs, or labeled steps."""
    effective: Mapping[str, tuple[int, float]]
    """prefixes, trees and problems → their number, and the effective number by Kish."""
    human: Mapping[str, int] | None
    """right and wrong → how many of these steps people wrote, in pairs as often as they occur; None if unknown."""
    only_human: int | None
    """Prefixes whose right steps are all by people; None if unknown."""
    shortcuts: tuple[Shortcut, ...]
    """In the order of FEATURES, without authorship if that is unknown."""


@dataclass(frozen=True, slots=True)
class Intercept:
    """A random intercept of labels: over prefixes, the log-odds of a right step are normal."""

    mean: float
    sd: float
    low: float
    high: float
    """The 95 % likelihood interval of the SD. It takes prefixes as independent, so it is too narrow."""
    num_prefixes: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose_pairs` found."""

    kinds: Mapping[str, KindDiagnosis]
    """By kind of pair, and LABELS."""
    intercept: Intercept | None
    """None if no prefix has two labeled steps, or all labels are equal."""
    warnings: tuple[str, ...]


def diagnose_pairs(folder: str | Path) -> Diagnosis:
    """Say what a model could learn from the pairs of a folder of `prism pairs` without reasoning; writes a report to
    `diagnosis/` in it."""
    folder = Path(folder)
    summary = read_json(folder / "summary.json")
    known = bool(summary["origins"].get("human")) or set(summary["records"]["formats"]) <= SAYS_WRITER
    trees = {tree.tree_id: _Features(tree) for tree in iter_trees(folder)}
    by_kind: dict[str, list[StepPair]] = defaultdict(list)
    for pair in iter_pairs(folder):
        by_kind[pair.kind].append(pair)
    kinds: dict[str, KindDiagnosis] = {}
    for kind in PAIR_KINDS:
        if by_kind[kind]:
            kinds[kind] = _diagnose_kind(by_kind[kind], trees, known)
    cuts = {name: summary["settings"][name] for name in ("positive_above", "negative_below")}
    labeled = _labeled(trees, PairSettings(**cuts))
    if labeled:
        kinds[LABELS] = _diagnose_labels(labeled, trees, known)
    counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for tree_id, node, right in labeled:
        if trees[tree_id].tree.nodes[node].origin == "model":
            cell = counts[tree_id, trees[tree_id].tree.parents[node]]
            cell[0] += right
            cell[1] += 1
    intercept = fit_intercept(np.array(list(counts.values()), np.int64).reshape(-1, 2))
    found = Diagnosis(kinds, intercept, tuple(_warnings(kinds, intercept, known)))
    with Job(folder / FOLDER):
        make_report(found, folder.name).write(folder / FOLDER)
    return found


def _labeled(trees: Mapping[int, _Features], settings: PairSettings) -> list[tuple[int, int, bool]]:
    """Tree, node and whether it is right, of each labeled step."""
    return [
        (tree_id, node, settings.is_positive(step.label))
        for tree_id, features in trees.items()
        for node, step in enumerate(features.tree.nodes)
        if settings.is_positive(step.label) or settings.is_negative(step.label)
    ]


def _diagnose_kind(pairs: Sequence[StepPair], trees: Mapping[int, _Features], known: bool) -> KindDiagnosis:
    right, wrong, prefixes = [], [], []
    humans: dict[tuple[int, int], set[bool]] = defaultdict(set)
    for pair in pairs:
        own, other = trees[pair.tree_id], trees[pair.rejected_tree]
        parent, step = own.tree.parents[pair.chosen], other.tree.nodes[pair.rejected]
        prefixes.append((pair.tree_id, parent))
        humans[prefixes[-1]].add(own.tree.nodes[pair.chosen].origin == "human")
        right.append(own.of_node(pair.chosen, parent))
        wrong.append(own.of(parent, step.text, tokens(step.text), step.origin))
    up, down = np.array(right), np.array(wrong)
    problems, _ = number_clusters(trees[tree_id].tree.problem for tree_id, _ in prefixes)
    values = [mean_interval(hits, problems) for hits in pairwise_accuracy(up, down).T]
    only_human = sum(each == {True} for each in humans.values())
    return _kind(values, up, down, prefixes, trees, only_human if known else None, known)


def _diagnose_labels(
    labeled: Sequence[tuple[int, int, bool]], trees: Mapping[int, _Features], known: bool
) -> KindDiagnosis:
    prefixes = [(tree, trees[tree].tree.parents[node]) for tree, node, _ in labeled]
    features = np.array(
        [trees[tree].of_node(node, parent) for (tree, node, _), (_, parent) in zip(labeled, prefixes, strict=True)]
    )
    right = np.array([label for _, _, label in labeled], bool)
    problems, num_problems = number_clusters(trees[tree].tree.problem for tree, _ in prefixes)
    draws, siblings = cluster_draws(num_problems), number_clusters(prefixes)[0]
    values = [
        measure_rankings(right, column, siblings, problems, draws, ("auroc",))["auroc"].interval()
        for column in features.T
    ]
    return _kind(values, features[right], features[~right], prefixes, trees, None, known)


def _kind(
    values: Sequence[Interval],
    right: Floats,
    wrong: Floats,
    prefixes: Sequence[tuple[int, int]],
    trees: Mapping[int, _Features],
    only_human: int | None,
    known: bool,
) -> KindDiagnosis:
    """Put together what was measured; each feature in its better direction."""
    shortcuts = []
    for (feature, (more, less)), value in zip(FEATURES.items(), values, strict=True):
        if feature != "authorship" or known:
            if value.value < 0.5:
                flipped = Interval(1 - value.value, 1 - value.high, 1 - value.low, value.num_clusters)
                shortcuts.append(Shortcut(feature, less, flipped))
            else:  # NaN means no data: all labels are equal
                shortcuts.append(Shortcut(feature, more if value.value > 0.5 else "", value))
    weights: dict[str, Counter[object]] = {name: Counter() for name in ("prefixes", "trees", "problems")}
    for prefix, count in Counter(prefixes).items():
        for name, key in (("prefixes", prefix), ("trees", prefix[0]), ("problems", trees[prefix[0]].tree.problem)):
            weights[name][key] += count
    effective = {name: (len(counts), kish(counts.values())) for name, counts in weights.items()}
    human = {"right": int(right[:, 0].sum()), "wrong": int(wrong[:, 0].sum())} if known else None
    return KindDiagnosis(len(prefixes), effective, human, only_human, tuple(shortcuts))


def kish(weights: Iterable[int]) -> float:
    """The effective number of clusters: (Σw)² / Σw². With equal weights it is their number."""
    values = np.array(list(weights), np.float64)
    return float(values.sum() ** 2 / (values**2).sum())


def fit_intercept(counts: Ints) -> Intercept | None:
    """Fit (prefixes, 2) counts of right and of labeled steps by maximum likelihood: binomial counts whose log-odds are
    normal over prefixes, integrated by Gauss-Hermite quadrature. The SD is at most LARGEST_SD."""
    from numpy.polynomial.hermite_e import hermegauss
    from scipy.optimize import brentq, minimize_scalar
    from scipy.special import log_expit, logsumexp

    right_of_all, labeled_of_all = counts.sum(axis=0).tolist()
    if not (counts[:, 1] >= 2).any() or not 0 < right_of_all < labeled_of_all:
        return None
    cells, how_often = np.unique(counts, axis=0, return_counts=True)
    right, wrong = cells[:, :1], cells[:, 1:] - cells[:, :1]
    nodes, weights = hermegauss(80)
    log_weights = np.log(weights / weights.sum())

    def deviance(mean: float, sd: float) -> float:
        odds = mean + sd * nodes
        inner = right * log_expit(odds) + wrong * log_expit(-odds) + log_weights
        return -2 * float((how_often * logsumexp(inner, axis=1)).sum())

    def profile(sd: float) -> tuple[float, float]:
        """The lowest deviance at this SD, and its mean."""
        found = minimize_scalar(lambda mean: deviance(mean, sd), bounds=(-30, 30), method="bounded")
        return float(found.fun), float(found.x)

    sd = float(minimize_scalar(lambda sd: profile(sd)[0], bounds=(0, LARGEST_SD), method="bounded").x)
    if profile(0.0)[0] <= profile(sd)[0]:
        sd = 0.0
    least, mean = profile(sd)

    def excess(other: float) -> float:
        return profile(other)[0] - least - _CHI_SQUARE

    low = float(brentq(excess, 0.0, sd)) if excess(0.0) > 0 else 0.0
    high = float(brentq(excess, sd, LARGEST_SD)) if excess(LARGEST_SD) > 0 else LARGEST_SD
    return Intercept(mean, sd, low, high, len(counts), labeled_of_all)


def _warnings(kinds: Mapping[str, KindDiagnosis], intercept: Intercept | None, known: bool) -> Iterable[str]:
    if not known:
        yield "Who wrote the steps is unknown, because the data does not say: people and models may write differently."
    for kind, found in kinds.items():
        if kind == LABELS:
            continue
        for one in found.shortcuts:
            if one.accuracy.low > SHORTCUT:
                remedy = " --origin model leaves out steps by people." if one.feature == "authorship" else ""
                yield (
                    f"Warning: {kind} pairs: that the right step {one.direction} ranks {percent(one.accuracy)} % of "
                    f"them right, without reasoning.{remedy}"
                )
        total, effective = found.effective["problems"]
        if effective < total / 2:
            remedy = "--lookahead N" if kind == "lookahead" else "--set max_per_position=N"
            yield (
                f"Warning: {found.num:,} {kind} pairs of {total:,} problems weigh as much as {effective:,.0f} problems "
                f"with equally many. {remedy} evens them out."
            )
    if intercept is not None:
        yield advice(intercept)


def advice(intercept: Intercept) -> str:
    """Which loss fits labels with this random intercept."""
    size = f"The log-odds of a right step differ by prefix with SD {intercept.sd:.2f}"
    if intercept.sd < CROSSOVER:
        return (
            f"{size}, less than the {CROSSOVER:g} from which pairs win in our experiment: cross-entropy on labels "
            "fits, and pairs promise nothing."
        )
    return (
        f"{size}, more than the {CROSSOVER:g} from which pairs win in our experiment, where annotators' thresholds "
        "cause it. If the prefixes' difficulty does, they need not win. Compare cross-entropy on pairs, which gains "
        "almost as much as a contrastive loss, with cross-entropy on labels, by AUROC within prefix."
    )


def table_of(found: Diagnosis) -> tuple[list[str], list[list[str]]]:
    """The table for people: headers and rows."""
    kinds, rows = list(found.kinds.values()), []
    for feature, (more, _) in FEATURES.items():
        cells = [feature.replace("_", " ")]
        for kind in kinds:
            own = next((one for one in kind.shortcuts if one.feature == feature), None)
            if own is None:
                cells.append("unknown")
            else:
                cells.append(percent(own.accuracy) + {"": "", more: " more"}.get(own.direction, " less"))
        rows.append(cells)
    for name in ("prefixes", "trees", "problems"):
        pairs = [kind.effective[name] for kind in kinds]
        rows.append([f"effective {name}", *(f"{effective:,.0f} of {total:,}" for total, effective in pairs)])
    for side in ("right", "wrong"):
        cells = ["unknown" if kind.human is None else number(kind.human[side]) for kind in kinds]
        rows.append([f"{side} steps by people", *cells])
    return ["right steps have …", *(f"{name} ({kind.num:,})" for name, kind in found.kinds.items())], rows


def make_report(found: Diagnosis, name: str) -> Report:
    """Build the report."""
    metrics = {"prism_prm": __version__, **asdict(found)}
    report = Report(f"What the pairs of {name} teach without reasoning", metrics=metrics)
    pairs = {kind: own for kind, own in found.kinds.items() if kind != LABELS}
    ranked = [(one.accuracy.value, kind, one.feature) for kind, own in pairs.items() for one in own.shortcuts]
    report.finding = "There are no pairs."
    if ranked:
        value, kind, feature = max(ranked)
        report.finding = (
            f"The strongest shortcut is {feature.replace('_', ' ')}: it alone ranks {percent(value)} % of the {kind} "
            "pairs right."
        )
    headers, rows = table_of(found)
    caption = "Pairs ranked right by one feature alone (%; labels: AUROC), and how much independent data there is"
    report.table(headers, rows, caption=caption)
    report.notes(found.warnings)
    if found.intercept is None:
        report.text("No prefix has two labeled steps by models, or all labels are equal: no random intercept.")
    else:
        own = found.intercept
        spread = f"{own.sd:.2f} [{own.low:.2f}, {own.high:.2f}]"
        cells = [number(own.num_prefixes), number(own.num_steps), f"{own.mean:.2f}".replace("-", "−"), spread]
        headers = ["prefixes", "labeled steps", "mean log-odds", "SD over prefixes"]
        report.table(headers, [cells], caption="Random intercept of the labels of steps by models")
    report.text(f"""
## How to read this

**Features.** One that ranks more than half of the pairs right can be learned instead of reasoning. Ties count half, and
the better direction is shown. *Overlap* is the share of words, numbers and signs in common with the step before (for a
first step, the problem). *Unseen numbers* is the share of a step's numbers that neither the problem nor an earlier step
has. *Position* is the same for both steps of a pair. The column *{LABELS}* has the AUROC of each feature over all
labeled steps, which training on labels sees. Intervals are 95 % bootstrap intervals over problems.

**Effective numbers** are Kish's (Σw)² / Σw², where w is the number of pairs of each prefix, tree or problem.

**The random intercept** is fitted to the numbers of right steps by prefix. Its SD confounds the thresholds of
annotators with the difficulty of prefixes, which a PRM should learn, so it bounds from above what pairs can remove.
""")
    return report
