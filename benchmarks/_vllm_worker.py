"""Scores token sequences with vLLM's offline engine, for against_vllm.py; runs with the Python of vLLM's environment.

Reads one JSON line per request from standard input: {"ids": file with a JSON list of token ids per sequence,
"scores": file to write}. Answers each with one line: {"seconds": …}; the first line, {}, says that the model is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    folder, dtype, context, tag = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")  # vLLM logs to standard output
    os.dup2(2, 1)
    from vllm import LLM

    engine = LLM(
        folder, runner="pooling", dtype=dtype, max_model_len=int(context), enforce_eager=True,
        pooler_config={"step_tag_id": int(tag)},
    )  # fmt: skip
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        sequences = json.loads(Path(request["ids"]).read_text())
        prompts = [{"prompt_token_ids": ids} for ids in sequences]
        started = time.perf_counter()
        found = engine.encode(prompts, pooling_task=engine.pooling_task, use_tqdm=False)
        seconds = time.perf_counter() - started
        rows = [one.outputs.data.float()[:, 1].tolist() for one in found]
        Path(request["scores"]).write_text(json.dumps(rows))
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
