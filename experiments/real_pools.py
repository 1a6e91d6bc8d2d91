"""Real pools with real PRM scores: what selects best, how many samples it needs, and where the PRMs are wrong.

250 MATH-500 and 250 GSM8K problems × 32 solutions with the step scores of published PRMs, and 100 MATH-500 problems ×
40 solutions of several sources without scores. Writes the report, a page of solutions that fooled the PRM, and the
figure of docs/lab/real-pools.md. The analysis was registered in experiments/LOG.md. Grades are reused when it runs
again.

Run: python experiments/real_pools.py --data $PRISM_DATA --out runs/real-pools --figure docs/figures/real-pools.svg
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from prism_prm.aggregate import AGGREGATORS, DEFAULT_AGGREGATOR, GIVEN, Choice, solution_score
from prism_prm.arrays import Floats
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.data.pools import Pool, PoolProblem, write_pool
from prism_prm.evaluate.score_files import read_scored_problems, table_of_trees
from prism_prm.files import atomic_file, write_text
from prism_prm.lab.theory.scored_pool import JudgedPool, predict
from prism_prm.report import STYLES, Report, draw_curve, finish, p_value, percent, signed_percent
from prism_prm.report.figures import drawing
from prism_prm.scorer import TreeScores
from prism_prm.search.curves import NUM_DRAWS, Curve, best_of, compute_curves, draw_orders, vote_accuracy
from prism_prm.search.grade_pool import GradedPool
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool
from prism_prm.search.rerank_report import RerankResults
from prism_prm.serve.page_html import view_results
from prism_prm.stats import compare_means, mean_interval

N = 32
CONFIDENT = 0.9
"""Every step of a confident error is above this."""
CLIP = 7.0
"""Of log-odds in the second ensemble: scores are rounded, and a score of 1.0 has infinite log-odds."""
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
ENSEMBLE, OF_LOG_ODDS = "ensemble", "ensemble of log-odds"
MATH, GSM8K = "MATH-500", "GSM8K"
GSM8K_PRMS = {
    "Qwen": "qwen2.5-math-prm-7b",
    "Skywork": "skywork-o1-prm-7b",
    "RLHFlow": "rlhflow-llama3.1-8b-deepseek",
    "Math-Shepherd": "math-shepherd-mistral-7b",
}


def main() -> None:
    """Re-rank the pools, compare all ways to select, and write tables, page and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of best_of_n/ and best_of_n_prm/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path, help="also write the figure of the docs here")
    given = parser.parse_args()
    scored, out = given.data / "best_of_n_prm", given.out
    settings = RerankSettings(aggregators=(DEFAULT_AGGREGATOR, *AGGREGATORS))
    math = rerank_pool(
        scored / "math500_pool_250x32.jsonl", out / "math500",
        scores={"Qwen": scored / "math500_scores_qwen2.5-math-prm-7b.jsonl"}, settings=settings,
    )  # fmt: skip
    files = {name: scored / f"gsm8k_scores_{file}.jsonl" for name, file in GSM8K_PRMS.items()}
    files |= write_ensembles(files, out)
    gsm8k = rerank_pool(scored / "gsm8k_pool_250x32.jsonl", out / "gsm8k", scores=files, settings=settings)
    others = given.data / "best_of_n" / "math500_pool_100.jsonl"
    mixed = rerank_pool(others, out / "math500-mixed", settings=replace(settings, aggregators=("min",)))
    pools = {MATH: math, GSM8K: gsm8k}

    report = Report("Real pools, real scores", subtitle="Made by experiments/real_pools.py; registered in LOG.md.")
    add_contrasts(report, math, gsm8k)
    for name, results in pools.items():
        add_selection(report, name, results)
    add_aggregators(report, pools)
    add_samples(report, pools)
    add_agreement(report, pools)
    add_over_credit(report, pools)
    add_theory(report, pools)
    add_grading(report, pools)
    add_sources(report, mixed.graded, others)
    add_page(report, math, out)
    report.write(out)
    say(f"Report: {out / 'report.html'}")
    if given.figure:
        draw(pools, given.figure)


