"""What every command shows: results on standard output, all else on standard error; --json, -q, -v, colors, help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prism_prm import init_prm
from prism_prm.cli import app, main, options
from prism_prm.errors import PrismError

NAMES = list(options.COMMANDS)
POOL = '{"problem": "What is 2 + 3?", "answer": "5", "solutions": ["2 + 3\\n\\n\\\\boxed{5}", "\\\\boxed{6}"]}\n'


def trl(i: int) -> str:
    steps = [f"{i} + 3 = {i + 3}", f"it is {i + 3}", f"so {i + 4}"]
    return json.dumps({"prompt": f"What is {i} + 3?", "completions": steps, "labels": [True, True, False]}) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path], memorising_policy: Path) -> Path:
    folder = tmp_path_factory.mktemp("display")
    (folder / "trl.jsonl").write_text("".join(map(trl, range(12))))
    (folder / "pool.jsonl").write_text(POOL)
    (folder / "task.jsonl").write_text('{"problem": "3+4-2", "answer": "5"}\n')
    (folder / "recipe.toml").write_text(
        'report_to = []\n[data]\ninputs = ["trl.jsonl"]\nsplit = { train = 1.0 }\n[base]\nprm = "prm"\n'
        '[objective]\nname = "bce"\non = "labels"\n[curriculum]\nmode = "none"\n[validation]\nsplit = ""\n'
    )
    (folder / "policy").symlink_to(memorising_policy)
    init_prm(tiny_lm("qwen2"), family="qwen").save(folder / "prm")
    return folder


COMMANDS = {
    "pairs": "pairs trl.jsonl --set pairs.audit=off --out pairs",
    "export": "export pairs --format jsonl --out pairs.jsonl",
    "score": "score pool.jsonl --prm prm --out s.parquet",
    "look": "score pool.jsonl --prm prm --show",
    "margins": "score pairs --prm prm --out m.parquet --pairs",
    "plan": "train recipe.toml --plan=h100",
    "train": "train recipe.toml --out run",
    "eval": "eval --bench labeled --data trl.jsonl --prm prm --set num_draws=100 --out eval",
    "calibrate": "calibrate --data trl.jsonl --prm prm --target f1 --set num_draws=100 --out calibrate",
    "view": "view eval --out page.html",
    "compare": "compare a=eval b=eval --set num_draws=100 --out compare",
    "theory": "theory --no-simulate --out theory",
    "rerank": "rerank pool.jsonl --scores s.parquet --set judges=1 --set num_draws=100 --out rerank",
    "search": "search --policy hf:policy --task task.jsonl --method greedy --set judges=1 -P template=none --out found",
    "label": "label task.jsonl --policy hf:policy --rollouts 2 --set judges=1 -P template=none -P max_tokens=9 --out o",
}
"""`demo` is tested with its own."""
NEEDS = {"export": "pairs", "margins": "pairs", "view": "eval", "compare": "eval", "rerank": "score"}
"""Command → the one whose output it reads."""
FACTS = {
    "pairs": {"trees": 12},
    "export": {"out": "pairs.jsonl", "records": 36},
    "score": {"out": "s.parquet", "trees": 2, "steps": 3, "too_long": 0},
    "look": {},
    "margins": {"out": "m.parquet", "pairs": 36},
    "plan": {"kind": "training"},
    "train": {"best": "run/rounds/1_all"},
    "eval": {"report": "eval/report.html"},
    "calibrate": {"report": "calibrate/report.html", "written": "calibrate/calibration.json"},
    "view": {"out": "page.html", "documents": [{"kind": "errors", "title": "prm on labeled"}]},
    "compare": {"report": "compare/report.html"},
    "theory": {"report": "theory/report.html"},
    "rerank": {"report": "rerank/report.html"},
    "search": {"report": "found/report.html"},
    "label": {"report": "o/report.html", "num_problems": 1},
}


def invoke(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), catch_exceptions=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_object_and_quiet_is_quiet(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if name in NEEDS:
        invoke(COMMANDS[NEEDS[name]])
    shown = invoke(f"{COMMANDS[name]} --json")
    assert shown.exit_code == 0
    assert len(shown.stdout.splitlines()) == 1
    found = json.loads(shown.stdout)
    assert {key: found[key] for key in FACTS[name]} == FACTS[name]
    quiet = invoke(f"{COMMANDS[name]} -q")
    assert quiet.exit_code == 0
    assert quiet.stderr == ""
    plain = invoke(f"{COMMANDS[name]} -v")
    assert plain.stdout == quiet.stdout != "", "a result, whatever else is shown"


def test_every_command_is_tried() -> None:
    tried = {line.split()[0] for line in COMMANDS.values()}
    assert sorted(NAMES) == sorted([*tried, "demo", "grpo", "serve"]), "these have tests of their own"


def test_verbose_shows_where_an_error_arose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for flag, shown in (("-v", True), ("-q", False)):
        result = CliRunner().invoke(app, f"rerank nosuch.jsonl --out o {flag}".split())
        assert isinstance(result.exception, PrismError)
        assert ("Traceback" in result.stderr) == shown


def test_records_and_json_do_not_mix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(PrismError, match="--json needs --out"):
        invoke("export pairs --format jsonl --json")


@pytest.mark.parametrize("no_color", [False, True])
def test_colors(
    no_color: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prism_prm.cli.ui import standard_error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.argv", ["prism", "pairs", "nosuch.jsonl", "--out", "o"])
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    standard_error.cache_clear()
    with pytest.raises(SystemExit):
        main()
    standard_error.cache_clear()
    assert ("\x1b[31m" in capsys.readouterr().err) == (not no_color)


def help_of(*words: str, columns: int = 80) -> str:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": str(columns), "TERM": "dumb"}).stdout


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_one_screen(name: str) -> None:
    """80 columns and 50 lines, with every option and an example."""
    lines = help_of(name, "--help").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50
    shown = "\n".join(lines)
    command = app.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    flags = [flag for option in command.params for flag in option.opts if flag.startswith("-")]
    assert len([option for option in command.params if option.param_type_name == "option"]) <= 25
    short = {"--quiet", "--verbose", "--help"}  # shown as -q, -v and -h
    assert [flag for flag in flags if flag not in short and not re.search(rf"(?<![\w-]){flag}(?![\w-])", shown)] == []
    assert re.search(r"^Examples\n  # ", shown, re.M)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_described_in_whole_sentences(name: str) -> None:
    """They stand alone in the help and in the tables of the docs."""
    shown = help_of(name, "--help-all", columns=100)
    assert max(map(len, shown.splitlines())) <= 100
    command = options.load(name)
    in_options = {command.setting(flag).name for flag in command.options}
    for setting in command.known.values():
        assert re.match(r"[A-Z`$]", setting.text) or setting.text.split(":")[0].split(" ")[0].islower(), setting
        assert setting.text.endswith((".", "}", "…")), setting
        assert setting.name.rpartition(".")[2] in shown or setting.name in {*in_options, command.argument}, setting.name


def test_shells_complete_options() -> None:
    words = {"_PRISM_COMPLETE": "bash_complete", "COMP_WORDS": "prism rerank --aggr", "COMP_CWORD": "2"}
    found = CliRunner().invoke(app, [], prog_name="prism", env=words)
    assert "--aggregators" in found.stdout


def test_what_is_off_by_default_has_no_switch_to_turn_it_off() -> None:
    shown = help_of("compare", "--help")
    assert "--rounds" in shown
    assert "--no-rounds" not in shown
