"""Plans `prism score`: exact tokens, from the code that packs and files scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from prism_prm.console import progress
from prism_prm.costs import Batch, ModelSizes, Setup, scoring_memory
from prism_prm.planning.counting import CountingScorer, kernel_of
from prism_prm.planning.fit import BYTES
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import SCORE_BYTES, Fit, Plan
from prism_prm.prms.known_sizes import Stand
from prism_prm.prms.skeleton import load_skeleton
from prism_prm.scorer.settings import LoadSettings
from prism_prm.scorer.store import Request
from prism_prm.scorer.table import TreesToScore


def plan_scoring(prm: str, inputs: Sequence[str], cluster: Cluster, stand: Stand, loading: LoadSettings) -> Plan:
    """What `prism score` will take."""
    skeleton = load_skeleton(
        prm, stand=stand, family=loading.family, attn=loading.attn, on_cpu=cluster.on_cpu,
        token_budget=loading.token_budget, context=loading.context,
    )  # fmt: skip
    skeleton.on_too_long = loading.on_too_long
    trees = list(TreesToScore(inputs))
    requests = [Request.all_of(tree) for tree in trees]
    counter = CountingScorer(skeleton)
    with tempfile.TemporaryDirectory() as folder, progress("trees", len(trees)) as advance:
        counter.filed(Path(folder)).fill(requests, advance=advance)
    size = BYTES.get(loading.dtype or "", 2)
    setup = Setup(weights=size, compute=size, kernel=kernel_of(skeleton.module))
    sizes, tally = skeleton.sizes, counter.tally
    stage = counter.stage("scoring", cluster, setup.compute)
    memory = scoring_memory(sizes, tally.largest, setup)
    notes = ["16-bit weights, unless a dtype is named", *(f"not the model's own: {note}" for note in skeleton.notes)]
    fit = Fit("a copy per GPU", memory, memory.peak <= cluster.room)
    return Plan(
        "scoring", {"name": prm, "family": skeleton.family.name, "parameters": sizes.parameters}, cluster, [stage],
        [fit], _scoring_remedies(sizes, tally.largest, setup, cluster),
        {"scores": float(SCORE_BYTES * sum(len(request.nodes) for request in requests))}, notes,
    )  # fmt: skip


def _scoring_remedies(sizes: ModelSizes, batch: Batch, setup: Setup, cluster: Cluster) -> list[str]:
    """What makes scoring fit: fewer tokens per pass, 16 bits, or the model over several GPUs."""
    if scoring_memory(sizes, batch, setup).peak <= cluster.room:
        return []
    found = []
    tokens = batch.tokens // 2
    while tokens >= 1024:
        smaller = scoring_memory(sizes, Batch(tokens, batch.pairs * tokens // batch.tokens, batch.reads), setup)
        if smaller.peak <= cluster.room:
            found.append(f"--token-budget {tokens}: {smaller.peak / 2**30:.1f} GiB")
            break
        tokens //= 2
    if setup.weights > 2:
        half = scoring_memory(sizes, batch, Setup(2, 2, setup.kernel))
        if half.peak <= cluster.room:
            found.append(f"--dtype bfloat16: {half.peak / 2**30:.1f} GiB")
    needed = -(-int(sizes.parameters * setup.weights) // int(0.8 * cluster.room))
    return found or [f"--device-map auto over {max(2, needed)} GPUs"]
