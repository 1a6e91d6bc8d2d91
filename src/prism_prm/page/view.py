"""`view_results`: results on disc as one page, as `prism view` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism_prm.data.inputs import as_places, keep_inputs
from prism_prm.files import write_text
from prism_prm.page.document import Document, Results
from prism_prm.page.documents import find_documents
from prism_prm.page.html import static_page


def view_results(
    results: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = (),
    split: str | None = None,
) -> dict[str, Document]:
    """Write results as one HTML page, which needs no server and loads nothing; returns its documents by their ids.

    Args:
        results: folders and files of results, or NAME=PLACE: evaluations, searches, policies in training, re-ranked
            programs, and tables of scores, which are shown side by side.
        out: the page to write.
        data: the benchmark's files, or the solutions that were scored; by default those that the results name.
        split: for labelled data and pairs, the split that was measured.

    Raises:
        DataError: a place holds nothing that can be shown, or its texts cannot be found.

    Example:
        >>> settings = EvalSettings(num_draws=100)
        >>> found = evaluate_prm("my-prm", "labelled", "eval", data="labelled.jsonl", settings=settings)
        >>> documents = view_results("eval", "page.html")
        >>> [one.kind for one in documents.values()]
        ['errors']
    """
    keep_inputs([*as_places(results), *as_places(data)], [out])
    documents = find_documents(Results.named(as_places(results), tuple(map(str, as_places(data))), split))
    write_text(out, static_page(documents))
    return documents
