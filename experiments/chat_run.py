"""The endpoint of `prism serve --policy` against `prism search`: a real policy, problems of GSM8K, one seed.

llama.cpp (`pip install xllamacpp`) serves the policy from a GGUF file. For each rule, `prism search` runs first. Then
inspect_ai asks the endpoint for the same problems, and the `openai` client asks for the first one, plain and streamed.
llama.cpp's texts depend on what it computed before (other slots, its prompt cache), so it is restarted for each
side, has one slot, and gets the same requests in the same order.

Run: python experiments/chat_run.py --gguf MODEL.gguf --tokenizer FOLDER --prm FOLDER --gsm8k test.jsonl \
       --llama-python PYTHON --inspect-python PYTHON --problems 10 --out runs/chat
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pyarrow.parquet as pq

from prism_prm.data.pools import read_pool

RULES = {"best-of-4": ["--method", "best-of-n", "--select", "argmax"], "beam-4": ["--method", "beam"]}
"""Name at the endpoint → options of `prism search`."""
USER = (
    "{problem} Reply with one short equation per step, a blank line after each, and no other words. End with: The "
    "answer is NUMBER."
)
LLAMA = """
import sys, threading, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.n_parallel, options.n_ctx = sys.argv[1], 1, 2048
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
options.hostnames, options.port = ["127.0.0.1"], 0
server = xllamacpp.Server(options)
print("listening at", server.listening_address, flush=True)
threading.Event().wait()
"""
INSPECT = """
import json, sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate
url, name, problems, folder = sys.argv[1:]
rows = [json.loads(line) for line in open(problems)]
samples = [Sample(input=row["problem"], target=row["answer"], id=i) for i, row in enumerate(rows)]
task = Task(dataset=samples, solver=generate(), scorer=match(numeric=True))
model = get_model(f"openai-api/searched/{name}", base_url=url, api_key="none")
(log,) = eval(task, model=model, log_dir=folder, display="none", max_samples=1, max_connections=1)
assert log.status == "success", log.error
outputs = [(one.output, one.scores["match"].value == "C") for one in log.samples]
print(json.dumps([[output.completion, right, output.usage.output_tokens] for output, right in outputs]))
"""


@contextlib.contextmanager
def started(command: list[str], ready: str, log: Path) -> Iterator[str]:
    """Run a server until the block ends; yields its address once its log says that it is ready."""
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            while ready not in (text := log.read_text(errors="replace")):
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} did not start; see {log}")
                time.sleep(0.2)
            yield f"{re.findall('istening (?:at|on) (http://[0-9.]+:[0-9]+)', text)[0]}/v1"
        finally:
            process.terminate()


def policy_of(given: argparse.Namespace, url: str, name: str) -> list[str]:
    """The options of both commands."""
    options = [f"tokenizer={given.tokenizer}", f"user={USER}", "concurrency=1"]
    options += [f"{name}={given.max_tokens}" for name in ("max_tokens", "max_step_tokens")]
    return ["--policy", f"{name}openai:{url}", "--prm", f"prm={given.prm}", "--set", "seed=1"] + [
        word for option in options for word in ("-P", option)
    ]


def searched(given: argparse.Namespace, rule: str, problems: Path) -> list[dict[str, Any]]:
    """By problem, the text that `prism search` chooses, and whether it is right."""
    out = given.out / rule
    shutil.rmtree(out, ignore_errors=True)
    with started([given.llama_python, "-c", LLAMA, str(given.gguf)], "listening at", given.out / "llama.log") as url:
        command = [sys.executable, "-m", "prism_prm", "search", *policy_of(given, url, ""), *RULES[rule], "-n", "4"]
        more = ["--task", str(problems), "--set", "at_once=1", "--out", str(out)]
        subprocess.run([*command, *more], check=True)
    pool = read_pool(str(out / "pools" / "prm-n4.jsonl")).problems
    found: list[dict[str, Any]] = [{"text": None, "right": False} for _ in pool]
    for row in pq.read_table(out / "solutions" / "prm-n4.parquet").to_pylist():
        if row["chosen"]:
            steps = pool[row["problem_id"]].solutions[row["solution"]].steps
            found[row["problem_id"]] = {"text": "\n\n".join(steps), "right": bool(row["correct"])}
    return found


def asked(given: argparse.Namespace, rule: str, problems: Path) -> tuple[list[Any], bool]:
    """What inspect_ai gets and finds right; whether the openai client gets the same, plain and streamed."""
    llama = [given.llama_python, "-c", LLAMA, str(given.gguf)]
    first = json.loads(problems.read_text().splitlines()[0])["problem"]
    with contextlib.ExitStack() as stack:
        policy = stack.enter_context(started(llama, "listening at", given.out / "llama.log"))
        serve = [sys.executable, "-m", "prism_prm", "serve", "--port", "0", *policy_of(given, policy, "qwen=")]
        url = stack.enter_context(started(serve, "Ready", given.out / "serve.log"))
        run = [given.inspect_python, "-c", INSPECT, url, f"qwen@{rule}", str(problems), str(given.out / "inspect")]
        found = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
        client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none"))
        ask: dict[str, Any] = {"model": f"qwen@{rule}", "messages": [{"role": "user", "content": first}]}
        plain = client.chat.completions.create(**ask).choices[0].message.content
        chunks = list(client.chat.completions.create(**ask, stream=True))
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return found, plain == streamed == found[0][0]


def main() -> None:
    """Run both sides of every rule, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gguf", "tokenizer", "prm", "gsm8k", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--llama-python", default=sys.executable, help="the Python that has xllamacpp")
    parser.add_argument("--inspect-python", default=sys.executable, help="the Python that has inspect_ai and openai")
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--shortest", action="store_true", help="the shortest questions instead of the first")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in given.gsm8k.read_text().splitlines()]
    rows = (sorted(rows, key=lambda row: len(row["question"])) if given.shortest else rows)[: given.problems]
    task = [{"problem": row["question"], "answer": row["answer"].rpartition("#### ")[2]} for row in rows]
    problems = given.out / "problems.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in task))
    for rule in given.rules:
        expected = searched(given, rule, problems)
        found, is_same = asked(given, rule, problems)
        same = sum(one["text"] in (None, text) for one, (text, _, _) in zip(expected, found, strict=True))
        (given.out / f"{rule}.json").write_text(json.dumps({"search": expected, "endpoint": found}, indent=1))
        print(
            f"{rule}: {len(rows)} problems, prism search {sum(one['right'] for one in expected)} right, inspect_ai "
            f"{sum(right for _, right, _ in found)} right; {same} texts equal, openai plain = streamed = inspect: "
            f"{is_same}; {sum(tokens for *_, tokens in found)} tokens",
            flush=True,
        )


if __name__ == "__main__":
    main()