def write_ensembles(files: Mapping[str, Path], out: Path) -> dict[str, Path]:
    """The mean score of every step over the PRMs, of probabilities and of log-odds, as files of scores."""
    of_prms = [read_scored_problems(path) for path in files.values()]
    lines: dict[str, list[str]] = {ENSEMBLE: [], OF_LOG_ODDS: []}
    for name in of_prms[0]:
        solutions = zip(*(scores[name][1] for scores in of_prms), strict=True)
        steps = [np.array(scores) for scores in solutions]
        mean_log_odds = [logit(scores, CLIP).mean(axis=0) for scores in steps]
        for ensemble, means in {
            ENSEMBLE: [scores.mean(axis=0) for scores in steps],
            OF_LOG_ODDS: [1 / (1 + np.exp(-values)) for values in mean_log_odds],
        }.items():
            lines[ensemble].append(json.dumps({"name": name, "scores": [values.tolist() for values in means]}))
    found = {ensemble: out / f"{ensemble.replace(' ', '-')}.jsonl" for ensemble in lines}
    for ensemble, path in found.items():
        write_text(path, "\n".join(lines[ensemble]) + "\n")
    return found


def logit(probabilities: Floats, limit: float) -> Floats:
    """Log-odds, clipped to ± the limit."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(probabilities) - np.log1p(-probabilities), -limit, limit))


# --- ways to select without a PRM


def controls(graded: GradedPool, ns: Sequence[int]) -> dict[str, Floats]:
    """Fewest steps and shortest text: for each n, the expected accuracy on each problem; ties are shared."""
    found: dict[str, list[Floats]] = {"fewest steps": [], "shortest text": []}
    for i in graded.measured:
        solutions = graded.pool.problems[i].solutions
        for name, sizes in {
            "fewest steps": [len(solution.steps) for solution in solutions],
            "shortest text": [len(solution.text) for solution in solutions],
        }.items():
            found[name].append(best_of(graded.correct(i), -np.array(sizes, dtype=np.float64), ns))
    return {name: np.stack(columns, axis=1) for name, columns in found.items()}


def by_problem(curve: Curve, n: int = N) -> Floats:
    """The expected accuracy on each problem."""
    return np.asarray(curve.values[curve.ns.index(n)])


def scores_of(results: RerankResults, prm: str, aggregator: str = DEFAULT_AGGREGATOR) -> list[Floats]:
    """The score of each solution, problem by problem."""
    values = [0.0 if steps is None else solution_score(steps, aggregator) for steps in results.scores[prm]]
    return split(results.graded, np.array(values))


def split(graded: GradedPool, values: Floats) -> list[Floats]:
    return np.split(values, np.cumsum([len(grades) for grades in graded.grades])[:-1])


# --- tables


def add_contrasts(report: Report, math: RerankResults, gsm8k: RerankResults) -> None:
    """The six registered contrasts, with p-values corrected by Holm."""

    def best(results: RerankResults, method: str, prm: str = "Qwen") -> Floats:
        return by_problem(results.curve(method, prm, DEFAULT_AGGREGATOR))

    def vote(results: RerankResults) -> Floats:
        return by_problem(results.curve("majority"))

    fewest = controls(math.graded, [N])["fewest steps"][0]
    found = {
        f"{MATH}: Best-of-32 − majority": compare_means(best(math, "best-of-n"), vote(math)),
        f"{MATH}: weighted vote − majority": compare_means(best(math, "weighted"), vote(math)),
        f"{MATH}: Best-of-32 − fewest steps": compare_means(best(math, "best-of-n"), fewest),
        f"{GSM8K}: Best-of-32 − majority": compare_means(best(gsm8k, "best-of-n"), vote(gsm8k)),
        f"{GSM8K}: weighted vote − majority": compare_means(best(gsm8k, "weighted"), vote(gsm8k)),
        f"{GSM8K}: ensemble − Qwen, Best-of-32": compare_means(
            best(gsm8k, "best-of-n", ENSEMBLE), best(gsm8k, "best-of-n")
        ),
    }
    corrected = holm({name: one.p for name, one in found.items()})
    rows = [[name, signed_percent(one), p_value(one.p), p_value(corrected[name])] for name, one in found.items()]
    report.table(["contrast", "points", "p", "p, corrected"], rows, caption="Registered contrasts, paired by problem")
    report.metrics["contrasts"] = {name: {"gain": one, "corrected": corrected[name]} for name, one in found.items()}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    raised = [min(1.0, p_values[name] * (len(ordered) - place)) for place, name in enumerate(ordered)]
    return dict(zip(ordered, itertools.accumulate(raised, max), strict=True))


def add_selection(report: Report, name: str, results: RerankResults) -> None:
    """Every way to select from n, and its difference to the majority vote at the largest n."""
    vote = by_problem(results.curve("majority"))
    rows = []

    def add(title: str, values: Floats) -> None:
        shown = [percent(float(of_n.mean())) for of_n in values[:-1]]
        gain = compare_means(values[-1], vote)
        rows.append([title, *shown, percent(mean_interval(values[-1])), signed_percent(gain)])

    add("one solution", results.curve("mean").values)
    for control, values in controls(results.graded, results.ns).items():
        add(control, values)
    add("majority vote", results.curve("majority").values)
    for prm, (method, title) in itertools.product(
        results.scores, (("best-of-n", "Best-of-n"), ("weighted", "weighted vote"))
    ):
        add(f"{title}, {prm}", results.curve(method, prm, DEFAULT_AGGREGATOR).values)
    add("oracle", results.curve("oracle").values)
    headers = ["selection", *(f"n = {n}" for n in results.ns), "− majority"]
    report.table(headers, rows, caption=f"{name}: expected accuracy (%), scores aggregated by min")


def add_aggregators(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """Each aggregator against `min`."""
    rows = []
    for name, results in pools.items():
        for prm, aggregator in itertools.product(results.scores, results.aggregators):
            row = [f"{name}, {prm}", aggregator]
            for method in ("best-of-n", "weighted"):
                own = by_problem(results.curve(method, prm, aggregator))
                least = by_problem(results.curve(method, prm, DEFAULT_AGGREGATOR))
                row += [percent(mean_interval(own)), signed_percent(compare_means(own, least))]
            rows.append(row)
    headers = ["PRM", "aggregator", "Best-of-32", "− min", "weighted vote", "− min"]
    report.table(headers, rows, caption="Aggregators at n = 32 (%)")


def add_samples(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """What all 32 solutions add to fewer."""
    rows = []
    for name, results in pools.items():
        curves = {"majority vote": results.curve("majority")}
        for prm in results.scores:
            curves[f"Best-of-n, {prm}"] = results.curve("best-of-n", prm, DEFAULT_AGGREGATOR)
            curves[f"weighted vote, {prm}"] = results.curve("weighted", prm, DEFAULT_AGGREGATOR)
        for title, curve in curves.items():
            gains = [compare_means(by_problem(curve), by_problem(curve, n)) for n in results.ns[:-1]]
            enough = next(n for n in results.ns if abs(by_problem(curve).mean() - by_problem(curve, n).mean()) <= 0.01)
            rows.append([f"{name}: {title}", *map(signed_percent, gains), str(enough)])
    headers = ["selection", *(f"32 − {n}" for n in results.ns[:-1]), "within one point from"]
    report.table(headers, rows, caption="Accuracy at n = 32 minus that at n (points)")


def add_agreement(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """Vote and PRM by the share of solutions that give the most frequent answer."""
    rows = []
    for name, results in pools.items():
        graded = results.graded
        shares = np.array([_top_share(graded.groups(i)) for i in graded.measured])
        bins = {"at most 1/3": shares <= 1 / 3, "up to 2/3": (shares > 1 / 3) & (shares <= 2 / 3),
                "more than 2/3": shares > 2 / 3}  # fmt: skip
        curves = [results.curve("majority"), results.curve("best-of-n", "Qwen", DEFAULT_AGGREGATOR),
                  results.curve("weighted", "Qwen", DEFAULT_AGGREGATOR), results.curve("oracle")]  # fmt: skip
        for title, within in bins.items():
            vote, best, weighted, oracle = (by_problem(curve)[within] for curve in curves)
            rows.append(
                [f"{name}, {title}", str(within.sum()), percent(float(vote.mean())), percent(float(best.mean())),
                 percent(float(weighted.mean())), percent(float(oracle.mean())),
                 signed_percent(compare_means(best, vote)), signed_percent(compare_means(weighted, vote))]
            )  # fmt: skip
    headers = ["votes for the most frequent answer", "problems", "majority", "Best-of-32", "weighted vote", "oracle",
               "Best-of-32 − majority", "weighted − majority"]  # fmt: skip
    report.table(headers, rows, caption="By agreement of the 32 solutions (%), Qwen's PRM")


def _top_share(groups: np.ndarray) -> float:
    return max(Counter(groups[groups >= 0].tolist()).values(), default=0) / len(groups)


def add_over_credit(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """FPR and FNR of whole solutions, and selected solutions that are wrong with every step above 0.9."""
    rates, errors = [], []
    for name, results in pools.items():
        graded = results.graded
        correct = [graded.correct(i) for i in graded.measured]
        right = np.concatenate(correct)
        solvable = np.array([own.any() for own in correct])
        for prm in results.scores:
            scores = scores_of(results, prm)
            flat = np.concatenate(scores)
            for title, wrong_or_right, accepted in (("FPR", ~right, True), ("FNR", right, False)):
                rates.append([f"{name}, {prm}, {title}", *(
                    percent(float(((flat[wrong_or_right] > t) == accepted).mean())) for t in THRESHOLDS
                )])  # fmt: skip
            wrong = expected([~own for own in correct], scores)
            confident = [~own & (score > CONFIDENT) for own, score in zip(correct, scores, strict=True)]
            sure = expected(confident, scores)
            errors.append(
                [f"{name}, {prm}", percent(mean_interval(wrong)), percent(mean_interval(sure)),
                 percent(float(sure[solvable].mean())), percent(float(sure.sum() / wrong.sum()))]
            )  # fmt: skip
            report.metrics.setdefault("confident_errors", {})[f"{name}, {prm}"] = mean_interval(sure)
    report.table(["", *(f"> {t:g}" for t in THRESHOLDS)], rates, caption="Whole solutions accepted by min > t (%)")
    headers = ["PRM", "selection wrong", "and every step above 0.9", "of problems with a right solution",
               "of wrong selections"]  # fmt: skip
    report.table(headers, errors, caption="Best-of-32 by min: wrong selections (%)")


def add_theory(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """What p, α and β of whole solutions predict, as `prism theory --pool --scores` does, and what happens."""
    rows = []
    for name, results in pools.items():
        graded = results.graded
        oracle = by_problem(results.curve("oracle")).mean()
        for prm, threshold in itertools.product(results.scores, (0.5, 0.9)):
            judged = JudgedPool(tuple(graded.correct(i) for i in graded.measured), tuple(scores_of(results, prm)))
            found = predict(
                judged, results.ns, aggregator=Choice(DEFAULT_AGGREGATOR, GIVEN), threshold=Choice(threshold, GIVEN)
            )
            rows.append(
                [f"{name}, {prm}", f"{threshold:g}", percent(found.p), percent(found.alpha), percent(found.beta),
                 percent(found.predicted[-1]), percent(found.measured[-1]), percent(found.ceiling),
                 percent(float(oracle)), percent(float(oracle - found.ceiling)), percent(found.measured_by_score[-1])]
            )  # fmt: skip
    headers = ["PRM", "threshold", "p", "α", "β", "predicted", "by verdict", "ceiling", "oracle", "oracle − ceiling",
               "by score"]  # fmt: skip
    report.table(headers, rows, caption="Best-of-32 (%) predicted from rates of whole solutions, and measured")


def add_grading(report: Report, pools: Mapping[str, RerankResults]) -> None:
    """Not registered: how much depends on answers that were guessed from the last number of a solution."""
    rows: list[list[str]] = []
    for name, results in pools.items():
        graded = results.graded
        gradings = [graded.correct(i) for i in graded.measured], lenient(graded)

        def add(title: str, values: Sequence[Floats], name: str = name) -> None:
            rows.append([f"{name}: {title}", *(percent(float(of_grading.mean())) for of_grading in values)])

        methods = [grade.method == "last number" for grades in graded.grades for grade in grades]
        add("guessed answers, of all solutions", [np.array(methods, dtype=np.float64)] * 2)
        add("one solution", [np.concatenate(right) for right in gradings])
        votes = [by_problem(results.curve("majority")), lenient_votes(graded, gradings[1])]
        add("majority vote", votes)
        for prm, aggregator in itertools.product(results.scores, results.aggregators):
            scores = scores_of(results, prm, aggregator)
            best = [expected(right, scores) for right in gradings]
            add(f"Best-of-32, {prm}, {aggregator}", best)
            if prm == "Qwen":
                gains = [signed_percent(compare_means(own, vote)) for own, vote in zip(best, votes, strict=True)]
                rows.append([f"{name}: Best-of-32, {prm}, {aggregator} − majority", *gains])
            if aggregator == DEFAULT_AGGREGATOR:
                flat = np.concatenate(scores)
                for threshold in (0.5, CONFIDENT):
                    add(
                        f"FPR at {threshold:g}, {prm}", [flat[~np.concatenate(right)] > threshold for right in gradings]
                    )
                sure = [score > CONFIDENT for score in scores]
                wrong = [[~own & high for own, high in zip(right, sure, strict=True)] for right in gradings]
                add(f"confident errors, {prm}", [expected(values, scores) for values in wrong])
        add("oracle", [np.array([own.any() for own in right]) for right in gradings])
    headers = ["", "by our judge", "or the reference is in the last line"]
    report.table(headers, rows, caption="Guessed answers: two gradings (%); the second is an upper bound")


def expected(values: Sequence[np.ndarray], scores: Sequence[Floats]) -> Floats:
    """The expected value of the best-scored of all solutions, problem by problem."""
    return np.array([best_of(own, score, [len(score)])[0] for own, score in zip(values, scores, strict=True)])


def lenient_votes(graded: GradedPool, right: Sequence[np.ndarray]) -> Floats:
    """The majority vote of all solutions of each problem, in which all right ones vote for one answer."""
    found = []
    for i, own in zip(graded.measured, right, strict=True):
        groups = graded.groups(i)
        groups = np.where(own, groups.max() + 1, groups)
        orders = draw_orders(len(own), NUM_DRAWS, [0, i])
        found.append(vote_accuracy(groups, own, np.ones(len(own)), [len(own)], orders)[0])
    return np.array(found)


def lenient(graded: GradedPool) -> list[np.ndarray]:
    """Right solutions of each problem if a guessed answer is also right when the last line has the reference."""
    found = []
    for i in graded.measured:
        entry = graded.pool.problems[i]
        right = graded.correct(i)
        for k, (solution, grade) in enumerate(zip(entry.solutions, graded.grades[i], strict=True)):
            if grade.method == "last number":
                right[k] |= _mentions(solution.text.strip().splitlines()[-1], entry.problem.answer or "")
        found.append(right)
    return found


def _mentions(line: str, reference: str) -> bool:
    """Whether a line has the reference, as a number or literally."""
    numbers = {float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", line)}
    plain = re.sub(r"\\text\{(.*?)\}|[$\s]", r"\1", reference)
    try:
        return float(plain.replace(",", "")) in numbers
    except ValueError:
        return plain in re.sub(r"[$\s]", "", line)


def add_sources(report: Report, graded: GradedPool, file: Path) -> None:
    """Every selector that needs no PRM, by the family of models that wrote the solutions."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    families = {"Qwen": "qwen", "Llama": "llama", "not named": ""}

    def family_of(source: str) -> str:
        return next(name for name, word in families.items() if word in source.lower())

    rows = []
    for family in families:
        kept = [[family_of(sample["source"]) == family for sample in record["samples"]] for record in records]
        entries, grades = [], []
        for entry, own, keep in zip(graded.pool.problems, graded.grades, kept, strict=True):
            entries.append(replace(entry, solutions=tuple(itertools.compress(entry.solutions, keep))))
            grades.append(tuple(itertools.compress(own, keep)))
        part = GradedPool(Pool(tuple(entries)), tuple(grades))
        most = len(grades[0])
        ns = sorted({8, most})
        curves = {curve.method: curve.values for curve in compute_curves(part, {}, aggregators=(), ns=ns)}
        selectors = {"one solution": curves["mean"], **controls(part, ns), "majority vote": curves["majority"],
                     "oracle": curves["oracle"]}  # fmt: skip
        for title, values in selectors.items():
            gain = compare_means(values[0], curves["mean"][0])
            at_most = percent(float(values[-1].mean())) + f" (n = {most})"
            rows.append([family, title, percent(mean_interval(values[0])), signed_percent(gain), at_most])
    headers = ["source", "selection", "n = 8", "− one solution", "all solutions"]
    report.table(headers, rows, caption="100 MATH-500 problems by source family (%)")


