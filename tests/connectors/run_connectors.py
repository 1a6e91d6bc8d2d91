"""`make test-connectors`: build one environment per framework, start a server with the shipped PRM, and run the tests.

    .venv/bin/python tests/connectors/run_connectors.py [NAME …] [-- pytest options]

Environments stay in .venv-connectors/NAME; one is built again when its packages below change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from samples import SEARCH

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / ".venv-connectors"
LIGHT = ["click", "httpx", "msgspec", "numpy", "rich", "tomli-w", "xxhash", "pytest"]
"""What prism-prm needs for a PRM behind a URL."""
GRADING = ["latex2sympy2-extended>=1.10.2"]
"""What it needs to compare answers."""
LOCAL = [*LIGHT, *GRADING, "torch==2.13.0", "accelerate", "jinja2", "peft", "safetensors", "scipy"]
"""What it needs to load a PRM, beside transformers."""
PACKAGES: dict[str, list[list[str]]] = {
    "verl": [
        ["verl==0.9.1", "TransferQueue", "transformers<5.11", "packaging<26", *LOCAL],
        ["cachetools", "fastapi", "uvicorn"],  # which it imports, and does not name
    ],
    "openrlhf": [
        ["transformers==5.15.0", "ray==2.55.0", "aiohttp", "datasets", "einops", "pylatexenc", *LOCAL],
        ["--no-deps", "openrlhf==0.11.2"],
    ],
    "verifiers": [["verifiers==0.4.0", *LIGHT, *GRADING]],
    "swift": [["ms-swift==4.6.0", "trl<1.0", *LOCAL]],
    "inspect": [["inspect-ai==0.3.285", "openai==3.49.0", *LIGHT, *GRADING]],
    "reward_hub": [["reward_hub==0.1.10", *LIGHT]],
}
"""Arguments of `pip install`, one list per call. torch is that of constraints.txt: newer ones would pull in CUDA."""


def build(name: str) -> Path:
    """The Python of a framework's environment, with what is in PACKAGES."""
    folder = HERE / name
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(" ".join(arguments) for arguments in PACKAGES[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch = HERE / "torch.txt"
        torch.write_text(re.findall(r"^torch==.*\n", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0])
        for arguments in PACKAGES[name]:
            subprocess.run([*pip, "-c", torch, *arguments], check=True)
        subprocess.run([*pip, "--no-deps", "-e", ROOT], check=True)
        stamp.write_text(wanted)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        print(f"{name}: built in {time.monotonic() - started:.0f} s, {size / 1e9:.1f} GB", flush=True)
    return python


def serve(log: Path) -> tuple[subprocess.Popen[str], str]:
    """A server with the shipped PRM and the policy of samples.py, and its address."""
    code = "import prism_prm; print(prism_prm.example_folder('prism'))"
    place = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    model = f"Qwen/Qwen2.5-Math-PRM-7B={place}"  # the only name that reward_hub accepts
    policy = f"tiny=hf:{HERE / 'searched' / 'policy'}"
    command = [sys.executable, "-m", "prism_prm", "serve", "--prm", model, "--port", "0", "--for-training"]
    command += ["--policy", policy, *SEARCH]
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True)
    for _ in range(1200):
        text = log.read_text()
        address = re.search(r"http://127\.0\.0\.1:\d+", text)
        if address and "Ready" in text:
            return server, address.group()
        if server.poll() is not None:
            break
        time.sleep(0.1)
    server.terminate()
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def main() -> None:
    """Test the named frameworks, or all."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:cut] or list(PACKAGES), arguments[cut + 1 :]
    if unknown := sorted(set(names) - set(PACKAGES)):
        raise SystemExit(f"Unknown frameworks {unknown}. Known: {', '.join(PACKAGES)}.")
    HERE.mkdir(exist_ok=True)
    expected = HERE / "expected.json"
    subprocess.run([sys.executable, ROOT / "tests" / "connectors" / "samples.py", expected], check=True)
    server, address = serve(HERE / "server.log")
    failed = []
    try:
        for name in names:
            started = time.monotonic()
            python = build(name)
            environment = os.environ | {
                "PRISM_CONNECTORS": name, "PRISM_SERVER": address, "PRISM_EXPECTED": str(expected),
                "PRISM_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            }  # fmt: skip
            folder = ROOT / "tests" / "connectors"
            command = [python, "-m", "pytest", folder, "--confcutdir", folder, "-p", "no:cacheprovider", *options]
            print(f"== {name}", flush=True)
            # pyproject's options belong to plugins that only prism-prm's own environment has
            run = subprocess.run([*command, "-o", "addopts=-ra", "-o", "filterwarnings="], env=environment, check=False)
            failed += [name] if run.returncode else []
            print(f"{name}: {time.monotonic() - started:.0f} s in all", flush=True)
    finally:
        server.terminate()
        server.wait(60)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
