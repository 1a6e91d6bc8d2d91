"""Searches and re-ranked programs as documents.

A search has an overview of its problems, and for each of them the tree that it grew. Programs have the verdict on every
test. Only how tests ended is shown: what hidden tests hold is in no result on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prism_prm.aggregate import solution_score
from prism_prm.config import read_toml
from prism_prm.data.pools import read_pool
from prism_prm.errors import DataError
from prism_prm.file_types import reading_parquet
from prism_prm.files import JsonLines
from prism_prm.search.rounds import FOLDER, Seen, made_with, outline, read_rounds
from prism_prm.serve.page_document import FEW, MANY, Document, Place, Results, kept_until_changed
from prism_prm.tree import unique_names

HEAD = 240
"""Characters of a problem in the overview."""
GRADES = ("problem_id", "answer", "correct", "status")
OF_PROGRAMS = ("name", "solution", "public_tests", "hidden_tests")
"""Columns of a table of solutions; tables of earlier versions lack those of programs."""
AGAIN = "remove it, and run the command again"

Rows = dict[int, list[dict[str, Any]]]
"""The number of a problem → rows on its solutions."""
About = Callable[[int], tuple[str, Mapping[int, Sequence[str]]]]
"""The number of a problem → its text, and the rules that select each of its solutions."""


def search_documents(place: Place, results: Results) -> list[Document] | None:
    """The searches in a folder of `prism search`, which may still run."""
    folder = place.path
    settings = folder / "settings.toml"
    if not settings.is_file() or "search" not in read_toml(settings):
        return None
    found: list[Document] = []
    files = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jsonl"))}
    for stem, rounds in files.items():
        # Solutions that were sampled once and scored by several PRMs are a search for each. The first of these keeps
        # the key that it had before it was scored.
        scored = [pool.stem for pool in sorted((folder / "pools").glob(f"*-{stem}.jsonl")) if pool.stem not in files]
        for number, name in enumerate(scored or [stem]):
            found += _search(place, results, name if number else stem, name, rounds)
    if not found and (folder / "metrics.json").is_file():
        raise DataError(
            f"{folder}: an earlier version made this search and kept no rounds; run it again with another --out",
            reason="no-rounds",
        )
    return found


def _search(place: Place, results: Results, key: str, name: str, rounds: Path) -> list[Document]:
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
    """One problem's search: all its steps, what was kept in every round, and its outcome."""
    found = read_rounds(rounds, only=number)
    if not found:
        raise DataError(f"{rounds}: problem {number + 1} is not there any more: the search has begun again")
    seen = found[0]
    at_pool = _numbers(pool).get(seen.key, -1)
    solutions = _pool(pool).problems[at_pool].solutions if at_pool >= 0 else ()
    scores = [one.score for one in seen.steps]
    for leaf, solution in zip(seen.result or (), solutions, strict=False):
        # If steps were not scored as they were written, their solutions were, once they were whole.
        path = [at for at in seen.path(leaf) if seen.steps[at - 1].text]
        for at, score in zip(path, solution.scores or (), strict=False):
            scores[at - 1] = scores[at - 1] if scores[at - 1] is not None else round(score, 4)
    rows = _solutions(table).get(at_pool, [])
    texts: dict[str, int] = {}
    steps = [
        [one.parent, texts.setdefault(one.text, len(texts)), score, value, one.ending, one.round, int(one.ahead),
         *([] if one.likelihood is None else [one.likelihood])]
        for one, score, value in zip(seen.steps, scores, _path_scores(seen, scores, how), strict=True)
    ]  # fmt: skip
    return {
        "problem": seen.key, "how": how, "texts": list(texts), "steps": steps, "kept": seen.kept,
        "result": seen.result, "chosen": next((k for k, row in enumerate(rows) if row["chosen"]), None),
        "grades": [{name: row[name] for name in ("answer", "correct", "status")} for row in rows],
    }  # fmt: skip


def _path_scores(seen: Seen, scores: Sequence[float | None], how: dict[str, Any]) -> list[float | None]:
    """The score of the path up to each step."""
    paths: list[list[float] | None] = [[]]
    values: list[float | None] = []
    for one, score in zip(seen.steps, scores, strict=True):
        before = paths[one.parent]
        path = before if not one.text else None if before is None or score is None else [*before, score]
        paths.append(path)
        values.append(round(solution_score(path, how.get("aggregator", "min")), 4) if path else None)
    return values


def reranked_documents(place: Place, results: Results) -> list[Document] | None:
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
    place: Place, results: Results, table: Path, title: str, name: str, about: About
) -> list[Document]:
    """An overview of the problems of a table of solutions, and each of them; none if it has no programs."""
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


_outline = kept_until_changed(MANY)(outline)
_pool = kept_until_changed(FEW)(read_pool)


@kept_until_changed(FEW, missing={})
def _numbers(pool: Path) -> dict[str, int]:
    """The key of a problem → its number in the pool."""
    names = unique_names(entry.problem.text for entry in _pool(pool).problems)
    return {name: number for number, name in enumerate(names)}


@kept_until_changed(FEW, missing={})
def _solutions(table: Path) -> Rows:
    import pyarrow.parquet as pq

    with reading_parquet(table, AGAIN):
        known = set(pq.read_schema(table).names)
        columns = [*GRADES, *(name for name in (*OF_PROGRAMS, "chosen") if name in known)]
        rows = pq.read_table(table, columns=columns).to_pylist()
    return _by_problem({"chosen": None} | row for row in rows)


@kept_until_changed(MANY, missing=())
def _problems(table: Path) -> tuple[int, ...]:
    """The numbers of its problems, if these ask for programs."""
    import pyarrow.parquet as pq

    with reading_parquet(table, AGAIN):
        if not {*GRADES, *OF_PROGRAMS} <= set(pq.read_schema(table).names):
            return ()
        found = pq.read_table(table, columns=["problem_id", "public_tests"])
    has_programs = found["public_tests"].null_count < found.num_rows
    return tuple(dict.fromkeys(found["problem_id"].to_pylist())) if has_programs else ()


@kept_until_changed(FEW)
def _selected(path: Path) -> Rows:
    return _by_problem(JsonLines(path).read())


def _by_problem(rows: Iterable[dict[str, Any]]) -> Rows:
    found: Rows = {}
    for row in rows:
        found.setdefault(row["problem_id"], []).append(row)
    return found
