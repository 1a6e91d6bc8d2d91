"""Programs as documents: the solutions of code problems with the verdict on every test.

Only how tests ended is shown. What hidden tests hold is not in any result on disc, so it cannot be shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prism_prm.file_types import reading_parquet
from prism_prm.files import JsonLines
from prism_prm.page.document import FEW, MANY, Document, Place, Results, kept_until_changed

SOLUTIONS, SELECTED = "solutions.parquet", "selected.jsonl"
COLUMNS = ("problem_id", "name", "solution", "answer", "correct", "status", "public_tests", "hidden_tests")

AGAIN = "remove it, and run the command again"


def reranked_documents(place: Place, results: Results) -> list[Document] | None:
    """The programs of a folder of `prism rerank`."""
    table = place.path / SOLUTIONS
    if not table.is_file() or not (place.path / SELECTED).is_file():
        return None
    about = partial(_selections, place.path / SELECTED)
    return program_documents(place, results, table, place.name, "programs", about) or None


About = Callable[[int], tuple[str, dict[int, list[str]]]]
"""A problem's number → its text, and the rules that select each of its solutions."""


def program_documents(
    place: Place, results: Results, table: Path, title: str, name: str, about: About
) -> list[Document]:
    """An overview of the problems of a table of solutions, and each of them; none where it has no programs."""
    problems = _problems(table) if table.is_file() else ()
    if not problems:
        return []
    files = (table,)
    keys = {problem: f"{name}-program-{problem}" for problem in problems}
    ids = {problem: results.id_of(place, key) for problem, key in keys.items()}
    overview = Document("programs", title, partial(_overview, table, ids), files, key=f"{name}-programs")
    return [
        overview,
        *(
            Document("program", title, partial(_problem, table, about, problem), files, key=key, listed=False)
            for problem, key in keys.items()
        ),
    ]


@kept_until_changed(MANY)
def _problems(table: Path) -> tuple[int, ...]:
    """The numbers of its problems, if these ask for programs."""
    import pyarrow.parquet as pq

    with reading_parquet(table, AGAIN):
        if not set(COLUMNS) <= set(pq.read_schema(table).names):  # before the verdicts on single tests were kept
            return ()
        found = pq.read_table(table, columns=["problem_id", "public_tests"])
    has_programs = found["public_tests"].null_count < found.num_rows
    return tuple(dict.fromkeys(found["problem_id"].to_pylist())) if has_programs else ()


@kept_until_changed(FEW)
def _rows(table: Path) -> dict[int, list[dict[str, Any]]]:
    """Problem → its solutions."""
    import pyarrow.parquet as pq

    with reading_parquet(table, AGAIN):
        known = pq.read_schema(table).names
        rows = pq.read_table(table, columns=[*COLUMNS, *(["chosen"] if "chosen" in known else [])]).to_pylist()
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["problem_id"], []).append(row)
    return found


def _overview(table: Path, ids: Mapping[int, str]) -> dict[str, Any]:
    problems = []
    for problem, name in ids.items():
        own = _rows(table)[problem]
        problems.append(
            {"id": name, "name": own[0]["name"] or f"problem {problem + 1}", "solutions": len(own),
             "right": sum(bool(one["correct"]) for one in own)}
        )  # fmt: skip
    return {"problems": problems}


def _problem(table: Path, about: About, problem: int) -> dict[str, Any]:
    own = _rows(table)[problem]
    text, rules = about(problem)
    solutions = [
        {"program": one["answer"], "correct": one["correct"], "status": one["status"],
         "public": one["public_tests"] or [], "hidden": one["hidden_tests"] or [],
         "selected": rules.get(one["solution"], ["the search"] if one.get("chosen") else [])}
        for one in own
    ]  # fmt: skip
    times = Counter(one["answer"] for one in own)
    for one in solutions:
        one["times"] = times[one["program"]]
    return {"name": own[0]["name"], "problem": text, "solutions": solutions}


def _selections(selected: Path, problem: int) -> tuple[str, dict[int, list[str]]]:
    text, rules = "", dict[int, list[str]]()
    for one in _selected(selected).get(problem, ()):
        text = one["problem"]
        if one["solution"] is not None:
            rules.setdefault(one["solution"], []).append(f"{one['rule']} ({one['prm']})" if one["prm"] else one["rule"])
    return text, rules


@kept_until_changed(FEW)
def _selected(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Problem → what is selected from its solutions."""
    found: dict[int, list[dict[str, Any]]] = {}
    for one in JsonLines(path).read():
        found.setdefault(one["problem_id"], []).append(one)
    return found
