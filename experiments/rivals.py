"""Rivals of a PRM on real pools: token probabilities and features of small language models, and a cross-fitted ORM.

`read` runs a language model over the first solutions of each problem, and writes one JSON line per problem: for each
solution its confidences, and the last layer's activations at its end. It resumes. `scores` writes this part of the pool
and score files for `prism rerank --scores`: those of given PRMs, each confidence, and an ORM, a logistic
regression on the activations that is fitted on the other folds of problems. The last two have one score per solution.

Run: prism rerank POOL --out graded    # grades the solutions
     python experiments/rivals.py read MODEL POOL read.jsonl --problems 60 --solutions 8
     python experiments/rivals.py scores POOL read.jsonl graded FOLDER --scores qwen=FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from prism_prm.backends.load_prm import open_prm
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.backends.rivals import LARGE, SUMMARIES, Confidence, LocalTokens
from prism_prm.data.pools import Pool, read_pool
from prism_prm.models.language_module import LanguageModule, log_probability, self_certainty, top_confidence
from prism_prm.models.packing import encode_tree, pack
from prism_prm.tree import ROOT, Step, StepTree

MEASURES = (log_probability, self_certainty, top_confidence)
KINDS = {"logprob": (0, 1), "self-certainty": (1, 1), "lowest-group": (2, 64), "tail": (2, 64)}
"""Confidence → its measure and its window: DeepConf's 2,048 tokens would be whole solutions here."""
FOLDS = 5
STRENGTH = 1e-3
"""The inverse of the ORM's L2 penalty: there are more features than problems."""


def together(trees: list[StepTree]) -> tuple[StepTree, list[list[int]]]:
    """The solutions of a problem as one tree, and the nodes of each."""
    nodes: list[Step] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    for tree in trees:
        start = len(nodes)
        paths.append([start + node for node in range(len(tree.nodes))])
        nodes += tree.nodes
        parents += [parent if parent == ROOT else start + parent for parent in tree.parents]
    return StepTree(0, trees[0].problem, tuple(nodes), tuple(parents), ()), paths


def read(model: str, pool: Pool, out: Path, problems: int, solutions: int, dtype: str) -> None:
    """Write the confidences and activations of the first solutions of each problem."""
    torch.set_num_threads(1)
    scorer = open_prm(f"logprob:hf:{model}", PrmOptions(dtype=dtype))
    assert isinstance(scorer, Confidence)
    assert isinstance(scorer.source, LocalTokens)
    prm = scorer.source.prm
    module = prm.module.eval()
    assert isinstance(module, LanguageModule)
    done = len(out.read_text().splitlines()) if out.exists() else 0
    for entry in pool.problems[done:problems]:
        trees = [StepTree.chain(entry.problem.text, list(solution.steps)) for solution in entry.solutions[:solutions]]
        tree, paths = together(trees)
        encoded = encode_tree(tree, prm.family)
        batch = module.collate(pack([encoded], 10**6))
        with torch.inference_mode():
            hidden_BLH = module.hidden(batch)
            module.hidden = lambda _, found=hidden_BLH: found  # type: ignore[method-assign, misc]
            value_T3, read_T = module.of_tokens(
                batch, lambda log_p_TV, ids_T: torch.stack([measure(log_p_TV, ids_T) for measure in MEASURES], 1)
            )
            del module.hidden
        of_node = {node: value_T3[read_T == i].double().numpy() for i, (_, node) in enumerate(batch.owners)}
        reads = {node: i for i, (_, node) in enumerate(batch.owners)}
        lines = []
        for path in paths:
            values = np.concatenate([of_node[node] for node in path])
            at = reads[path[-1]]
            lines.append({
                **{kind: SUMMARIES[kind](values[:, k], window) for kind, (k, window) in KINDS.items()},
                "tokens": sum(len(encoded.ids[node]) for node in path),
                "prompt": len(encoded.prompt),
                "features": hidden_BLH[batch.read_row_R[at], batch.read_col_R[at]].half().tolist(),
            })  # fmt: skip
        with out.open("a") as file:
            file.write(json.dumps({"name": entry.problem.name, "solutions": lines}) + "\n")
        print(entry.problem.name, len(batch.input_ids_BL[0]), flush=True)


def scores(pool: Path, read_file: Path, graded: Path, folder: Path, others: dict[str, Path]) -> None:
    """Write the pool's part, and a file of scores per PRM, per confidence and for the ORM."""
    lines = [json.loads(line) for line in read_file.read_text().splitlines()]
    count, names = len(lines[0]["solutions"]), [line["name"] for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    part = [json.loads(line) for line in pool.read_text().splitlines()[: len(lines)]]
    assert [record["name"] for record in part] == names, "read in the pool's order"
    for record in part:
        record["solutions"] = record["solutions"][:count]
    write(folder / "pool.jsonl", part)
    for name, file in others.items():
        known = {record["name"]: record["scores"] for record in map(json.loads, file.read_text().splitlines())}
        write(folder / f"{name}.jsonl", [{"name": each, "scores": known[each][:count]} for each in names])

    grades = pq.read_table(graded / "solutions.parquet").to_pylist()
    right_N = np.array([row["correct"] for row in grades if row["problem_id"] < len(lines) and row["solution"] < count])
    assert len(right_N) == len(lines) * count, "every solution is graded"
    features_NH = np.array([one["features"] for line in lines for one in line["solutions"]])
    fold_N = np.repeat(np.arange(len(lines)) % FOLDS, count)
    probability_N = np.zeros(len(right_N))
    for fold in range(FOLDS):
        head = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=2000))
        head.fit(features_NH[fold_N != fold], right_N[fold_N != fold])
        probability_N[fold_N == fold] = head.predict_proba(features_NH[fold_N == fold])[:, 1]
    of_solution = {"orm": probability_N}
    for kind in KINDS:
        values = np.array([one[kind] for line in lines for one in line["solutions"]])
        of_solution[kind] = np.exp(values) if kind == "logprob" else values / (values + LARGE)
    tokens = sum(one["tokens"] for line in lines for one in line["solutions"])
    print(f"{len(lines)} problems × {count} solutions, {tokens:,} tokens, {right_N.mean():.3f} right")
    for name, value_N in of_solution.items():
        print(f"{name}: AUROC over all solutions {roc_auc_score(right_N, value_N):.3f}")
        rows = value_N.reshape(len(lines), count).tolist()
        steps = [[[p] * len(one["steps"]) for p, one in zip(row, record["solutions"], strict=True)]
                 for row, record in zip(rows, part, strict=True)]  # fmt: skip
        write(folder / f"{name}.jsonl", [{"name": n, "scores": own} for n, own in zip(names, steps, strict=True)])


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    reading = commands.add_parser("read")
    reading.add_argument("model")
    writing = commands.add_parser("scores")
    for command in (reading, writing):
        command.add_argument("pool", type=Path)
        command.add_argument("read_file", type=Path)
    writing.add_argument("graded", type=Path)
    writing.add_argument("folder", type=Path)
    writing.add_argument("--scores", action="append", default=[])
    reading.add_argument("--problems", type=int, default=60)
    reading.add_argument("--solutions", type=int, default=8)
    reading.add_argument("--dtype", default="float32", help="of the model, such as bfloat16")
    args = parser.parse_args()
    if args.command == "read":
        read(args.model, read_pool([args.pool]), args.read_file, args.problems, args.solutions, args.dtype)
    else:
        others = {name: Path(file) for name, _, file in (given.partition("=") for given in args.scores)}
        scores(args.pool, args.read_file, args.graded, args.folder, others)


if __name__ == "__main__":
    main()
