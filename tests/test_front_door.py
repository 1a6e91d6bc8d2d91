"""What `from prism_prm import …` gives: typed names that are no packages, with documents whose examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prism_prm
from docs_code import blocks
from prism_prm import PRM, init_prm
from prism_prm.cli.options import COMMANDS

ROOT = Path(__file__).parent.parent
NAMES = [name for name in prism_prm.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(prism_prm, name))]
METHODS = ["from_pretrained", "push_to_hub", "save", "score", "score_many", "score_trees", "session", "solution_score"]
VERBS = {
    "pairs": "build_pairs", "export": "export_pairs", "score": "score_files", "train": "train_prm",
    "eval": "evaluate_prm", "compare": "compare_runs", "theory": "report_theory", "rerank": "rerank_pool",
    "search": "search_task", "grpo": "train_policy", "demo": "run_demo", "label": "label_task", "serve": "serve_prms",
    "view": "view_results", "calibrate": "calibrate_prm",
}  # fmt: skip
"""Command → the function that it wraps."""


def test_type_checkers_see_what_is_exported() -> None:
    tree = ast.parse(Path(prism_prm.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    assert seen == prism_prm._EXPORTS
    assert len(seen) == len(block.body), "every import is of one name, under that name"


def test_no_name_is_a_package_and_every_verb_is_callable() -> None:
    """Importing a module sets its name in the package: a verb of that name would be gone."""
    for module in pkgutil.walk_packages(prism_prm.__path__, "prism_prm."):
        if not module.name.endswith("__main__") and not module.name.startswith("prism_prm.rl.connectors."):
            importlib.import_module(module.name)  # connectors import their framework
    assert [name for name in NAMES if inspect.ismodule(getattr(prism_prm, name))] == []
    assert [name for name in NAMES if not callable(getattr(prism_prm, name))] == []
    assert set(VERBS.values()) <= set(FUNCTIONS)


@pytest.mark.parametrize("command", VERBS)
def test_every_command_wraps_its_verb(command: str) -> None:
    assert set(VERBS) == set(COMMANDS)
    file = {"eval": "evaluate"}.get(command, command)
    called = {
        node.func.id
        for node in ast.walk(ast.parse((ROOT / "src" / "prism_prm" / "cli" / f"{file}.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert VERBS[command] in called


def documented() -> list[tuple[str, Callable[..., Any]]]:
    return [(name, getattr(prism_prm, name)) for name in FUNCTIONS] + [
        (f"PRM.{name}", getattr(PRM, name)) for name in METHODS
    ]


@pytest.mark.parametrize(("name", "function"), documented(), ids=[name for name, _ in documented()])
def test_every_function_says_its_arguments_and_has_an_example(name: str, function: Callable[..., Any]) -> None:
    doc = inspect.getdoc(function) or ""
    said = re.findall(r"^    (\w+): ", doc.split("Args:\n")[-1].split("\n\n")[0], re.MULTILINE)
    own = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    assert said == own, f"{name} documents other arguments than it has"
    assert "Example:\n    >>> " in doc


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_shown_unless_asked(name: str) -> None:
    from prism_prm.console import ignore

    parameters = inspect.signature(getattr(prism_prm, name)).parameters
    shown = {"progress": False, "advance": ignore}
    assert all(parameters[word].default is value for word, value in shown.items() if word in parameters)


LABELLED = [
    {"problem": f"{i} + 3?", "steps": [f"{i} + 1 = {i + 1}", f"{i + 1} + 1 = {i + 2}", f"{i + 2} + 1 = {i + 4}"],
     "label": 2, "id": f"sum-{i}"}
    for i in range(1, 5)
]  # fmt: skip
RECIPE = """
report_to = []
[data]
inputs = ["labelled.jsonl"]
split = { train = 0.5, validation = 0.5 }
[data.pairs]
audit = "off"
[base]
prm = "my-prm"
[curriculum]
mode = "none"
[train]
lr = 1e-3
epochs = 2
pairs_per_update = 4
"""


GRPO = """
policy = "my-lm"
prm = "my-prm"
[problems]
train = "pool.jsonl"
num_held_out = 1
[trainer]
max_steps = 2
per_device_train_batch_size = 2
num_generations = 2
max_completion_length = 4
"""


TOO_LONG = ("run_demo", "train_rounds")
"""Examples that take minutes."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    """A folder with the files that examples name: a tiny language model, a tiny PRM, a little data."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "my-lm").symlink_to(tiny_lm("qwen2"))
    init_prm(folder / "my-lm").save(folder / "my-prm")
    pool = [
        {"problem": f"{i} + 2?", "answer": str(i + 2), "solutions": [f"\\boxed{{{i + k}}}" for k in (2, 2, 3)]}
        for i in (1, 5)
    ]
    files = {
        "labelled.jsonl": LABELLED,
        "labeled.jsonl": LABELLED,
        "predictions.jsonl": [{"id": row["id"], "scores": [0.9, 0.8, 0.1]} for row in LABELLED],
        "solutions.jsonl": [{"problem": f"1 + {i}?", "steps": ["Add.", f"{i + 1}"]} for i in (1, 2)],
        "problems.jsonl": [{"problem": "1 + 2?", "answer": "3"}],
        "pool.jsonl": pool,
    }
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "grpo.toml").write_text(GRPO, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "function"), documented(), ids=[name for name, _ in documented()])
def test_examples_run_and_show_nothing(
    name: str,
    function: Callable[..., Any],
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With all public names at hand, in a folder of its own that has the files they name."""
    here = workplace / name
    here.mkdir()
    for file in workplace.iterdir():
        if file.is_file() or file.name in ("my-lm", "my-prm"):
            (here / file.name).symlink_to(file)
    monkeypatch.chdir(here)
    names = {one: getattr(prism_prm, one) for one in NAMES} | {"Path": Path}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", names, name, None, None)
    report: list[str] = []
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert found.attempted > 0 or name in TOO_LONG
    assert found.failed == 0, "".join(report)
    assert capfd.readouterr() == ("", "")


PAGE = "\n".join(blocks("docs/reference/python.md", "python"))
"""The code of the page that shows the API."""


def test_the_page_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(workplace)
    names: dict[str, Any] = {}
    exec(compile(PAGE, "docs/reference/python.md", "exec"), names)
    assert names["run"]["best"].startswith("run")
    assert capsys.readouterr().out.splitlines()[-1] == "1.0", "two of three answers are right"


OUTSIDE = """
from pathlib import Path
from typing import assert_type

from prism_prm import (
    PRM, EvalSettings, PairRecipe, PairSettings, PolicySettings, Prm, PrismError, Recipe, Report, RerankSettings,
    Sampling, SearchRecipe, SearchSettings, Step, StepTree, build_pairs, compare_runs, evaluate_prm, init_prm, load_prm,
    load_recipe, open_policy, rerank_pool, score_files, search_problems, search_task, solution_score, split_steps,
    train_prm,
)
from prism_prm.backends.remote_prm import RemotePRM


def use(folder: Path) -> float:
    prm = PRM.from_pretrained(folder, dtype="float32")
    assert_type(load_prm(folder, dtype="float32"), PRM | RemotePRM)
    assert_type(PRM.from_pretrained("my-prm"), PRM)
    assert_type(init_prm("my-lm", family="qwen"), Prm)
    assert_type(prm.score("1 + 2?", split_steps("Add. It is 3.")), list[float])
    assert_type(prm.score_many([("1 + 2?", ["3"]), {"problem": "2?", "steps": ["2"]}]), list[list[float]])
    with prm.session(["1 + 2?"]) as session:
        nodes = session.extend([(root, "Add.") for root in session.roots])
    assert_type(nodes[0].probability, float)
    tree = StepTree.chain("1 + 2?", [Step("3", label=1.0)])
    assert_type(prm.score_trees([tree])[0].too_long, tuple[int, ...])
    prm.save_pretrained(folder / "again", aggregator="mean")
    assert_type(prm.push_to_hub("me/my-prm", private=True), str)
    return prm.solution_score("1 + 2?", ["3"]) + solution_score([0.5], "min")


def work(out: Path) -> Report:
    try:
        build_pairs("labelled.jsonl", out / "pairs", PairRecipe(PairSettings(lookahead=2)))
        recipe = load_recipe("recipe.toml", ["train.lr=2e-6"])
    except PrismError as error:
        raise SystemExit(str(error)) from error
    assert_type(recipe, Recipe)
    best = train_prm(recipe, out / "run")["best"]
    settings = EvalSettings(target_tpr=0.9)
    for name in ("base", "best"):
        found = evaluate_prm(best, ["labeled"], out / name, data="labelled.jsonl", settings=settings)
        assert_type(found["labeled"].subsets["all"].num_steps, int)
    assert_type(score_files(best, "solutions.jsonl", out / "scores.parquet").steps, int)
    results = rerank_pool("pool.jsonl", out / "rerank", prms={"mine": load_prm(best)}, settings=RerankSettings(seed=1))
    assert_type(results.ns, tuple[int, ...])
    search = SearchSettings(method="beam", n=4, sampling=Sampling(temperature=0.7))
    found_solutions = search_problems(open_policy("hf:my-lm"), load_prm(best), ["1 + 2?"], search)
    assert_type(found_solutions[0].policy_tokens, int)
    points = search_task(SearchRecipe(task="gsm8k", policy=PolicySettings("hf:my-lm"), search=search), out / "search")
    assert_type(points[0].n, int)
    return compare_runs([out / "base", out / "best"], out / "compared")
"""


MYPY = """
[mypy]
strict = True
follow_imports = skip
ignore_missing_imports = True
[mypy-prism_prm.*]
follow_imports = silent
"""
"""As a user has it, only quicker: what other libraries say of themselves is not read."""


def test_outside_code_is_checked_against_real_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mypy import api

    wrong = 'from prism_prm import load_prm, rerank_pools\nload_prm("my-prm").score(1, ["a"])\n'
    for name, text in {"page.py": PAGE, "outside.py": OUTSIDE, "wrong.py": wrong, "mypy.ini": MYPY}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    monkeypatch.chdir(tmp_path)
    out, err, _ = api.run(["--config-file", "mypy.ini", "page.py", "outside.py", "wrong.py"])
    assert err == ""
    first, second = [line for line in out.splitlines() if ": error: " in line]
    assert first.startswith('wrong.py:1: error: Module "prism_prm" has no attribute "rerank_pools"')
    assert second.startswith('wrong.py:2: error: Argument 1 to "score" of "Scorer" has incompatible type "int"')


@pytest.mark.parametrize("code", ["import prism_prm", "import prism_prm; dir(prism_prm); prism_prm.PrismError"])
def test_import_is_light(code: str) -> None:
    heavy = ("torch", "numpy", "pyarrow", "transformers", "msgspec")
    code = f"import sys; {code}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom prism_prm.cli import app\n"
        f"for words in {[['--help'], *([command, '--help'] for command in VERBS)]!r}:\n"
        "    try:\n        app(words)\n    except SystemExit:\n        assert 'torch' not in sys.modules, words"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.count("Usage") == 1 + len(VERBS)
