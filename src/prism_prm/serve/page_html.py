"""The page as HTML: as the server sends it, and as one self-contained file (`prism view`).

In the file, all modules are bundled into one script; each keeps its own scope, so only its exports are visible.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from prism_prm.data.inputs import as_places, keep_inputs
from prism_prm.files import write_text
from prism_prm.serve.page_documents import Document, ShownResults, encode, find_documents, listing

FOLDER = resources.files("prism_prm.serve") / "files"
NAMES = tuple(sorted(file.name for file in FOLDER.iterdir() if file.name.endswith((".js", ".css"))))
"""The files of the page; they contain no data."""
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page may run only its own script and style, and connect only to its own server."""
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def view_results(
    results: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = (),
    split: str | None = None,
) -> dict[str, Document]:
    """Write results as one self-contained HTML page; returns its documents by id.

    Args:
        results: folders and files of results, or NAME=PLACE: evaluations, searches, policies in training, re-ranked
            programs, and tables of scores, which are shown side by side.
        out: the page to write.
        data: the benchmark's files, or the solutions that were scored; by default the files that the results name.
        split: for labeled data and pairs, the split that was measured.

    Raises:
        DataError: a place has no results to show, or its texts cannot be found.

    Example:
        >>> settings = EvalSettings(num_draws=100)
        >>> found = evaluate_prm("my-prm", "labeled", "eval", data="labeled.jsonl", settings=settings)
        >>> documents = view_results("eval", "page.html")
        >>> [one.kind for one in documents.values()]
        ['errors']
    """
    keep_inputs([*as_places(results), *as_places(data)], [out])
    documents = find_documents(ShownResults.named(results, data, split))
    write_text(out, static_page(documents))
    return documents


def own_file(name: str) -> str:
    """The text of one of NAMES."""
    return (FOLDER / name).read_text(encoding="utf-8")


def served_page() -> tuple[str, str]:
    """The page as the server sends it, and its content security policy."""
    head = '<link rel="stylesheet" href="page/page.css">\n<script type="module" src="page/app.js"></script>'
    policy = POLICY.format(script="'self'", style="'self'", connect="'self'")
    return _filled(head, ""), f"{policy}; frame-ancestors 'none'"


def static_page(documents: Mapping[str, Document]) -> str:
    """The page as one file with these documents."""
    script, style = bundle(), own_file("page.css")
    policy = POLICY.format(script=_allowed(script), style=_allowed(style), connect="'none'")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<style>{style}</style>"
    )
    shown: dict[str, object] = {"documents": listing(documents)}
    shown |= {f"document-{name}": one.body() for name, one in documents.items()}
    blocks = [
        f'<script type="application/json" id="{name}">{encode(value).decode("ascii")}</script>'
        for name, value in shown.items()
    ]
    return _filled(head, "\n".join([*blocks, f'<script type="module">{script}</script>']))


def bundle() -> str:
    """All modules as one script, in the order of their imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        source = own_file(f"{name}.js")
        for match in _IMPORT.finditer(source):
            if match[2] not in done:
                add(match[2])
        exported = [match[1] for match in _EXPORT.finditer(source)]
        body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = $\2;\n", source))
        assert not re.search(r"^(import|export)\b", body, re.MULTILINE), f"{name}.js: unsupported import or export"
        done[name] = f"const ${name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();"

    add("app")
    script = "\n".join(done.values())
    assert "</script" not in script.lower(), "a module contains </script"
    return script


def _filled(head: str, body: str) -> str:
    page = own_file("index.html")
    # Not with str.format or re.sub: the content has braces and backslashes.
    return page.replace("<!-- head -->", head, 1).replace("<!-- body -->", body, 1)


def _allowed(text: str) -> str:
    """The policy source that allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
