"""The documents that the page shows, built from results on disk when they are opened.

A place is an evaluation, a table of scores, a search, a policy in training, or re-ranked programs. A search has an
overview of its problems, and a tree of steps for each problem. Programs have the outcome of every test, but not the
content of hidden tests: no result on disk contains it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm import __version__
from prism_prm.aggregate import choose_aggregator, choose_threshold, is_scored, solution_score
from prism_prm.config import read_toml
from prism_prm.data.inputs import as_places
from prism_prm.data.pools import read_pool
from prism_prm.errors import DataError, PrismError
from prism_prm.evaluate.benchmarks import REDUNDANCY_THRESHOLD, Item, find_benchmark, read_benchmark
from prism_prm.evaluate.measure import Steps, read_steps
from prism_prm.evaluate.report import steps_file
from prism_prm.evaluate.score_files import (
    TreesToScore,
    card_of_scores,
    inputs_of_scores,
    judgment,
    read_scores,
    scores_of_trees,
)
from prism_prm.file_types import read_json, reading_parquet
from prism_prm.files import JsonLines
from prism_prm.paths import nearest, own_name, split_name
from prism_prm.report import plain_json
from prism_prm.rl.alarm import (
    GREEDY,
    MEASURED,
    POINTS,
    PROXY,
    SAMPLES,
    VOTE,
    first_alarm,
    gold_of,
    read_points,
    read_samples,
)
from prism_prm.search.rounds import FOLDER, RecordedSearch, made_with, outline, read_rounds
from prism_prm.tree import unique_names

T = TypeVar("T")

FEW, MANY = 4, 256
"""How many files are cached: complete files, and the few facts of each that every listing needs."""

_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""Escapes the characters that could end a block of JSON in HTML."""
RIGHT, NOT_REDUNDANT = "right", "not redundant"
"""What a score is the probability of; PRMBench's redundancy classes are judged by the latter."""
HEAD = 240
"""Characters of a problem in the overview."""
GRADES = ("problem_id", "answer", "correct", "status")
OF_PROGRAMS = ("name", "solution", "public_tests", "hidden_tests")
"""Columns of a table of solutions; tables of earlier versions lack those of programs."""
AGAIN = "remove it, and run the command again"

Rows = dict[int, list[dict[str, Any]]]
"""The index of a problem → the rows of its solutions."""
About = Callable[[int], tuple[str, Mapping[int, Sequence[str]]]]
"""The index of a problem → its text, and the rules that select each of its solutions."""


