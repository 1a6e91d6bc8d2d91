"""Mistakes that a look at the disc shows end a command at once: before torch is imported, and before long work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prism_prm.cli.options import COMMANDS
from prism_prm.errors import PrismError
from prism_prm.paths import is_hub_id, nearest

RUN = """
import contextlib, io, json, sys
from prism_prm.cli import main
found = {}
for line in json.loads(sys.argv[1]):
    said = io.StringIO()
    sys.argv = ["prism", *line.split("|")]
    with contextlib.redirect_stderr(said):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    found[line] = [code, said.getvalue(), "torch" in sys.modules]
sys.stdout.write(json.dumps(found))
"""
"""Runs command lines one after the other in a process that has not imported torch."""

CASES = {
    # line of the command, words between bars → what the message must say
    "pairs|nosuch.jsonl|--out|out": "nosuch.jsonl: no such file or folder",
    "pairs|own.jsnl|--out|out": "Did you mean own.jsonl?",
    "pairs|own.jsonl|--out|": '--out "": is empty',
    "pairs|own.jsonl|--out|out.parquet": "--out out.parquet: looks like the name of a file; name a folder, e.g. out",
    "export|nosuch|--format|jsonl|--out|o.jsonl": "nosuch: no such file; `prism pairs` writes it",
    "export|nosuch|--format|jsonl|--out|o.csv": "--out o.csv: the file will be .jsonl; name it e.g. o.jsonl",
    "export|nosuch|--format|jsonl|--out|": '--out "": is empty',
    "score|own.jsonl|--prm|nosuch|--out|s.parquet": "nosuch: there is no such model folder.",
    "score|own.jsonl|--prm|prms/bse|--out|s.parquet": "no such model folder. Did you mean prms/base?",
    "score|own.jsonl|--prm|prms|--out|s.parquet": "so this is not a model folder; did you mean prms/base",
    "score|own.jsonl|--prm|own.jsonl|--out|s.parquet": "own.jsonl: this is a file; name a model folder",
    "score|own.jsonl|--prm|empty|--out|s.parquet": "empty: no .safetensors file, so there are no weights to load",
    "score|own.jsonl|--prm|torn|--out|s.parquet": "torn: its config.json cannot be read",
    "score|own.jsonl|--prm|run|--out|s.parquet": "run/run.json: not what `prism train` writes there",
    "score|own.jsonl|--prm|prms/base|--family|qwne|--out|s.parquet": "Unknown family 'qwne'",
    "score|own.jsonl|--prm|prms/base|--set|load.adapter=prms|--out|s.parquet": "prms: no adapter_config.json",
    "score|nosuch.jsonl|--prm|prms/base|--out|s.parquet": "nosuch.jsonl: no such file or folder",
    "score|own.jsonl|--prm|prms/base|--out|s.csv": "--out s.csv: the file will be .parquet; name it e.g. s.parquet",
    "score|own.jsonl|--prm|prms/base|--out|prms": "--out prms: is a directory; name a file",
    "score|own.jsonl|--prm|prms/base|--out|own.jsonl/s.parquet": "own.jsonl is a file, not a folder",
    "score|own.jsonl|--prm|prms/base|--out|s.parquet|--store|": '--store "": is empty',
    "score|own.jsonl|--prm|nosuch|--show": "nosuch: there is no such model folder.",
    "score|nosuch.jsonl|--prm|prms/base|--show": "nosuch.jsonl: no such file or folder",
    "score|own.jsonl|--prm|prms/base|--prm|prms/base|--show": "Two PRMs are called 'base'",
    "score|own.jsonl|--prm|prms/base|--family|qwne|--show": "Unknown family 'qwne'",
    "score|own.jsonl|--prm|prms/base|--threshold|2|--show": "--threshold 2: must be",
    "score|own.jsonl|--prm|prms/base|--out|s.parquet|-R|workers=2": "-R workers=2: needs --ray",
    "score|own.jsonl|--prm|nosuch|--out|s.parquet|--ray": "nosuch: there is no such model folder",
    "score|--ray|nosuch.jsonl|--prm|prms/base|--out|s.parquet": "nosuch.jsonl: no such file or folder",
    "score|own.jsonl|--prm|prms/base|--out|s.parquet|--ray|auto|-R|workers=0": "-R workers=0: must be 1 or more",
    "score|own.jsonl|--prm|prms/base|--out|s.parquet|--ray=head": "--ray head: must be HOST:PORT",
    "score|pairs|--prm|nosuch|--out|m.parquet|--pairs": "nosuch: there is no such model folder",
    "score|nosuch|--prm|prms/base|--out|m.parquet|--pairs": "nosuch: no such file; `prism pairs` writes it",
    "score|nosuch|--prm|prms/base|--out||--pairs": '--out "": is empty',
    "train|nosuch.toml|--plan=a6000": "nosuch.toml: no such file",
    "train|--plan=a6000": "Missing argument 'RECIPE'",
    "train|recipe.toml|--plan=mine": "Unknown GPU 'mine'. Known: rtx3090",
    "train|recipe.toml|--plan=0xa6000": "--plan 0xa6000: must be a GPU, or several as in 4xa6000",
    "train|recipe.toml|--plan=a6000": "nosuch.jsonl: no such file or folder",
    "train|recipe.toml|--set|data.inputs=['own.jsonl']|--plan=a6000": "nosuch: there is no such model folder",
    "train|recipe.toml|--set|data.inputs=['own.jsonl']|--set|plan.config=nosuch|--plan": "nosuch: neither a folder",
    "score|own.jsonl|--plan=a6000": "no PRM: name one with --prm",
    "score|own.jsonl|--prm|prms/bse|--plan=a6000": "no such model folder. Did you mean prms/base?",
    "train|grpo.toml|--plan=a6000": "Unknown keys",
    "train|nosuch.toml": "nosuch.toml: no such file",
    'train|recipe.toml|--set|data.inputs=["own.jsonl"]': "nosuch: there is no such model folder",
    "train|recipe.toml|--set|base.prm=prms/base": "nosuch.jsonl: no such file or folder",
    "train|recipe.toml|--out|": '--out "": is empty',
    "train|recipe.toml|--out|own.jsonl": "--out own.jsonl: is a file; name a folder",
    "train|recipe.toml|--set|train.lr=-1": "train.lr",
    "calibrate|--data|own.jsonl|--prm|nosuch|--target|f1": "nosuch: there is no such model folder",
    "calibrate|--data|nosuch.jsonl|--prm|prms/base|--target|f1|--out|out": "nosuch.jsonl: no such file or folder",
    "calibrate|--data|own.jsonl|--prm|some/prm|--target|f1": "some/prm is not a folder with a prism.json, so",
    "calibrate|--data|own.jsonl|--prm|prms/base": "no target: name one with --target",
    "eval|--bench|labeled|--data|own.jsonl|--prm|nosuch|--out|out": "nosuch: there is no such model folder",
    "eval|--bench|labeled|--data|nosuch.jsonl|--prm|prms/base|--out|out": "nosuch.jsonl: no such file or folder",
    "eval|--bench|labeled|--data|own.jsonl|--predictions|p.jsonl|--out|out": "p.jsonl: no such file or folder",
    "eval|--bench|labeled|--data|own.jsonl|--scores|s.parquet|--out|out": "s.parquet: no such file or folder",
    "eval|--bench|labeled|--data|own.jsonl|--prm|prms/base|--trained-on|t.jsonl|--out|out": "t.jsonl: no such file",
    "eval|--bench|labeled|--data|own.jsonl|--prm|x|--scores|s.parquet|--out|out": "give one of --prm, --scores and",
    "eval|--bench|labeled|--data|own.jsonl|--prm|prms/base|--out|": '--out "": is empty',
    "eval|--bench|labeled|--data|own.jsonl|--prm|nosuch|--threshold|prm|--out|out": "nosuch: there is no such model",
    "compare|a=nosuch|b=nosuch|--out|out": "nosuch/metrics.json: no such file",
    "compare|a=nosuch|b=nosuch|--out|out.html": "--out out.html: looks like the name of a file",
    "theory|--runs|nosuch|--runs|nosuch|--out|out": "nosuch/metrics.json: no such file",
    "theory|--pool|nosuch.jsonl|--out|out": "nosuch.jsonl: no such file or folder",
    "theory|--pool|pool.jsonl|--scores|s.parquet|--out|out": "s.parquet: no such file or folder",
    "theory|--out|own.jsonl": "--out own.jsonl: is a file; name a folder",
    "rerank|nosuch.jsonl|--out|out": "nosuch.jsonl: no such file or folder",
    "rerank|pool.jsonl|--prm|nosuch|--out|out": "nosuch: there is no such model folder",
    "rerank|pool.jsonl|--scores|s.parquet|--out|out": "s.parquet: no such file or folder",
    "rerank|pool.jsonl|--prm|a=prms/base|--scores|a=own.jsonl|--out|out": "Two sets of scores are called 'a'",
    "rerank|pool.jsonl|--task|nosuch.jsonl|--out|out": "nosuch",
    "rerank|pool.jsonl|--set|since=yesterday|--out|out": "since = 'yesterday': must be a day, such as 2024-08-01",
    "rerank|pool.jsonl|--out|": '--out "": is empty',
    "search|--policy|hf:nosuch|--task|task.jsonl|--method|greedy|--out|out": "nosuch: there is no such model folder",
    "search|--policy|hf:prms/base|--task|task.jsonl|--prm|nosuch|--method|beam|--out|out": "nosuch: there is no such",
    "search|--policy|hf:prms/base|--task|nosuch.jsonl|--method|greedy|--out|out": "nosuch",
    "search|--policy|openai:http://:x/v1|--task|task.jsonl|--method|greedy|--out|out": "is not the address of a server",
    "search|--policy|openai:http://h:99999/v1|--task|task.jsonl|--method|greedy|--out|out": "is not the address of a",
    "search|--policy|hf:prms/base|--task|task.jsonl|--set|until=2024-1|--method|greedy|--out|out": "until = '2024-1'",
    "search|--recipe|nosuch.toml|--out|out": "nosuch.toml: no such file",
    "search|--policy|hf:nosuch|--task|task.jsonl|--method|greedy|--out|out|--ray": "nosuch: there is no such",
    "label|task.jsonl|--policy|hf:prms/base|--out|out|-R|workers=2": "-R workers=2: needs --ray",
    "search|--policy|hf:prms/base|--task|task.jsonl|--method|greedy|--out|": '--out "": is empty',
    "label|task.jsonl|--policy|hf:nosuch|--out|out": "nosuch: there is no such model folder",
    "label|nosuch.jsonl|--policy|hf:prms/base|--out|out": "nosuch",
    "label|--policy|hf:prms/base|--out|out": "no task: name one, e.g. math-500, or a file of problems with answers",
    "label|task.jsonl|--out|out": "no policy: give one with --policy",
    "label|task.jsonl|--policy|hf:prms/base|--second-policy|hf:nosuch|--out|out": "nosuch: there is no such model",
    "label|task.jsonl|--policy|hf:prms/base|--consensus|nosuch|--out|out": "nosuch: there is no such model folder",
    "label|task.jsonl|--policy|hf:prms/base|--consensus|critic:x|--out|out": "'critic:x' is not a critic",
    "label|task.jsonl|--policy|hf:prms/base|--check|nosuch.jsonl|--out|out": "nosuch.jsonl: no such file or folder",
    "label|task.jsonl|--policy|hf:prms/base|--rule|all|--out|out": "Unknown label rule 'all'. Known: any, half",
    "label|task.jsonl|--policy|hf:prms/base|--rule|soft|--method|binary|--out|out": "binary stops at a threshold",
    "label|task.jsonl|--policy|hf:prms/base|--rollouts|0|--out|out": "--rollouts 0: must be 1 or more",
    "label|--recipe|nosuch.toml|--out|out": "nosuch.toml: no such file",
    "label|task.jsonl|--policy|hf:prms/base|--out|": '--out "": is empty',
    "grpo|nosuch.toml": "nosuch.toml: no such file",
    "grpo|grpo.toml": "nosuch: there is no such model folder",
    "grpo|grpo.toml|--set|policy=prms/base|--set|prm=prms/bse": "no such model folder. Did you mean prms/base?",
    "grpo|grpo.toml|--set|problems.num_held_out=0": "--set problems.num_held_out=0: must be 1 or more",
    "grpo|grpo.toml|--set|monitor.every=-1": "--set monitor.every=-1: must be 0 or more",
    "grpo|grpo.toml|--set|credit=x": "Unknown credit 'x'",
    "grpo|grpo.toml|--out|own.jsonl": "--out own.jsonl: is a file; name a folder",
    "view|nosuch|--out|page.html": "nosuch: no such file or folder.",
    "view|prms|--out|page.html": "prms: no results to show; expected an evaluation (`prism eval`)",
    "view|prms|--out|page.txt": "--out page.txt: the file will be .html; name it e.g. page.html",
    "serve|--results|nosuch": "nosuch: no such file or folder.",
    "serve": "nothing to serve; name a PRM with --prm, or results with --results",
    "serve|--prm|nosuch": "nosuch: there is no such model folder.",
    "serve|--prm|m=prms/base|--prm|m=prms/base": "Two PRMs are called 'm'",
    "serve|--prm|prms/base|--family|qwne": "Unknown family 'qwne'",
    "serve|--prm|prms/base|--host|0.0.0.0": "--host 0.0.0.0: other machines could use this server without a key.",
    "serve|--prm|c=critic:openai:nosuch": "'nosuch' is not the address of a server",
    "serve|--prm|prms/base|--keys|nosuch": "--keys nosuch: cannot be read",
    "serve|--prm|prms/base|--port|70000": "--port",
    "serve|--prm|prms/base|--set|deadline=0": "--set deadline=0: must be above 0",
    "score|own.jsonl|--prm|vllm:nosuch|--out|s.parquet": "'nosuch' is not the address of a server",
    "score|own.jsonl|--prm|prism:http://x:1|--set|load.check=true|--out|s.parquet": "with --set load.local",
    "score|own.jsonl|--prm|vllm:http://x:1|--set|load.local=nosuch|--out|s.parquet": "nosuch: there is no such",
    "demo|--out|": '--out "": is empty',
    "demo|--out|own.jsonl": "--out own.jsonl: is a file; name a folder",
    "demo|--out|own.jsonl/below": "own.jsonl is a file, not a folder",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Command → status, message, and whether torch was imported."""
    folder = tmp_path_factory.mktemp("before-torch")
    (folder / "own.jsonl").write_text('{"problem": "2 + 3?", "steps": ["2 + 3 = 5", "so 5"], "label": 1, "id": "1"}\n')
    (folder / "pool.jsonl").write_text('{"problem": "2 + 3?", "answer": "5", "solutions": ["\\\\boxed{5}", "6"]}\n')
    (folder / "task.jsonl").write_text('{"problem": "2 + 3?", "answer": "5"}\n')
    (folder / "recipe.toml").write_text('[data]\ninputs = ["nosuch.jsonl"]\n[base]\nprm = "nosuch"\n')
    (folder / "grpo.toml").write_text('policy = "nosuch"\n[problems]\ntrain = "task.jsonl"\n')
    for name in ("prms/base", "empty", "torn", "run"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "prms/base/model.safetensors").write_bytes(b"")
    (folder / "torn/config.json").write_text('{"model_type": ')
    (folder / "run/config.json").rename(folder / "run/recipe.toml")
    (folder / "run/run.json").write_text('{"best": 3}')
    before = set(folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(list(CASES))], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    left = sorted(path.relative_to(folder).as_posix() for path in set(folder.rglob("*")) - before)
    return {**json.loads(done.stdout), "left": left}


