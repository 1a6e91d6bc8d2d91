"""Command lines → the settings with which commands begin their work. The work itself is not done.

All that the README and the docs print is here, all examples of `--help`, every setting of every command in the
spelling of 0.2.0 and of today, and every recipe. A command gets to its work only if its inputs are there: they are
stubs, named as in the docs.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import ROOT, commands_in, heredocs, in_blocks, in_text, pages, resolve, roughly_counted
from golden_commands import prism, write_lines

from golden import FLOAT64, FOLDER, check
from prism_prm import example_folder
from prism_prm.cli.options import COMMANDS, load

EXCLUDED = {
    'serve --prm prism=$ ( python -c import prism_prm; print(prism_prm.example_folder("prism")) )': "a call in a call",
    "export pairs --format jsonl": "writes to standard output, record by record, without calling what others can call",
}
"""Command lines that are not resolved, and why."""

MODELS = (
    "prms/base", "prms/prism", "runs/my-prm", "my-prm", "run", "RUN", "prism-demo/prms/base",
    "runs/smollm2-base/rounds/1_all", "runs/smollm2-135m", "runs/qwen2.5-math-prm-7b", "Qwen/Qwen2.5-Math-PRM-7B",
    "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Math-1.5B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "GAIR/ReasonEval-7B", "runs/base", "runs/coder-base/rounds/1_all",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct",
)  # fmt: skip
"""Models that commands look for before their work begins; here they are folders."""
LABELED = (
    "phase1_train.jsonl", "math500.jsonl", "math500/test.jsonl", "solutions.jsonl", "pool.jsonl", "data/a.jsonl",
    "trees/a.jsonl", "fixes.jsonl", "humaneval.jsonl", "condefects_python.jsonl",
)  # fmt: skip
TREES = ("labels", "prism-demo/data", "runs/answers/labels")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all inputs exist that commands look for before their work begins."""
    folder = tmp_path_factory.mktemp("stubs")
    for model in MODELS:
        (folder / model).parent.mkdir(parents=True, exist_ok=True)
        (folder / model).symlink_to(example_folder("base"))
    steps = [{"completions": [{"text": t, "rating": r} for t, r in (("2", 1), ("3", -1))], "chosen_completion": 0}]
    for name in LABELED:
        write_lines(folder / name, [{"question": {"problem": "What is 1 + 1?"}, "label": {"steps": steps}}])
    prism(folder, "pairs", "phase1_train.jsonl", "--split", "train=1", "--out", "pairs")
    for name in TREES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in ("trees", "annotated", "natural"):
            shutil.copy(folder / "pairs" / "trees.parquet", folder / name / f"{file}.parquet")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for page in pages():
        for name, text in heredocs(page.read_text(encoding="utf-8")).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    plugins = (ROOT / "docs" / "guides" / "plugins.md").read_text(encoding="utf-8")
    (mine,) = [code for code in re.findall(r"```python\n(.*?)```", plugins, re.S) if "class Mine" in code]
    (folder / "my_file.py").write_text(mine, encoding="utf-8")
    (folder / "my-tokenizer").mkdir()
    (folder / "my-adapter").mkdir()
    (folder / "my-adapter" / "adapter_config.json").write_text("{}")
    shutil.copy(ROOT / "recipes" / "search" / "math500-qwen2.5-math-1.5b.toml", folder / "search.toml")
    (folder / "label.toml").write_text('task = "gsm8k"\n[policy]\nname = "hf:my-policy"\n[label]\nrollouts = 2\n')
    return folder


def settings_of(stubs: Path, argv: Sequence[str]) -> dict[str, Any] | None:
    recipe = "recipes/rl/smollm2-135m-gsm8k.toml" if argv[0] == "grpo" else "runs/tutorial/recipe.toml"
    shutil.copy(stubs / recipe, stubs / "recipe.toml")
    return resolve(stubs, argv)


def table(stubs: Path, lines: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Command line → its words, the command and its settings; lines that a command refuses are left out."""
    found = {" ".join(argv): (argv, settings_of(stubs, argv)) for argv in lines}
    return {
        line: {"argv": argv, "command": argv[0], "settings": settings}
        for line, (argv, settings) in found.items()
        if settings is not None
    }


def test_every_call_in_a_block_is_found() -> None:
    assert len(in_blocks()) == roughly_counted()


def test_documented_command_lines(stubs: Path) -> None:
    lines = {" ".join(argv): argv for argv in in_blocks()}
    wanted = [argv for line, argv in lines.items() if line not in EXCLUDED]
    found = table(stubs, wanted)
    assert found.keys() == {" ".join(argv) for argv in wanted}, "a command of the docs is refused"
    check("command_lines_in_blocks", found, tolerance=FLOAT64)


def test_command_lines_in_the_text(stubs: Path) -> None:
    """Those that are whole: others only name an option, and are refused for what they lack."""
    done = {" ".join(argv) for argv in in_blocks()} | EXCLUDED.keys()
    check(
        "command_lines_in_text",
        table(stubs, [argv for argv in in_text() if len(argv) > 1 and " ".join(argv) not in done]),
        tolerance=FLOAT64,
    )


def spellings() -> dict[str, str]:
    """A command line of 0.2.0 → how it is spelled now."""
    text = (FOLDER / "spellings.txt").read_text(encoding="utf-8")
    return dict(pair.split("\n") for pair in text.strip().split("\n\n")[1:])


def test_new_spellings_mean_what_old_ones_meant(stubs: Path) -> None:
    found = {old: settings_of(stubs, shlex.split(new)) for old, new in spellings().items()}
    check("command_lines_of_0.2.0", found, tolerance=FLOAT64)


def test_old_spellings_are_refused_with_the_new_one(stubs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = {old: new for old, new in spellings().items() if old != new}
    assert len(changed) > 40
    for old in changed:
        assert settings_of(stubs, shlex.split(old)) is None, old
        [message] = capsys.readouterr().err.splitlines()
        assert re.search(r": write |must be|Did you mean", message), message


def test_examples_of_the_help(stubs: Path) -> None:
    examples = [line for name in COMMANDS for line in load(name).examples.values()]
    wanted = [argv for line in examples for argv in commands_in(line) if " ".join(argv) not in EXCLUDED]
    found = table(stubs, wanted)
    assert found.keys() == {" ".join(argv) for argv in wanted}, "an example is refused"
    check("command_lines_in_help", found, tolerance=FLOAT64)


def test_recipes(stubs: Path) -> None:
    """What every shipped recipe means, with all defaults and all that it takes from others."""
    found = {}
    for path in sorted((ROOT / "recipes").rglob("*.toml")):
        name = str(path.relative_to(ROOT))
        kind = path.parent.name
        if kind == "search":
            argv = ["search", "--recipe", name, "--prm", "my-prm", "--out", "out"]
        else:
            argv = ["grpo" if kind == "rl" else "train", name]
        found[name] = settings_of(stubs, argv)
        assert found[name] is not None, name
    check("recipes", found, tolerance=FLOAT64)