@dataclass(frozen=True, slots=True)
class Place:
    """Results on disk, and the name they are shown under."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class ShownResults:
    """The places that are shown together, and the source of their texts."""

    places: tuple[Place, ...]
    data: tuple[str, ...] = ()
    """Files of the benchmark, or the solutions that were scored; by default the files that the results name."""
    split: str | None = None
    """For labeled data and pairs: the split that was measured."""

    @classmethod
    def named(
        cls,
        given: str | Path | Sequence[str | Path],
        data: str | Path | Sequence[str | Path] = (),
        split: str | None = None,
    ) -> ShownResults:
        """Places given as `PLACE` or `NAME=PLACE`."""
        pairs = [split_name(str(one)) for one in as_places(given)]
        places = [Place(name or own_name(path).removesuffix(".parquet"), Path(path)) for name, path in pairs]
        return cls(tuple(places), tuple(map(str, as_places(data))), split)

    def id_of(self, place: Place, key: str = "") -> str:
        """The id of a place's document; it stays the same while results grow."""
        number = self.places.index(place)
        return f"{number}-{key}" if key else str(number)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the page."""

    kind: str
    """The view that shows it."""
    title: str
    body: Callable[[], Mapping[str, Any]]
    """Builds the content; called only when the document is opened."""
    files: tuple[Path, ...] = ()
    """The files it is built from; when one of them changes, so does the document."""
    note: str = ""
    """A line under the title."""
    key: str = ""
    """Distinguishes the documents of a place; "" for the only one."""
    listed: bool = True
    """Whether the page lists it; views load unlisted documents by id."""
    version: str = ""
    """Changes with the content of a document that is not built from files."""

    def stamp(self) -> str:
        """A hash that changes when one of the files changes."""
        digest = hashlib.sha256(f"{__version__} {self.version}".encode())
        for file in self.files:
            try:
                found = file.stat()
                state = f"{found.st_mtime_ns} {found.st_size}"
            except OSError:
                state = "gone"
            digest.update(f"{file}: {state}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]


def cached_until_changed(size: int, missing: Any = None) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """Cache a function of a file for `size` files, until the file changes.

    `missing` is the result for a file that does not exist.
    """

    def decorate(read: Callable[[Path], T]) -> Callable[[Path], T]:
        cached = lru_cache(maxsize=size)(lambda path, *_state: read(path))

        def find(path: Path) -> T:
            if missing is not None and not path.is_file():
                return cast(T, missing)
            state = path.stat()
            return cached(path, state.st_mtime_ns, state.st_size)

        return find

    return decorate


def encode(value: Any) -> bytes:
    """JSON in ASCII that is safe within HTML: markup, line separators and lone surrogates are escaped."""
    return json.dumps(plain_json(value), allow_nan=False, separators=(",", ":")).translate(_HTML).encode("ascii")


def find_documents(results: ShownResults, *, show_broken: bool = False) -> dict[str, Document]:
    """All documents by id; ids stay the same while results grow.

    Args:
        results: the places to show.
        show_broken: turn the error of a place into a document, so that the others are still shown.

    Raises:
        DataError: a place does not exist, or has no results to show.
    """
    found: dict[str, Document] = {}
    for place in results.places:
        try:
            if not place.path.exists():
                raise DataError(f"{place.path}: no such file or folder.{nearest(place.path)}", reason="no-such-file")
            documents = next((some for find in SOURCES.values() if (some := find(place, results)) is not None), None)
            if documents is None:
                raise DataError(
                    f"{place.path}: no results to show; expected {', or '.join(SOURCES)}", reason="wrong-format"
                )
        except (PrismError, OSError) as error:
            if not show_broken:
                raise
            # The message is part of the key: there is no file whose change would update the document.
            message = str(error)
            key = f"broken-{hashlib.sha256(message.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
            documents = [Document("broken", place.name, partial(dict, message=message), key=key)]
        for document in documents:
            found[results.id_of(place, document.key)] = document
    return found


def listing(documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """The listed documents, without their content."""
    return [
        {"id": name, "kind": one.kind, "title": one.title, "note": one.note}
        for name, one in documents.items()
        if one.listed
    ]


def evaluation_documents(place: Place, results: ShownResults) -> list[Document] | None:
    """The errors on all benchmarks of an evaluation (`prism eval`)."""
    metrics = place.path / "metrics.json"
    if not metrics.is_file() or not any(place.path.glob("*.steps.parquet")):
        return None
    about = read_json(metrics)
    try:
        tables = [steps_file(place.path, bench) for bench in about["benchmarks"]]
        note = "; ".join(one["described"] for one in about["benchmarks"].values())
        title = f"{about['run']['name']} on {', '.join(about['benchmarks'])}"
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{metrics}: not written by `prism eval`; run it again", reason="wrong-format") from None
    return [Document("errors", title, partial(_errors, place.path, about, results), (metrics, *tables), note)]


def _errors(folder: Path, about: Any, results: ShownResults) -> dict[str, Any]:
    """The counts and errors of each benchmark, and the items with errors."""
    redundancy = float(about["settings"].get("redundancy_threshold", REDUNDANCY_THRESHOLD))
    benchmarks: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for bench, measured in about["benchmarks"].items():
        benchmark = find_benchmark(bench)
        steps = benchmark.in_total(read_steps(steps_file(folder, bench)))
        texts = _items(bench, measured, results, steps)
        threshold = float(measured["threshold"]["value"])
        good = benchmark.judge(steps, threshold, redundancy)
        right, wrong = steps.judged & steps.right, steps.judged & steps.wrong
        passed, rejected = wrong & good, right & ~good
        counts = {"right": right.sum(), "wrong": wrong.sum(), "fp": passed.sum(), "fn": rejected.sum()}
        by_redundancy = set(benchmark.by_redundancy) & set(steps.group_names) if steps.redundancy is not None else set()
        thresholds = {RIGHT: threshold}
        if by_redundancy:  # a step at the threshold is not redundant, but on the page scores must be above it
            thresholds[NOT_REDUNDANT] = float(np.nextafter(1 - redundancy, 0))
        benchmarks.append({"name": bench, "thresholds": thresholds, "counts": counts})
        known: dict[int, int] = {}
        for at in np.flatnonzero(passed | rejected).tolist():
            number = int(steps.step_item[at])
            if number not in known:
                known[number] = len(items)
                items.append(_item(steps, number, texts[steps.items[number]], by_redundancy))
            errors.append(
                {"bench": bench, "kind": "fp" if passed[at] else "fn", "item": known[number],
                 "step": int(at - steps.starts[number])}
            )  # fmt: skip
    return {"prm": about["run"]["name"], "benchmarks": benchmarks, "items": items, "errors": errors}


def _item(steps: Steps, number: int, item: Item, by_redundancy: Container[str]) -> dict[str, Any]:
    """An item with the scores by which it is judged."""
    own = slice(int(steps.starts[number]), int(steps.starts[number] + steps.lengths[number]))
    group = steps.group_names[steps.item_group[number]]
    scores, decides = steps.probability[own], RIGHT
    if group in by_redundancy and steps.redundancy is not None:
        scores, decides = 1 - steps.redundancy[own], NOT_REDUNDANT
    return {
        "name": steps.items[number],
        "group": group,
        "problem": item.tree.problem,
        "contaminated": int(steps.item_contaminated[number]),
        "texts": [node.text for node in item.tree.nodes],
        "parents": list(item.tree.parents),
        "labels": steps.label[own].tolist(),
        "scores": scores.tolist(),
        "decides": decides,
    }


def _items(bench: str, measured: Any, results: ShownResults, steps: Steps) -> dict[str, Item]:
    """The benchmark's items by name; DataError if a measured item is missing or has other content.

    Names alone are not enough: unnamed items are just numbered. Tables of earlier versions have no content hash, so
    labels are compared instead.
    """
    data = results.data or tuple(measured["files"])
    split = results.split if results.split is not None else measured.get("split")
    try:
        found = {item.tree.name: item for item in read_benchmark(bench, data, split).items}
    except PrismError as error:
        if results.data:
            raise
        raise DataError(f"{error} (the texts of {bench}; name their files with --data)") from error
    for number, name in enumerate(steps.items):
        tree = found[name].tree if name in found else None
        if tree is not None and steps.item_content is not None:
            is_same = tree.content_hash() == steps.item_content[number]
        elif tree is not None:
            own = slice(int(steps.starts[number]), int(steps.starts[number] + steps.lengths[number]))
            labels = [judgment(node.label) for node in tree.nodes]
            is_same = list(tree.parents) == steps.parent[own].tolist() and labels == steps.label[own].tolist()
        if tree is None or not is_same:
            raise DataError(
                f"{', '.join(data)}: the item {name} is missing, or differs from what was measured; name the data of "
                f"{bench} that was measured with --data",
                reason="other-data",
            )
    return found


def scored_documents(place: Place, results: ShownResults) -> list[Document] | None:
    """One document for all tables of scores; it belongs to the first of them."""
    if not _is_table(place):
        return None
    tables = [one for one in results.places if _is_table(one)]
    if place is not tables[0]:
        return []
    title = " and ".join(table.name for table in tables)
    files = tuple(table.path for table in tables)
    return [Document("scores", title, partial(_scored, tables, results), files, key="scores")]


def _is_table(place: Place) -> bool:
    if not place.path.is_file() or place.path.suffix != ".parquet":
        return False
    try:
        return {"log_odds", "content_hash", "model_hash"} <= set(pq.read_schema(place.path).names)
    except (OSError, pa.ArrowException):
        return False


def _scored(tables: list[Place], results: ShownResults) -> dict[str, Any]:
    data = results.data or tuple(dict.fromkeys(name for table in tables for name in inputs_of_scores(table.path)))
    if not data:
        raise DataError(f"{tables[0].path}: the files that were scored are unknown; name them with --data")
    trees = [tree for tree in TreesToScore(data) if tree.nodes]
    prms, columns = [], []
    for table in tables:
        card = card_of_scores(table.path)
        aggregator, threshold = choose_aggregator(None, card).value, choose_threshold(None, card).value
        found = scores_of_trees(read_scores(table.path), trees, card)
        prms.append({"name": table.name, "aggregator": aggregator, "threshold": threshold})
        column = []
        for tree, one in zip(trees, found, strict=True):
            missing = np.isnan(one.probability)
            # A tree with candidates has no score of its own.
            texts = tree.texts(tree.trunk)
            is_whole = len(tree.trunk) == len(tree.nodes) and is_scored(one.probability, texts)
            column.append(
                {"probabilities": None if missing.all() else one.probability.tolist(),
                 "score": solution_score(one.probability, aggregator, texts) if is_whole else None}
            )  # fmt: skip
        columns.append(column)
    if all(one["probabilities"] is None for column in columns for one in column):
        raise DataError(
            f"{', '.join(data)}: none of these solutions is in {tables[0].path}; name those that were scored",
            reason="other-data",
        )
    solutions = [
        {"name": tree.name, "problem": tree.problem, "texts": [node.text for node in tree.nodes],
         "parents": list(tree.parents), "labels": [node.label for node in tree.nodes],
         "prms": [column[i] for column in columns]}
        for i, tree in enumerate(trees)
    ]  # fmt: skip
    return {"prms": prms, "solutions": solutions}


def run_documents(place: Place, _results: ShownResults) -> list[Document] | None:
    """A run of `prism grpo`, which may still be running; with rounds, one document for each."""
    rounds = sorted(place.path.glob("round-*"), key=lambda path: (len(path.name), path.name))
    folders = {"": place.path} | {folder.name: folder for folder in rounds}
    return [
        Document(
            "grpo", f"{place.name}, {key.replace('-', ' ')}" if key else place.name, partial(_run, folder),
            (folder / POINTS, folder / SAMPLES, folder / "exploits" / MEASURED), key=key,
        )
        for key, folder in folders.items()
        if (folder / POINTS).is_file()
    ] or None  # fmt: skip


def _run(folder: Path) -> dict[str, Any]:
    with reading_parquet(folder / POINTS, "run `prism grpo` again"):
        points = read_points(folder / POINTS)
    gold = gold_of(points[0])
    lines = []
    for name, title in {PROXY: "mean reward", gold: "solved, sampled", f"{GREEDY}/{gold}": "solved, greedy"}.items():
        if all(name in point.by_problem for point in points):
            values = [point.interval(name) for point in points]
            lines.append({"name": name, "title": title, "points": [[at.value, at.low, at.high] for at in values]})
    samples = read_samples(folder)
    measured = folder / "exploits" / MEASURED
    exploits = read_json(measured)["result"] if measured.is_file() else None
    alarms = {name: first_alarm(points, name) for name in (gold, VOTE) if name in points[0].by_problem}
    return {
        "updates": [point.update for point in points],
        "lines": lines,
        "numbers": {name: [point.numbers.get(name) for point in points] for name in points[-1].numbers},
        "num_problems": len(points[0].by_problem[gold]),
        "alarms": [
            {"by": "true answers" if name == gold else "votes of the untrained policy", "raised": alarm is not None,
             "update": alarm and alarm.update, "text": str(alarm) if alarm else ""}
            for name, alarm in alarms.items()
        ],
        "problems": samples.problems,
        "samples": samples.points,
        "exploits": exploits,
    }  # fmt: skip


def search_documents(place: Place, results: ShownResults) -> list[Document] | None:
    """The searches in a folder of `prism search`, which may still be running."""
    folder = place.path
    settings = folder / "settings.toml"
    if not settings.is_file() or "search" not in read_toml(settings):
        return None
    found: list[Document] = []
    files = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jsonl"))}
    for stem, rounds in files.items():
        # Solutions that were sampled once and scored by several PRMs are one search per PRM. The first of them has the
        # same key as before scoring.
        scored = [pool.stem for pool in sorted((folder / "pools").glob(f"*-{stem}.jsonl")) if pool.stem not in files]
        for number, name in enumerate(scored or [stem]):
            found += _search(place, results, name if number else stem, name, rounds)
    if not found and (folder / "metrics.json").is_file():
        raise DataError(
            f"{folder}: an earlier version wrote this search without its rounds; run it again with another --out",
            reason="no-rounds",
        )
    return found


def _search(place: Place, results: ShownResults, key: str, name: str, rounds: Path) -> list[Document]:
    pool, table = place.path / "pools" / f"{name}.jsonl", place.path / "solutions" / f"{name}.parquet"
    files = (rounds, pool, table)
    how = made_with(rounds)
    if name != rounds.stem:  # sampled without a PRM, and scored by this one
        how |= {"method": "best-of-n", "prm": name.removesuffix(f"-{rounds.stem}")}
    title = ", ".join(filter(None, [f"{place.name}: {how.get('method')}", f"n = {how.get('n')}", how.get("prm")]))
    keys = [f"{key}-{number}" for number in range(len(_outline(rounds)))]
    ids = [results.id_of(place, one) for one in keys]
    overview = Document("search", title, partial(_overview, *files, how, ids), files, key=key)
    trees = [
        Document(
            "tree", f"{title}, problem {number + 1}", partial(_tree, *files, how, number), files, key=one, listed=False
        )
        for number, one in enumerate(keys)
    ]

    def about(problem: int) -> tuple[str, dict[int, list[str]]]:
        return (_pool(pool).problems[problem].problem.text if pool.is_file() else ""), {}

    return [overview, *trees, *_program_documents(place, results, table, title, key, about)]


def _overview(rounds: Path, pool: Path, table: Path, how: dict[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    graded, numbers = _solutions(table), _numbers(pool)
    problems = []
    for one, name in zip(_outline(rounds), ids, strict=False):
        rows = graded.get(numbers.get(one.key, -1), [])
        chosen = next((row for row in rows if row["chosen"]), None)
        problems.append(
            {"id": name, "text": one.key[:HEAD], "steps": one.num_steps, "rounds": one.num_rounds,
             "running": not one.is_done, "right": None if chosen is None else chosen["correct"]}
        )  # fmt: skip
    return {"how": how, "problems": problems}


def _tree(rounds: Path, pool: Path, table: Path, how: dict[str, Any], number: int) -> dict[str, Any]:
    """The search of one problem: all steps, those kept in every round, and the outcome."""
    found = read_rounds(rounds, only=number)
    if not found:
        raise DataError(f"{rounds}: problem {number + 1} is gone: the search was restarted")
    seen = found[0]
    at_pool = _numbers(pool).get(seen.key, -1)
    solutions = _pool(pool).problems[at_pool].solutions if at_pool >= 0 else ()
    rows = _solutions(table).get(at_pool, [])
    chosen = next((k for k, row in enumerate(rows) if row["chosen"]), None)
    grades = [{name: row[name] for name in ("answer", "correct", "status")} for row in rows]
    return tree_content(seen, [one.scores for one in solutions], how, chosen, grades)


def tree_content(
    seen: RecordedSearch,
    solution_scores: Sequence[Sequence[float | None] | None],
    how: Mapping[str, Any],
    chosen: int | None,
    grades: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The content of a search's tree. `solution_scores` are used where steps were not scored as they were written."""
    scores = [one.score for one in seen.steps]
    for leaf, own in zip(seen.result or (), solution_scores, strict=False):
        path = [at for at in seen.path(leaf) if seen.steps[at - 1].text]
        for at, score in zip(path, own or (), strict=False):
            if scores[at - 1] is None and score is not None:
                scores[at - 1] = round(score, 4)
    texts: dict[str, int] = {}
    steps = [
        [one.parent, texts.setdefault(one.text, len(texts)), score, value, one.ending, one.round, int(one.ahead),
         *([] if one.likelihood is None else [one.likelihood])]
        for one, score, value in zip(seen.steps, scores, _path_scores(seen, scores, how), strict=True)
    ]  # fmt: skip
    return {
        "problem": seen.key, "how": how, "texts": list(texts), "steps": steps, "kept": seen.kept,
        "result": seen.result, "chosen": chosen, "grades": list(grades),
    }  # fmt: skip


