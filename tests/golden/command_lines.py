"""The command lines that the README and the docs print, and the settings that a command line resolves to."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import prism_prm
from prism_prm.cli import main

ROOT = Path(__file__).parent.parent.parent
SHELLS = ("bash", "sh", "shell", "console", "")
"""Languages of code blocks in which people are told what to type."""
WORKFLOWS = (
    "build_pairs", "calibrate_prm", "compare_rates", "compare_runs", "evaluate_prm", "export_pairs", "label_task",
    "look_at", "measure_margins", "plan_run", "report_theory", "rerank_pool", "run_demo", "score_files", "search_task",
    "serve_prms", "train_policy", "train_prm", "train_rounds", "view_results",
)  # fmt: skip
"""The public functions that do the work of the commands: with what they are called, the settings are resolved."""


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shell_blocks(text: str) -> list[str]:
    """The code blocks of a page in which commands may be, without the texts that they feed to commands (<<END)."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.M | re.S)
    return [_without_heredocs(code) for _, language, code in found if language in SHELLS]


def heredocs(text: str) -> dict[str, str]:
    """Files that a page's commands write: path → text."""
    return dict(re.findall(r"^cat > (\S+) <<END\n(.*?)^END$", text, flags=re.M | re.S))


def _without_heredocs(code: str) -> str:
    return re.sub(r"<<(\w+)\n.*?^\1$", "", code, flags=re.M | re.S)


def inline_code(text: str) -> list[str]:
    """Code in the text of a page, outside of blocks."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    return [" ".join(code.replace("\\|", "|").split()) for code in re.findall(r"`([^`]+)`", text)]


def commands_in(code: str) -> Iterator[list[str]]:
    """The words after `prism` of each call in some shell code, however it is started."""
    for line in code.replace("\\\n", " ").splitlines():
        if "prism" not in line:
            continue
        try:
            words = _shell_words(line)
        except ValueError:  # an open quote: a program that goes on, or no shell code at all
            continue
        for command in _split(words):
            if (argv := _of_prism(command)) is not None:
                yield argv


def _shell_words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.wordchars += ":#@%+[]{}$,!^…"
    lexer.commenters = ""
    words = list(lexer)
    comment = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _split(words: Sequence[str]) -> list[list[str]]:
    """Single commands: pipes and lists end one, and so do redirections."""
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("|&;<>"):
            found.append([])
        else:
            found[-1].append(word)
    return found


def _of_prism(words: Sequence[str]) -> list[str] | None:
    """The arguments of a call of prism, also in processes or as a module, with variables set before it."""
    words = list(words)
    while words and (words[0] == "$" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    if words[:1] == ["prism"] and words[1:] and words[1].isalpha():
        return words[1:]
    if words and words[0] in ("accelerate", "torchrun", "python") and "-m" in words:
        at = words.index("-m")
        if words[at + 1 : at + 2] == ["prism_prm"]:
            return words[at + 2 :]
    return None


def in_blocks() -> list[list[str]]:
    """The command lines of all code blocks."""
    blocks = [block for page in pages() for block in shell_blocks(page.read_text(encoding="utf-8"))]
    return [argv for block in blocks for argv in commands_in(block)]


def in_text() -> list[list[str]]:
    """The command lines in the text, without patterns: `…` and words in capitals stand for something else."""
    spans = [span for page in pages() for span in inline_code(page.read_text(encoding="utf-8"))]
    found = [argv for span in spans for argv in commands_in(span)]
    return [argv for argv in found if not re.search(r"…|\b[A-Z]{2,}\b", " ".join(argv))]


def roughly_counted() -> int:
    """How often commands are called in code blocks, by a rule that knows nothing of the shell."""
    blocks = [block for page in pages() for block in shell_blocks(page.read_text(encoding="utf-8"))]
    calls = re.compile(r"(?:^|\s)(?:prism|-m prism_prm)[ \\\n]+[a-z]+(?= )", flags=re.M)
    return sum(len(calls.findall(re.sub(r"(?:^|\s)#.*", "", block))) for block in blocks)


def resolve(folder: Path, argv: Sequence[str]) -> dict[str, Any] | None:
    """The settings with which a command would begin its work in a folder; None if it refuses its words."""
    seen: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["prism", *argv])
        for name in WORKFLOWS:
            _intercept(patch, name, seen)
        patch.setattr("accelerate.Accelerator", lambda **_: None)
        with pytest.raises(SystemExit) as ended:
            main()
    if ended.value.code:
        return None
    (settings,) = seen
    return settings


def _intercept(patch: pytest.MonkeyPatch, name: str, seen: list[dict[str, Any]]) -> None:
    """Note the arguments of a public function, wherever it is used, instead of calling it."""
    function = getattr(prism_prm, name)

    def note(*args: Any, **named: Any) -> None:
        call = inspect.signature(function).bind(*args, **named)
        call.apply_defaults()
        seen.append({key: plain(value) for key, value in call.arguments.items() if not _is_live(key, value)})
        raise SystemExit(0)

    for module in [module for key, module in sys.modules.items() if key.split(".")[0] == "prism_prm"]:
        if vars(module).get(name) is function:
            patch.setattr(module, name, note)


def _is_live(name: str, value: Any) -> bool:
    """Whether an argument is no setting: what shows progress, and what runs the processes."""
    return callable(value) or name == "accelerator"


def plain(value: Any) -> Any:
    """Settings as JSON: classes as dicts of their public fields, paths as they were written."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if type(value).__name__ == "Exclusions":
        return {"ngram": value.ngram, "counts": plain(value.counts)}
    # A reader of labelled solutions, which knows its inputs and how to read them.
    return {
        "inputs": [source.name for source in value.sources],
        "format": value.format,
        "options": plain(value.options),
    }
