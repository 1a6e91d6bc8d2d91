"""Searches as documents: an overview of the problems, and for each of them the tree that its search grew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prism_prm.aggregate import solution_score
from prism_prm.config import read_toml
from prism_prm.errors import DataError
from prism_prm.file_types import reading_parquet
from prism_prm.page.document import FEW, MANY, Document, Place, Results, kept_until_changed
from prism_prm.page.programs import program_documents
from prism_prm.pools import read_pool
from prism_prm.records import unique_names
from prism_prm.search.rounds import FOLDER, Seen, made_with, outline, read_rounds

HEAD = 240
"""Letters of a problem in the overview."""


def search_documents(place: Place, results: Results) -> list[Document] | None:
    """The searches in a folder of `prism search`, which may still run."""
    folder = place.path
    settings = folder / "settings.toml"
    if not settings.is_file() or "search" not in read_toml(settings):
        return None
    found: list[Document] = []
    for key, name, rounds in _searches(folder):
        found += _documents(place, results, key, name, rounds)
    if not found and (folder / "metrics.json").is_file():
        raise DataError(
            f"{folder}: an earlier version made this search and kept no rounds; run it again with another --out",
            reason="no-rounds",
        )
    return found


def _searches(folder: Path) -> list[tuple[str, str, Path]]:
    """(key, name, file of rounds); solutions that were sampled once and scored by several PRMs are a search for each.

    The first of these keeps the key that it had before it was scored.
    """
    files = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jsonl"))}
    found = []
    for stem, path in files.items():
        scored = [pool.stem for pool in sorted((folder / "pools").glob(f"*-{stem}.jsonl")) if pool.stem not in files]
        found += [(name if number else stem, name, path) for number, name in enumerate(scored or [stem])]
    return found


def _documents(place: Place, results: Results, key: str, name: str, rounds: Path) -> list[Document]:
    files = (rounds, place.path / "pools" / f"{name}.jsonl", place.path / "solutions" / f"{name}.parquet")
    how = made_with(rounds)
    if name != rounds.stem:  # sampled without a PRM, and scored by this one
        how |= {"method": "best-of-n", "prm": name.removesuffix(f"-{rounds.stem}")}
    title = ", ".join(filter(None, [f"{place.name}: {how.get('method')}", f"n = {how.get('n')}", how.get("prm")]))
    keys = [f"{key}-{number}" for number in range(len(_outline(rounds)))]
    ids = [results.id_of(place, one) for one in keys]
    overview = Document("search", title, partial(_overview, files, how, ids), files, key=key)
    trees = [
        Document(
            "tree", f"{title}, problem {number + 1}", partial(_tree, files, how, number), files, key=one, listed=False
        )
        for number, one in enumerate(keys)
    ]
    about = partial(_problem_text, files[1])
    return [overview, *trees, *program_documents(place, results, files[2], title, key, about)]


def _overview(files: Sequence[Path], how: dict[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    problems = _outline(files[0])
    graded = _graded(files[2])
    of_pool = _numbers(files[1])
    listed = []
    for one, name in zip(problems, ids, strict=False):
        grades = graded.get(of_pool.get(one.key, -1), [])
        chosen = next((grade for grade in grades if grade["chosen"]), None)
        listed.append(
            {"id": name, "text": one.key[:HEAD], "steps": one.num_steps, "rounds": one.num_rounds,
             "running": not one.is_done, "right": None if chosen is None else chosen["correct"]}
        )  # fmt: skip
    return {"how": how, "problems": listed}


def _tree(files: Sequence[Path], how: dict[str, Any], number: int) -> dict[str, Any]:
    """One problem's search: all its steps, what was kept in every round, and what came of it."""
    found = read_rounds(files[0], only=number)
    if not found:
        raise DataError(f"{files[0]}: problem {number + 1} is not there any more: the search has begun again")
    seen = found[0]
    place = _numbers(files[1]).get(seen.key, -1)
    solutions = _pool(files[1]).problems[place].solutions if place >= 0 else ()
    scores = [one.score for one in seen.steps]
    for leaf, solution in zip(seen.result or (), solutions, strict=False):
        # Where steps were not scored as they were written, their solutions were, once they were whole.
        path = [at for at in seen.path(leaf) if seen.steps[at - 1].text]
        for at, score in zip(path, solution.scores or (), strict=False):
            scores[at - 1] = scores[at - 1] if scores[at - 1] is not None else round(score, 4)
    grades = _graded(files[2]).get(place, [])
    texts: dict[str, int] = {}
    steps = [
        [one.parent, texts.setdefault(one.text, len(texts)), score, value, one.ending, one.round, int(one.ahead),
         *([] if one.likelihood is None else [one.likelihood])]
        for one, score, value in zip(seen.steps, scores, _values(seen, scores, how), strict=True)
    ]  # fmt: skip
    return {
        "problem": seen.key, "how": how, "texts": list(texts), "steps": steps, "kept": seen.kept,
        "result": seen.result, "chosen": next((k for k, grade in enumerate(grades) if grade["chosen"]), None),
        "grades": [{name: grade[name] for name in ("answer", "correct", "status")} for grade in grades],
    }  # fmt: skip


def _values(seen: Seen, scores: Sequence[float | None], how: dict[str, Any]) -> list[float | None]:
    """The score of the path up to each step."""
    paths: list[list[float] | None] = [[]]
    values: list[float | None] = []
    for one, score in zip(seen.steps, scores, strict=True):
        before = paths[one.parent]
        path = before if not one.text else None if before is None or score is None else [*before, score]
        paths.append(path)
        values.append(round(solution_score(path, how.get("aggregator", "min")), 4) if path else None)
    return values


def _numbers(pool: Path) -> dict[str, int]:
    """Key of a problem → its place in the pool; nothing before the pool is written."""
    return _numbers_of(pool) if pool.is_file() else {}


def _graded(table: Path) -> dict[int, list[dict[str, Any]]]:
    """Place of a problem → the grades of its solutions; nothing before they are graded."""
    return _grades_of(table) if table.is_file() else {}


_outline = kept_until_changed(MANY)(outline)
_pool = kept_until_changed(FEW)(read_pool)


@kept_until_changed(FEW)
def _numbers_of(pool: Path) -> dict[str, int]:
    names = unique_names(entry.problem.text for entry in _pool(pool).problems)
    return {name: number for number, name in enumerate(names)}


@kept_until_changed(FEW)
def _grades_of(table: Path) -> dict[int, list[dict[str, Any]]]:
    import pyarrow.parquet as pq

    with reading_parquet(table, "remove it, and run the search again"):
        rows = pq.read_table(table, columns=["problem_id", "answer", "correct", "status", "chosen"]).to_pylist()
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["problem_id"], []).append(row)
    return found


def _problem_text(pool: Path, problem: int) -> tuple[str, dict[int, list[str]]]:
    return (_pool(pool).problems[problem].problem.text if pool.is_file() else ""), {}
