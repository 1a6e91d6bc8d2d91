"""Hooks of the docs site: what the reference pages show is generated from the code when the site is built.

- reference/commands.md gets a section per command, reference/settings.md a table per settings class, and
  reference/python.md the public names. The committed pages hold only their introductions.
- reference/files.md gets the types of columns, and the build fails if a table there lists other columns than the code.
- lab/log.md is experiments/LOG.md.
- Links to files outside docs/ (recipes, source) work where the repository is read, and are plain text on the site.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import prism_prm
from prism_prm.cli.options import COMMANDS, GROUPED, Command, is_repeated, load, metavar, parameter_name
from prism_prm.config import settings_of

ROOT = Path(__file__).resolve().parent.parent

PYTHON_API = {
    "Score": (
        "load_prm init_prm example_prm example_folder PRM Prm Scorer TreeScores PrmOptions open_critic CriticSettings "
        "split_steps solution_score score_files look_at steps_from_predictions"
    ),
    "Trees and pairs": (
        "StepTree Step StepPair read_trees ReadOptions build_pairs PairRecipe PairSettings annotated_pairs "
        "lookahead_pairs export_pairs"
    ),
    "Train": "train_prm Recipe load_recipe measure_margins plan_run Cluster ScoringJob",
    "Evaluate": "evaluate_prm EvalSettings evaluate_steps read_benchmark calibrate_prm CalibrateSettings "
    "calibrate_steps compare_runs compare_rates Report",
    "Re-rank": (
        "rerank_pool RerankSettings read_pool best_of_n majority_vote weighted_vote extract_answer Judge load_task"
    ),
    "Search and label": (
        "search_task SearchRecipe search_problems SearchSettings open_policy PolicySettings Sampling label_task "
        "LabelRecipe LabelSettings RaySettings"
    ),
    "Reinforcement learning": "PRMReward StepGRPOTrainer Monitor MonitorSettings train_policy train_rounds GrpoRecipe",
    "Look and serve": "view_results serve_prms ServeSettings",
    "Lab": "run_demo report_theory VerifierSettings",
    "Errors": "PrismError ConfigError DataError ModelError",
}
"""Group → public names, in the order in which reference/python.md shows them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the log, with its links as seen from lab/."""
    log = (ROOT / "experiments" / "LOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "lab/log.md", content=log.replace("](../docs/", "](../")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Append what is generated for the page, and unlink files that are not part of the site."""
    source = page.file.src_uri
    if source in GENERATED:
        markdown = markdown.rstrip() + "\n\n" + GENERATED[source]()
    markdown = SCHEMA.sub(_with_types, markdown)
    return _without_links_outside(markdown, Path(config.docs_dir), source)


def _without_links_outside(markdown: str, docs: Path, source: str) -> str:
    """`[text](../../recipes/a.toml)` → `text`, if that file is in the repository but not in docs/."""

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath((docs / source).parent / link[2].partition("#")[0]))
        is_outside = target.is_relative_to(docs.parent) and not target.is_relative_to(docs)
        return link[1] if is_outside and target.exists() else link[0]

    return re.sub(r"(?<!!)\[([^\[\]]+)\]\(([^()\s:]+)\)", replaced, markdown)


# Commands


def commands() -> dict[str, Command]:
    """Command → its description, in the order of `prism --help`."""
    return {name: load(name) for name in COMMANDS}


def commands_page() -> str:
    """A section per command: what it does, its usage, options, settings and examples."""
    return "\n".join(_command(name, command) for name, command in commands().items())


