"""The page as HTML: as it is served, and as one file with everything in it.

The file's modules become one script: each keeps a scope of its own, so that only what it exports is seen by others.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

from prism_prm.page.document import Document, encode
from prism_prm.page.documents import listing

FOLDER = resources.files("prism_prm.page") / "files"
NAMES = tuple(sorted(file.name for file in FOLDER.iterdir() if file.name.endswith((".js", ".css"))))
"""The page's own files; they hold no data."""
FIRST = "app.js"
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""What the page may load and run: its own script and style; with a server also what it answers."""
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def own_file(name: str) -> str:
    """The text of one of NAMES."""
    return (FOLDER / name).read_text(encoding="utf-8")


def served_page() -> tuple[str, str]:
    """The page that a server gives, and its content security policy."""
    head = '<link rel="stylesheet" href="page/page.css">\n<script type="module" src="page/app.js"></script>'
    policy = POLICY.format(script="'self'", style="'self'", connect="'self'")
    return _filled(head, ""), f"{policy}; frame-ancestors 'none'"


def static_page(documents: Mapping[str, Document]) -> str:
    """The page as one file that shows these documents."""
    script, style = bundle(), own_file("page.css")
    policy = POLICY.format(script=_allowed(script), style=_allowed(style), connect="'none'")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<style>{style}</style>"
    )
    blocks = [_block("documents", listing(documents))]
    blocks += [_block(f"document-{name}", one.body()) for name, one in documents.items()]
    return _filled(head, "\n".join([*blocks, f'<script type="module">{script}</script>']))


def bundle() -> str:
    """All modules as one script, in the order in which they need each other."""
    done: dict[str, str] = {}
    _add(FIRST.removesuffix(".js"), done)
    script = "\n".join(done.values())
    assert "</script" not in script.lower(), "a module holds the end of its own script element"
    return script


def _add(name: str, done: dict[str, str]) -> None:
    source = own_file(f"{name}.js")
    for match in _IMPORT.finditer(source):
        if match[2] not in done:
            _add(match[2], done)
    exported = [match[1] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = $\2;\n", source))
    assert not re.search(r"^(import|export)\b", body, re.MULTILINE), f"{name}.js: an import or export of another form"
    done[name] = f"const ${name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();"


def _block(name: str, value: object) -> str:
    return f'<script type="application/json" id="{name}">{encode(value).decode("ascii")}</script>'


def _filled(head: str, body: str) -> str:
    page = own_file("index.html")
    # Not with str.format or re.sub: what is filled in has braces and backslashes of its own.
    return page.replace("<!-- head -->", head, 1).replace("<!-- body -->", body, 1)


def _allowed(text: str) -> str:
    """The source of a policy that allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