def add_page(report: Report, results: RerankResults, out: Path, count: int = 10) -> None:
    """A page with selected solutions that are wrong with every step above 0.9: stated answers, highest scores first."""
    graded, scores = results.graded, results.scores["Qwen"]
    starts = np.cumsum([0, *(len(grades) for grades in graded.grades)])
    fooled: list[tuple[bool, float, PoolProblem, Floats]] = []
    for one in results.selections:
        if one.rule != "best-of-n" or one.correct is not False or one.solution is None or one.score is None:
            continue
        steps = scores[starts[one.problem_id] + one.solution]
        if steps is not None and one.score > CONFIDENT:
            entry = graded.pool.problems[one.problem_id]
            guessed = graded.grades[one.problem_id][one.solution].method == "last number"
            name = f"{one.name}: answer {one.answer}{' (guessed)' * guessed}, reference {entry.problem.answer}"
            shown = PoolProblem(replace(entry.problem, name=name), (entry.solutions[one.solution],))
            fooled.append((guessed, -one.score, shown, steps))
    fooled.sort(key=lambda one: one[:2])
    entries = [entry for *_, entry, _ in fooled[:count]]
    write_pool(out / "fooled.jsonl", entries)
    trees = Pool(tuple(entries)).trees()
    found = [TreeScores(("correct",), logit(steps, 14)[:, None]) for *_, steps in fooled[:count]]
    with atomic_file(out / "fooled.parquet") as partial:
        pq.write_table(table_of_trees(trees, found, ("correct",), "Qwen2.5-Math-PRM-7B"), partial)
    view_results(f"Qwen={out / 'fooled.parquet'}", out / "fooled.html", data=str(out / "fooled.jsonl"))
    report.text(
        f"{len(fooled)} of {len(graded.measured)} selected solutions are wrong with every step above {CONFIDENT:g}, "
        f"{sum(guessed for guessed, *_ in fooled)} of them by a guessed answer; fooled.html shows {len(entries)}."
    )