def _command(name: str, command: Command) -> str:
    repeated = bool(command.argument in command.known and is_repeated(command.known[command.argument]))
    argument = ["INPUT..." if repeated else command.argument.rpartition(".")[2].upper()] * bool(command.argument)
    is_needed = command.out is not None and command.out.required and not command.out.default
    out = [f"--out {'FILE' if command.out.ending else 'FOLDER'}"] if command.out and is_needed else []
    lines = [f"## prism {name}", "", "```text", " ".join(["prism", name, *argument, *out, "[OPTIONS]"]), "```", ""]
    lines += [command.text.replace("\n- ", "\n\n- ", 1), "", "| option | meaning |", "|---|---|"]
    for flag, names in command.options.items():
        settings = (names,) if isinstance(names, str) else names
        value = f" `{text}`" if (text := metavar(command.setting(flag))) else ""
        keys = " and ".join(f"`{setting}`" for setting in settings)
        sets = "" if settings == (parameter_name(flag),) else f" Sets {keys}."
        lines.append(_row(f"`{flag}`{value}", command.setting(flag).text + sets))
    if command.out:
        lines.append(_row("`--out`, `-o`", command.out.help))
    lines += [_row(f"`{flag}` `KEY=VALUE`", GROUPED[flag][1]) for flag in command.grouped]
    cls = command.settings
    lines += ["", "With `--set`, by section:", "", "| section | settings |", "|---|---|"]
    for section, of in [("", cls), *_sections(cls)]:
        if keys := ", ".join(f"`{key}`" for key in _keys(of)):
            lines.append(_row(f"[{f'`{section}`' if section else 'top level'}](settings.md#{_anchor(of)})", keys))
    lines += ["", "```bash"]
    lines += [f"# {what}\n{_wrapped(line)}" for what, line in command.examples.items()]
    return "\n".join([*lines, "```", ""])


def _wrapped(line: str, width: int = 88) -> str:
    """A command line, broken before options where it is too long to be read."""
    found = [""]
    for word in re.split(r" (?=-)", line):
        if found[-1] and len(found[-1]) + len(word) > width:
            found.append(f"  {word}")
        else:
            found[-1] += f" {word}" if found[-1] else word
    return " \\\n".join(found)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# Settings