def _path_scores(seen: RecordedSearch, scores: Sequence[float | None], how: Mapping[str, Any]) -> list[float | None]:
    """The score of the path up to each step."""
    paths: list[list[tuple[float, str]] | None] = [[]]
    values: list[float | None] = []
    for one, score in zip(seen.steps, scores, strict=True):
        before = paths[one.parent]
        path = before if not one.text else None if before is None or score is None else [*before, (score, one.text)]
        paths.append(path)
        texts = [text for _, text in path or ()]
        own = solution_score([value for value, _ in path], how.get("aggregator", "min"), texts) if path else None
        values.append(None if own is None else round(own, 4))
    return values


def reranked_documents(place: Place, results: ShownResults) -> list[Document] | None:
    """The programs of a folder of `prism rerank`."""
    table, selected = place.path / "solutions.parquet", place.path / "selected.jsonl"
    if not table.is_file() or not selected.is_file():
        return None

    def about(problem: int) -> tuple[str, dict[int, list[str]]]:
        text, rules = "", dict[int, list[str]]()
        for one in _selected(selected).get(problem, ()):
            text = one["problem"]
            if one["solution"] is not None:
                rule = f"{one['rule']} ({one['prm']})" if one["prm"] else one["rule"]
                rules.setdefault(one["solution"], []).append(rule)
        return text, rules

    return _program_documents(place, results, table, place.name, "programs", about) or None