def draw(pools: Mapping[str, RerankResults], path: Path) -> None:
    """Accuracy against n: on the left how to select with one PRM, on the right which PRM selects."""
    math, gsm8k = pools[MATH], pools[GSM8K]
    alt = (
        "Accuracy against the number of solutions on MATH-500 (oracle, Best-of-n, weighted vote, majority vote, fewest "
        "steps, one solution) and on GSM8K (oracle, Best-of-n with five PRMs, majority vote)"
    )
    with drawing("real-pools", alt, (9.0, 4.2), 1) as picture:
        figure = picture.axes[0].figure
        picture.axes[0].remove()
        left, right = figure.subplots(1, 2)
        gray = STYLES[6]
        for title, curve, style in (
            ("oracle", math.curve("oracle"), gray),
            ("Best-of-n", math.curve("best-of-n", "Qwen", DEFAULT_AGGREGATOR), STYLES[0]),
            ("weighted vote", math.curve("weighted", "Qwen", DEFAULT_AGGREGATOR), STYLES[2]),
            ("majority vote", math.curve("majority"), STYLES[1]),
            ("one solution", math.curve("mean"), STYLES[5]),
        ):
            draw_curve(left, math.ns, curve.points, title, style, band=title in ("Best-of-n", "majority vote"))
        fewest = controls(math.graded, math.ns)["fewest steps"]
        draw_curve(left, math.ns, fewest.mean(axis=1).tolist(), "fewest steps", STYLES[3])
        finish(left, "solutions, n", "accuracy (%)", title=f"{MATH}, Qwen's PRM", ns=math.ns, names_at_ends=True)
        draw_curve(right, gsm8k.ns, gsm8k.curve("oracle").points, "oracle", gray, band=False)
        draw_curve(right, gsm8k.ns, gsm8k.curve("majority").points, "majority vote", STYLES[1], band=False)
        own = (STYLES[0], STYLES[2], STYLES[3], STYLES[4], STYLES[5])
        for prm, style in zip([*GSM8K_PRMS, ENSEMBLE], own, strict=True):
            curve = gsm8k.curve("best-of-n", prm, DEFAULT_AGGREGATOR)
            draw_curve(right, gsm8k.ns, curve.points, prm, style, band=False)
        finish(right, "solutions, n", "", title=f"{GSM8K}, Best-of-n by PRM", ns=gsm8k.ns, names_at_ends=True)
    write_text(path, picture.svgs[0])


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()
