"""What every command shows: results on standard output, all else on standard error; --json, -q, -v, colours, help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prism_prm import init_prm
from prism_prm.cli import app, main
from prism_prm.errors import PrismError

NAMES = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
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
    "pairs": "pairs trl.jsonl --lookahead-audit off --out pairs",
    "export": "export pairs --format jsonl --out pairs.jsonl",
    "score": "score pool.jsonl --prm prm --out s.parquet",
    "look": "look pool.jsonl --prm prm",
    "margins": "margins pairs --prm prm --out m.parquet",
    "plan": "plan recipe.toml --gpu h100",
    "train": "train recipe.toml --out run",
    "eval": "eval --bench labeled --data trl.jsonl --prm prm --draws 100 --out eval",
    "view": "view eval --out page.html",
    "compare": "compare a=eval b=eval --draws 100 --out compare",
    "theory": "theory --no-simulate --out theory",
    "rerank": "rerank pool.jsonl --scores s.parquet --judges 1 --draws 100 --out rerank",
    "search": "search --policy hf:policy --task task.jsonl --method greedy --judges 1 --template none --out search",
    "label": "label task.jsonl --policy hf:policy --rollouts 2 --judges 1 --template none --max-tokens 40 --out label",
}
"""In an order in which each finds what it needs; `demo` is tested with its own."""
FACTS = {
    "pairs": {"trees": 12},
    "export": {"out": "pairs.jsonl", "records": 36},
    "score": {"out": "s.parquet", "trees": 2, "steps": 3, "too_long": 0},
    "look": {},
    "margins": {"out": "m.parquet", "pairs": 36},
    "plan": {"kind": "training"},
    "train": {"best": "run/rounds/1_all"},
    "eval": {"report": "eval/report.html"},
    "view": {"out": "page.html", "documents": [{"kind": "errors", "title": "prm on labeled"}]},
    "compare": {"report": "compare/report.html"},
    "theory": {"report": "theory/report.html"},
    "rerank": {"report": "rerank/report.html"},
    "search": {"report": "search/report.html"},
    "label": {"report": "label/report.html", "num_problems": 1},
}


def invoke(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), catch_exceptions=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_object_and_quiet_is_quiet(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
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
    assert sorted(NAMES) == sorted([*COMMANDS, "demo", "grpo", "serve"]), "these have tests of their own"


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
def test_colours(
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


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_eighty_columns(name: str) -> None:
    """No line is longer, no option is cut, and every text is a whole sentence."""
    import typer

    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, [], resilient_parsing=True) as context:
        for option in context.command.params:
            for flag in getattr(option, "opts", []) + getattr(option, "secondary_opts", []):
                assert not flag.startswith("-") or re.search(rf"(?<![\w-]){flag}(?![\w-])", shown), flag
            text = (getattr(option, "help", None) or "").strip()
            assert re.match(r"[A-Z`]", text) or text.split(":")[0].islower(), f"{option.name}: {text}"
            assert text.endswith((".", "}", "…")), f"{option.name}: {text}"


def test_shells_complete_options() -> None:
    words = {"_PRISM_COMPLETE": "complete_bash", "COMP_WORDS": "prism rerank --aggr", "COMP_CWORD": "2"}
    found = CliRunner().invoke(app, [], prog_name="prism", env=words)
    assert found.stdout.split() == ["--aggregators"]
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize("name", NAMES)
def test_help_leaves_out_what_tells_nothing(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
    assert "<bool>" not in shown
    assert not re.search(r"x<=\d{6}", shown), "limits that only guard against overflow"
    assert "Examples" in shown
    assert shown.count("• ") == len(re.findall(r"^ +(?:prism|accelerate launch) ", shown, re.M)), "remark, then command"


def test_a_limit_that_the_help_leaves_out_still_holds() -> None:
    found = CliRunner().invoke(app, ["compare", "a", "b", "--out", "c", "--draws", "2000000"])
    assert found.exit_code == 2
    assert "--draws" in found.output


@pytest.mark.parametrize("name", ["eval", "margins"])
def test_help_explains_only_the_choices_there_are(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
    assert "<error|drop-left-steps>" in shown
    assert "(skip, where offered)" not in shown
    assert "without a score (skip)" not in shown


def test_what_is_off_by_default_has_no_switch_to_turn_it_off() -> None:
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).stdout
    assert "--rounds" in shown
    assert "--no-rounds" not in shown
