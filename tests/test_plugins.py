"""What users add themselves: the pages' own family, reader and task, from the command line; and what can be wrong."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from installing import install
from prism_prm import init_prm, load_prm, load_task, plugins
from prism_prm.cli import app
from prism_prm.data.formats import ReadOptions
from prism_prm.data.reader import Reader, read_trees
from prism_prm.errors import ConfigError, DataError, ModelError, PrismError
from prism_prm.models.card import set_threshold
from prism_prm.models.families import find_family

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "plugins.md").read_text(encoding="utf-8")
FAMILY, READER, TASK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RECIPE, ENTRY_POINTS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()]
PROBLEM, STEPS = "start with 1", ["then 1 + 2 = 3", "then 3 + 4 = 8"]


def prism(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> Result:
    result = prism(*arguments)
    if result.exception is not None:
        raise result.exception
    return result


def solution(number: int) -> dict[str, object]:
    """A trunk of right steps with a wrong candidate beside each, in PRM800K's format."""
    steps = [
        {"completions": [{"text": f"then {i} + {number} = {i + number}", "rating": 1, "flagged": False},
                         {"text": f"then {i} + {number} = {i + number + 1}", "rating": -1, "flagged": False}],
         "human_completion": None, "chosen_completion": 0}
        for i in range(4)
    ]  # fmt: skip
    return {"question": {"problem": f"problem {number}"}, "label": {"steps": steps, "finish_reason": "solution"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_lm: Callable[..., Path]) -> Path:
    """The page's files in the folder in which commands run, with a tiny model under the name of the recipe's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_file.py").write_text(FAMILY, encoding="utf-8")
    small = 'split = { train = 0.7, validation = 0.3 }\n[data.pairs]\naudit = "off"\n'
    (tmp_path / "recipe.toml").write_text(f"report_to = []\n{RECIPE}{small}", encoding="utf-8")
    shutil.copytree(tiny_lm("qwen2"), tmp_path / "Qwen" / "Qwen2.5-Math-1.5B")
    lines = [json.dumps(solution(number)) for number in range(30)]
    (tmp_path / "solutions.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "site"


def install_page(site: Path) -> None:
    files = {"__init__.py": "", "family.py": FAMILY, "reader.py": READER, "task.py": TASK,
             "sums.jsonl": '{"problem": "1 + 2", "answer": "3"}\n{"problem": "2 + 2", "answer": "4"}\n'}  # fmt: skip
    install(site, "my_package", {f"my_package/{name}": content for name, content in files.items()}, ENTRY_POINTS)


def test_the_family_of_the_docs_trains_and_is_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len([line for line in FAMILY.splitlines() if line]) <= 15
    assert [command[0] for command in COMMANDS] == ["train", "eval", "score"]
    for command in COMMANDS:
        done(*command)
    card = json.loads(
        (here / "run" / json.loads((here / "run/run.json").read_text())["best"] / "prism.json").read_text()
    )
    assert card["family"] == "my_file.py:Mine"
    measured = json.loads((here / "measured" / "metrics.json").read_text())["benchmarks"]["labeled"]["subsets"]["all"]
    assert measured["items"] == 30
    table = pq.read_table(here / "scores.parquet").to_pylist()
    prm = load_prm("run", family="my_file.py:Mine")
    steps = [step["completions"][0]["text"] for step in solution(0)["label"]["steps"]]  # type: ignore[index]
    trunk = [row["probability"] for row in table if row["tree_id"] == 0 and row["node_id"] % 2 == 0]
    assert prm.score("problem 0", steps) == pytest.approx(trunk, abs=1e-5)

    # Without its name no code is run: the file would otherwise leave a trace.
    (here / "my_file.py").write_text(f"open('ran', 'w').close()\n{FAMILY}")
    for command in COMMANDS[1:]:
        (at,) = (i for i, word in enumerate(command) if word.endswith("my_file.py:Mine"))
        refused = prism(*command[: at - 1], *command[at + 1 :])
        assert isinstance(refused.exception, ConfigError)
        said = "the family is my_file.py:Mine, a file of its author (SHA-256 " + card["family_sha256"]
        assert said in str(refused.exception)
        assert "--set load.family=my_file.py:Mine" in str(refused.exception)
    assert not (here / "ran").exists()
    # Another folder, another path to the same file.
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    with pytest.raises(
        ConfigError, match=r"my_file\.py cannot be read \(No such file or directory\); give its correct path"
    ):
        load_prm(here / "run", family="my_file.py:Mine")
    (here / "my_file.py").write_text(FAMILY)
    assert load_prm(here / "run", family=f"{here}/my_file.py:Mine").score("problem 0", steps) == pytest.approx(trunk)


def test_a_file_is_part_of_the_model_s_identity(
    here: Path, tiny_lm: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    prm = init_prm(tiny_lm("qwen2"), family="my_file.py:Mine")
    prm.save(here / "prm")
    readme = (here / "prm" / "README.md").read_text()
    assert """load_prm(".", family='my_file.py:Mine')""" in readme
    set_threshold(here / "prm", 0.25)
    again = load_prm(here / "prm", family="./my_file.py:Mine")
    assert (again.card.threshold, again.model_hash()) == (0.25, prm.model_hash())
    assert not caplog.records
    (here / "my_file.py").write_text(FAMILY.replace("return logits_RC", "return -logits_RC"))
    turned = load_prm(here / "prm", family="my_file.py:Mine")
    assert "my_file.py:Mine has changed since this PRM was saved" in caplog.text
    assert turned.model_hash() != prm.model_hash()
    assert turned.score(PROBLEM, STEPS) == pytest.approx([1 - p for p in prm.score(PROBLEM, STEPS)], abs=1e-6)
    turned.save(here / "turned")
    caplog.clear()
    assert load_prm(here / "turned", family="my_file.py:Mine").model_hash() == turned.model_hash()
    assert not caplog.records
    with pytest.raises(ModelError, match=r"says family 'my_file.py:Mine', not 'qwen'"):
        load_prm(here / "prm", family="qwen")


def test_our_own_folders_are_as_they_were(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    assert set(json.loads((tmp_path / "prm/prism.json").read_text())) == {
        "family", "settings", "compat", "threshold", "aggregator", "frozen_layers"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (FAMILY, "my_file.py", "name the family in it to use, e.g. my_file.py:Mine"),
        (FAMILY, "my_file.py:Yours", "my_file.py has no 'Yours'. Names in it that are a subclass of Family: Mine"),
        (FAMILY, "my_file.py:nn", r"my_file.py:nn is of type module, not a subclass of Family. Known: qwen, "),
        (FAMILY, "my_file.py:Family", "is the class Family, not a subclass of Family. Known: qwen"),
        ("import no_such_module", "my_file.py:Mine", "cannot be loaded: ModuleNotFoundError.* Fix my_file.py"),
        ("class Mine(", "my_file.py:Mine", "cannot be loaded: SyntaxError"),
        ("1 / 0", "my_file.py:Mine", "cannot be loaded: ZeroDivisionError: division by zero"),
        (FAMILY.replace("head_name", "heads_name").replace("step_ids", "steps_ids"), "my_file.py:Mine",
         "The family 'my_file.py:Mine' lacks step_ids, head_name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(here: Path, code: str, name: str, message: str) -> None:
    (here / "my_file.py").write_text(code, encoding="utf-8")
    for _ in range(2):  # a file that failed is not taken for loaded
        with pytest.raises(ConfigError, match=message):
            find_family(name)


def test_a_family_of_a_package(
    here: Path, site: Path, tiny_lm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_page(site)
    prm = init_prm(tiny_lm("qwen2"), family="mine")
    prm.save(here / "prm")
    assert load_prm(here / "prm").model_hash() == prm.model_hash()
    by_file = init_prm(tiny_lm("qwen2"), family="my_file.py:Mine")
    assert prm.score(PROBLEM, STEPS) == by_file.score(PROBLEM, STEPS)
    monkeypatch.delattr("my_package.family.__file__")
    with pytest.raises(ConfigError, match=r"my_package.family:Mine has no source file"):
        find_family("mine")
    shutil.rmtree(site)
    with pytest.raises(ConfigError, match=r"prm/prism.json: Unknown family 'mine'\. Known: qwen, .*verdict; or one of"):
        load_prm(here / "prm")


def test_a_reader_and_a_task_of_a_package(site: Path, tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    thoughts = [{"text": "1 + 2 = 3", "good": True}, {"text": "so 4", "good": False}]
    data.write_text(json.dumps({"task": "1 + 2", "thoughts": thoughts}) + "\n")
    with pytest.raises(DataError, match="no known format"):
        list(read_trees(data))
    install_page(site)
    for format in ("auto", "thoughts"):
        (tree,) = read_trees(data, format)
        assert [(node.text, node.label) for node in tree.nodes] == [("1 + 2 = 3", 1.0), ("so 4", 0.0)]
        done("pairs", data, "--format", format, "--out", tmp_path / format)
        summary = json.loads((tmp_path / format / "summary.json").read_text())
        assert summary["records"] == {"read": 1, "formats": {"thoughts": 1}}
    data.write_text('{"problem": "1 + 2"}\n')
    with pytest.raises(DataError, match=r"no known format\..* thoughts \(task, thoughts\)"):
        list(read_trees(data))
    with pytest.raises(DataError, match=r"a thoughts record needs the fields \['task', 'thoughts'\]"):
        list(read_trees(data, "thoughts"))

    assert [(problem.text, problem.answer) for problem in load_task("sums").problems] == [
        ("1 + 2", "3"),
        ("2 + 2", "4"),
    ]
    pool = tmp_path / "pool.jsonl"
    pool.write_text(json.dumps({"problem": "1 + 2", "completions": ["It is \\boxed{3}", "It is \\boxed{4}"]}) + "\n")
    done("rerank", pool, "--task", "sums", "-o", tmp_path / "out", "-n", 1)
    curves = json.loads((tmp_path / "out" / "metrics.json").read_text())["curves"]
    assert {curve["value"] for curve in curves if curve["method"] == "mean"} == {0.5}


def test_bad_records_do_not_look_for_packages_anew(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_page(site)
    asked = []
    found = plugins.entry_points
    monkeypatch.setattr(plugins, "entry_points", lambda **group: asked.append(group) or found(**group))
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n' * 100)
    reader = Reader([tmp_path / "bad.jsonl"], options=ReadOptions(on_bad_record="skip"))
    assert list(reader.drafts()) == []
    assert reader.report.bad == {"wrong-format": 100}
    assert len(asked) < 10


LOOKUPS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "families": ("qwen", find_family, "a subclass of Family. Known: qwen, "),
    "readers": ("stepwise", lambda name: Reader([], format=name), r"a Format \(or a tuple of them\). Known: prm800k, "),
    "tasks": ("gsm8k", load_task, "a TaskSource. Known: math-500, "),
}


@pytest.mark.parametrize("group", LOOKUPS)
def test_what_is_wrong_with_a_package_is_said(group: str, site: Path) -> None:
    ours, look_up, wanted = LOOKUPS[group]
    lines = f"[prism_prm.{group}]\n{ours} = my_package:ONE\none = my_package:ONE\nbroken = my_package.broken:TWO\n"
    files = {"my_package/__init__.py": "ONE = 1\n", "my_package/broken.py": "1 / 0\n"}
    install(site, "my_package", files, lines + "both = my_package:ONE\n")
    install(site, "another", {}, f"[prism_prm.{group}]\nboth = another:ONE\n")
    for name, message in [
        (ours, f"{ours!r} is defined 2 times: prism-prm, my_package:ONE.* Known: .*both, broken, one"),
        (
            "both",
            r"'both' is defined 2 times: (my_package:ONE, another|another:ONE, my_package).* Known: .*both, broken",
        ),
        ("one", f"my_package:ONE is of type int, not {wanted}.*both, broken, one"),
        ("broken", "cannot be loaded from my_package.broken:TWO: ZeroDivisionError: .* Known: .*both, broken, one"),
        ("four", "Unknown (family|format|task) 'four'. Known: .*both, broken, one"),
    ]:
        with pytest.raises(ConfigError, match=message):
            look_up(name)


def test_init_prm_does_not_send_to_itself(tiny_lm: Callable[..., Path]) -> None:
    with pytest.raises(PrismError, match="'ки' is not one token") as refused:
        init_prm(tiny_lm("llama"), family="math-shepherd")
    assert "init_prm" not in str(refused.value)
    with pytest.raises(PrismError, match=r"'<extra_0>' is not one token.* make the PRM with init_prm, which adds"):
        load_prm(tiny_lm("llama"), family="qwen")