def _program_documents(
    place: Place, results: ShownResults, table: Path, title: str, name: str, about: About
) -> list[Document]:
    """An overview of the problems in a table of solutions, and a document for each; none without programs."""
    keys = {problem: f"{name}-program-{problem}" for problem in _problems(table)}
    if not keys:
        return []
    ids = {problem: results.id_of(place, key) for problem, key in keys.items()}
    overview = Document("programs", title, partial(_programs, table, ids), (table,), key=f"{name}-programs")
    return [
        overview,
        *(
            Document("program", title, partial(_program, table, about, problem), (table,), key=key, listed=False)
            for problem, key in keys.items()
        ),
    ]


def _programs(table: Path, ids: Mapping[int, str]) -> dict[str, Any]:
    problems = []
    for problem, name in ids.items():
        rows = _solutions(table)[problem]
        problems.append(
            {"id": name, "name": rows[0]["name"] or f"problem {problem + 1}", "solutions": len(rows),
             "right": sum(bool(row["correct"]) for row in rows)}
        )  # fmt: skip
    return {"problems": problems}


def _program(table: Path, about: About, problem: int) -> dict[str, Any]:
    rows = _solutions(table)[problem]
    text, rules = about(problem)
    times = Counter(row["answer"] for row in rows)
    solutions = [
        {"program": row["answer"], "correct": row["correct"], "status": row["status"],
         "public": row["public_tests"] or [], "hidden": row["hidden_tests"] or [],
         "selected": rules.get(row["solution"], ["the search"] if row["chosen"] else []),
         "times": times[row["answer"]]}
        for row in rows
    ]  # fmt: skip
    return {"name": rows[0]["name"], "problem": text, "solutions": solutions}