@pytest.mark.parametrize("line", CASES)
def test_a_mistake_costs_no_time(line: str, found: dict[str, Any]) -> None:
    code, said, has_torch = found[line]
    assert code == 2, said
    assert CASES[line] in " ".join(said.split())
    assert said.startswith("error: "), "one line, and no traceback"
    assert len(said.splitlines()) == 1
    assert not has_torch


def test_nothing_is_left_behind(found: dict[str, Any]) -> None:
    assert found["left"] == []


def test_every_command_is_in_the_table() -> None:
    assert {line.split("|")[0] for line in CASES} == set(COMMANDS)


def test_a_hub_id_is_not_a_mistyped_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "my-prm").mkdir(parents=True)
    assert is_hub_id("Qwen/Qwen2.5-Math-PRM-7B")
    for name in ("runs/my-prn", "my-prm", "./a/b", "/a/b", "~/a", "a/b/c", "a/", "/b", "", "..", "../b"):
        assert not is_hub_id(name), name
    assert nearest("runs/my-prn") == " Did you mean runs/my-prm?"
    assert nearest("rnus/my-prm") == " Did you mean runs?"
    assert nearest("quite/else") == ""


def test_the_hub_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection the hub's own client, which would try for half a minute, is only asked for its cache."""
    import huggingface_hub

    from prism_prm.models.model_files import local_folder

    asked: list[bool] = []

    def snapshot_download(name: str, *, local_files_only: bool, **_: object) -> str:
        asked.append(local_files_only)
        raise OSError(f"{name} is not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(PrismError, match=r"^some/prm: there is no such folder, and http://127\.0\.0\.1:9 cannot be"):
        local_folder("some/prm")
    assert asked == [True]
