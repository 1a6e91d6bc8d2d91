"""What there is to look at in results on disc, by what each place is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prism_prm.errors import DataError, PrismError
from prism_prm.page.document import Document, Place, Results
from prism_prm.page.judged import evaluation_documents
from prism_prm.page.programs import reranked_documents
from prism_prm.page.scored import scored_documents
from prism_prm.page.searched import search_documents
from prism_prm.page.trained import run_documents
from prism_prm.places import nearest

Find = Callable[[Place, Results], Sequence[Document] | None]

SOURCES: dict[str, Find] = {
    "an evaluation (`prism eval`)": evaluation_documents,
    "a table of scores (`prism score`)": scored_documents,
    "a search (`prism search`)": search_documents,
    "a policy in training (`prism grpo`)": run_documents,
    "re-ranked programs (`prism rerank` on a code task)": reranked_documents,
}
"""What a place may be → its documents; None where it is something else."""


def find_documents(results: Results, *, show_broken: bool = False) -> dict[str, Document]:
    """All documents by their ids, which stay the same while results grow.

    Args:
        results: the places to look at.
        show_broken: make a document of what is wrong with a place, so that the others are still shown.

    Raises:
        DataError: a place does not exist, or holds nothing that can be shown.
    """
    found: dict[str, Document] = {}
    for place in results.places:
        try:
            documents = _of_place(place, results)
        except (PrismError, OSError) as error:
            if not show_broken:
                raise
            documents = [_broken(place, str(error))]
        for document in documents:
            found[results.id_of(place, document.key)] = document
    return found


def _broken(place: Place, message: str) -> Document:
    """Another message is another document, since no file says when it changes."""
    key = f"broken-{hashlib.sha256(message.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    return Document("broken", place.name, lambda: {"message": message}, key=key)


def _of_place(place: Place, results: Results) -> Sequence[Document]:
    if not place.path.exists():
        raise DataError(f"{place.path}: no such file or folder.{nearest(place.path)}", reason="no-such-file")
    for find in SOURCES.values():
        documents = find(place, results)
        if documents is not None:
            return documents
    raise DataError(f"{place.path}: nothing to look at; expected {', or '.join(SOURCES)}", reason="wrong-format")


def listing(documents: Mapping[str, Document]) -> list[dict[str, Any]]:
    """What the page lists."""
    return [
        {"id": name, "kind": one.kind, "title": one.title, "note": one.note}
        for name, one in documents.items()
        if one.listed
    ]