_outline = cached_until_changed(MANY)(outline)
_pool = cached_until_changed(FEW)(read_pool)


@cached_until_changed(FEW, missing={})
def _numbers(pool: Path) -> dict[str, int]:
    """The key of a problem → its index in the pool."""
    names = unique_names(entry.problem.text for entry in _pool(pool).problems)
    return {name: number for number, name in enumerate(names)}


@cached_until_changed(FEW, missing={})
def _solutions(table: Path) -> Rows:
    with reading_parquet(table, AGAIN):
        known = set(pq.read_schema(table).names)
        columns = [*GRADES, *(name for name in (*OF_PROGRAMS, "chosen") if name in known)]
        rows = pq.read_table(table, columns=columns).to_pylist()
    return _by_problem({"chosen": None} | row for row in rows)


@cached_until_changed(MANY, missing=())
def _problems(table: Path) -> tuple[int, ...]:
    """The indices of its problems; empty unless they ask for programs."""
    with reading_parquet(table, AGAIN):
        if not {*GRADES, *OF_PROGRAMS} <= set(pq.read_schema(table).names):
            return ()
        found = pq.read_table(table, columns=["problem_id", "public_tests"])
    has_programs = found["public_tests"].null_count < found.num_rows
    return tuple(dict.fromkeys(found["problem_id"].to_pylist())) if has_programs else ()


@cached_until_changed(FEW)
def _selected(path: Path) -> Rows:
    return _by_problem(JsonLines(path).read())


def _by_problem(rows: Iterable[dict[str, Any]]) -> Rows:
    found: Rows = {}
    for row in rows:
        found.setdefault(row["problem_id"], []).append(row)
    return found


SOURCES: dict[str, Callable[[Place, ShownResults], Sequence[Document] | None]] = {
    "an evaluation (`prism eval`)": evaluation_documents,
    "a table of scores (`prism score`)": scored_documents,
    "a search (`prism search`)": search_documents,
    "a policy in training (`prism grpo`)": run_documents,
    "re-ranked programs (`prism rerank` on a code task)": reranked_documents,
}
"""What a place may be → a function that finds its documents, or returns None for anything else."""