def settings_page() -> str:
    """A table per settings class: what commands read at the top level of a recipe, then the sections they share."""
    used: dict[type, dict[str, list[str]]] = {}
    for name, command in commands().items():
        for section, cls in [("", command.settings), *_sections(command.settings)]:
            used.setdefault(cls, {}).setdefault(section, []).append(name)
    top = [cls for cls, places in used.items() if "" in places]
    shared = [cls for cls, places in used.items() if "" not in places]
    parts = ["## Commands", *(_settings(cls, used[cls]) for cls in top)]
    parts += ["## Sections", *(_settings(cls, used[cls]) for cls in shared)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings(cls: type, places: dict[str, list[str]]) -> str:
    table = _own_settings(cls)
    sections = [f"`[{name}]`: [{_title(section)}](#{_anchor(section)})" for name, section in _fields(cls)]
    if not table and not sections:
        return ""
    where = [
        f"section `[{name}]` of {', '.join(f'`prism {user}`' for user in users)}" for name, users in places.items()
    ]
    parts = [f"### {_title(cls)}", table] if "" in places else [f"### {_title(cls)}", f"The {'; '.join(where)}.", table]
    return "\n\n".join([*parts, f"Sections: {', '.join(sections)}." if sections else ""]).rstrip()


def _own_settings(cls: type) -> str:
    """A table of the settings of a class without those of its sections; "" if it has sections only."""
    settings = settings_of(cls)
    rows = [
        [f"`{name}`", one.shown or _default(one.default), _values(one.hint), one.text]
        for name, one in settings.items()
        if "." not in name
    ]
    table = [["setting", "default", "values", ""], ["---"] * 4, *rows]
    if not any(_values(one.hint) for one in settings.values()):
        table = [[name, default, text] for name, default, _, text in table]
    return "".join(f"| {' | '.join(row)} |\n" for row in table) if rows else ""


def _values(hint: Any) -> str:
    """The words that a type allows, as in `Literal["a", "b"] | None` or a tuple of them; "" if it allows any."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{word}`" for word in parts)
    words = "".join(map(_values, parts))
    return f"{words}, or a number" if words and {int, float} & set(parts) else words


def _default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "must be given"
    return "none" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


@functools.cache
def _titles() -> dict[type, str]:
    """Settings class of a command → the heading of its table; others have the name of the class."""
    return {command.settings: f"prism {name}" for name, command in commands().items()}


def _title(cls: type) -> str:
    return _titles().get(cls, cls.__name__)


def _anchor(cls: type) -> str:
    """Where settings.md has the table of a class."""
    return _title(cls).lower().replace(" ", "-")


def _keys(cls: type) -> list[str]:
    return [name for name in settings_of(cls) if "." not in name]


def _sections(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Dotted name → class of every section, and of the sections in it."""
    for name, section in _fields(cls):
        yield prefix + name, section
        yield from _sections(section, f"{prefix}{name}.")


def _fields(cls: type) -> Iterator[tuple[str, type]]:
    """The fields that are settings classes, also as `Section | None`."""
    for name, hint in typing.get_type_hints(cls).items():
        choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        yield from ((name, one) for one in choices if isinstance(one, type) and dataclasses.is_dataclass(one))


# File formats

SCHEMA = re.compile(r"<!-- schema: (\S+):(\w+) -->\n\n\| column \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)")


def _with_types(found: re.Match[str]) -> str:
    """A table of columns and meanings, with the types that the schema in the code has."""
    schema = getattr(importlib.import_module(found[1]), found[2])
    if callable(schema):  # one that depends on the PRM's family
        schema = schema(["correct"])
    meanings = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", found[3], flags=re.M))
    fields = {field.name: field for field in schema}
    if list(meanings) != list(fields):
        raise PluginError(f"reference/files.md: {found[2]} has the columns {list(fields)}, not {list(meanings)}")
    rows = [_row(f"`{name}`", _type(fields[name]), meaning) for name, meaning in meanings.items()]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows, ""])


def _type(field: Any) -> str:
    """An Arrow type in words."""
    text = re.sub(r"dictionary<values=(\w+).*?>", r"\1", str(field.type))
    text = text.replace("double", "float64")
    text = re.sub(r"^list<.*?: (?=struct|\w)", "list of ", text).removesuffix(">") if "list<" in text else text
    text = re.sub(r"struct<.*", "structs" if "list of" in text else "struct", text)
    return f"{text} or null" if field.nullable else text


# Python API


def python_page() -> str:
    """The public names by group; the build fails if a name is in no group."""
    groups = {title: names.split() for title, names in PYTHON_API.items()}
    shown = [name for names in groups.values() for name in names]
    public = [name for name in prism_prm.__all__ if name != "__version__"]
    if sorted(shown) != sorted(public):
        odd = sorted(set(shown) ^ set(public))
        raise PluginError(f"docs/hooks.py: PYTHON_API and prism_prm.__all__ differ in {odd}")
    return "\n\n".join(
        "\n\n".join([f"## {title}", *(_documented(name) for name in names)]) for title, names in groups.items()
    )


def _documented(name: str) -> str:
    """A name for mkdocstrings. The fields of settings are in reference/settings.md, so only their purpose is shown."""
    found = getattr(prism_prm, name)
    lines = [f"::: prism_prm.{name}"]
    is_settings = dataclasses.is_dataclass(found) and name.endswith(("Settings", "Recipe", "Options", "Sampling"))
    if is_settings or (inspect.isclass(found) and issubclass(found, Exception)):
        lines += ["    options:", "      members: false", "      show_signature: false"]
    return "\n".join(lines)


class Examples(griffe.Extension):
    """Our docstrings have one `Example:` with doctests; griffe knows such sections as `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Rename the section in a docstring."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n    >>>", "Examples:\n    >>>")


GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/python.md": python_page,
}
