"""Plans scoring, with exact tokens from the code that packs and stores scores, and search, from an assumed length."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from prism_prm.console import progress
from prism_prm.data.tasks import load_task
from prism_prm.evaluate.score_files import TreesToScore
from prism_prm.paths import named_places
from prism_prm.plan.costs import (
    BYTES,
    GIB,
    Batch,
    Cluster,
    Fit,
    Memory,
    ModelSizes,
    Setup,
    cache_bytes,
    forward_flops,
    scoring_memory,
)
from prism_prm.plan.plan_run import SCORE_BYTES, Plan, PlanStage, ScoringJob, Stand
from prism_prm.plan.skeleton import CountingScorer, backbone_sizes, kernel_of, load_skeleton
from prism_prm.search.recipes import SearchRecipe
from prism_prm.store import Request, ScoreStore

PROMPT = 200
"""Tokens that a problem and the layout around it are taken to have."""
POOL_BYTES = 6
"""Bytes of text per token in a pool of solutions."""


def plan_scoring(job: ScoringJob, cluster: Cluster, stand: Stand) -> Plan:
    """What `prism score` will take."""
    loading = job.loading
    skeleton = load_skeleton(
        job.prm, stand=stand, family=loading.family, attn=loading.attn, on_cpu=cluster.on_cpu,
        token_budget=loading.token_budget, context=loading.context,
    )  # fmt: skip
    skeleton.on_too_long = loading.on_too_long or "error"
    trees = list(TreesToScore(job.inputs))
    requests = [Request.all_of(tree) for tree in trees]
    counter = CountingScorer(skeleton)
    with tempfile.TemporaryDirectory() as folder, progress("trees", len(trees)) as advance:
        ScoreStore(Path(folder), counter).fill(requests, advance=advance)
    size = BYTES.get(loading.dtype or "", 2)
    setup = Setup(weights=size, compute=size, kernel=kernel_of(skeleton.module))
    sizes, batch = skeleton.sizes, counter.tally.largest
    fit = cluster.fit("a copy per GPU", scoring_memory(sizes, batch, setup))

    remedies = []
    if not fit.fits:
        for tokens in (batch.tokens >> halvings for halvings in range(1, batch.tokens.bit_length())):
            smaller = Batch(tokens, batch.pairs * tokens // batch.tokens, batch.reads)
            peak = scoring_memory(sizes, smaller, setup).peak
            if tokens >= 1024 and peak <= cluster.room:
                remedies.append(f"--token-budget {tokens}: {peak / GIB:.1f} GiB")
                break
        peak = scoring_memory(sizes, batch, replace(setup, weights=2, compute=2)).peak
        if setup.weights > 2 and peak <= cluster.room:
            remedies.append(f"--dtype bfloat16: {peak / GIB:.1f} GiB")
        needed = -(-int(sizes.parameters * setup.weights) // int(0.8 * cluster.room))
        remedies = remedies or [f"--device-map auto over {max(2, needed)} GPUs"]
    return Plan(
        "scoring", {"name": job.prm, "family": skeleton.family.name, "parameters": sizes.parameters}, cluster,
        [counter.stage("scoring", cluster, setup.compute)], [fit], remedies,
        {"scores": float(SCORE_BYTES * sum(len(request.nodes) for request in requests))},
        ["16-bit weights, unless a dtype is named", *(f"not the model's own: {note}" for note in skeleton.notes)],
    )  # fmt: skip


def plan_search(recipe: SearchRecipe, cluster: Cluster, stands: Mapping[str, Stand], solution_tokens: int) -> Plan:
    """What `prism search` will take if solutions have so many tokens: what is written is not known before."""
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
    problems, search = len(task.problems[: recipe.limit]), recipe.search
    length = min(solution_tokens, search.sampling.max_tokens)
    tokens_by_n = {n: problems * n * length * (1 + search.lookahead) for n in recipe.ns}
    if search.max_policy_tokens:
        tokens_by_n = {n: min(some, problems * search.max_policy_tokens) for n, some in tokens_by_n.items()}
    at_once = min(recipe.at_once, problems)
    rows = at_once * max(recipe.ns)  # solutions that are open at once, at the largest n
    stages: list[PlanStage] = []
    fits: list[Fit] = []

    def add(name: str, sizes: ModelSizes, setup: Setup, *, writes: bool) -> None:
        """A model's stages, and its weights, the KV cache of all that is open at once, and 32-bit logits."""
        for n, tokens in tokens_by_n.items():
            # All tokens once, as in sessions and packed trees: each sees the prompt and what is before it.
            batch = Batch(tokens, tokens * (PROMPT + length // 2), tokens if writes else 0)
            flops = forward_flops(sizes, batch)
            seconds = flops / cluster.speed(setup.compute)
            if writes and cluster.bandwidth:  # a pass per token reads all weights and the KV cache
                in_step = min(rows, max(1, tokens // length))
                cached = cache_bytes(sizes, in_step * (PROMPT + length // 2), setup)
                read = sizes.parameters * setup.weights + cached
                seconds = max(seconds, tokens / in_step * read / (cluster.bandwidth * cluster.utilisation))
            stages.append(PlanStage(f"{'writing' if writes else name}, n = {n}", tokens, 0, flops, seconds / 3600))
        parts = {
            "weights": float(sizes.parameters * setup.weights),
            "KV cache": float(cache_bytes(sizes, rows * (length + PROMPT), setup)),
            "temporary": float(4 * rows * sizes.head_flops // (2 * sizes.hidden)),
        }
        fits.append(cluster.fit(name, Memory(parts, sum(parts.values()))))

    notes = [
        f"a solution is taken to have {length:,} tokens (--solution-tokens) after a prompt of {PROMPT}",
        "16-bit weights, unless the recipe names a dtype",
        "one process searches: further GPUs do not make it faster, except behind a server",
    ]
    kind, _, place = recipe.policy.name.partition(":")
    if kind == "hf":
        size = BYTES.get(recipe.policy.dtype or "", 2)
        sizes, _, replaced = backbone_sizes(place, stands.get(place, stands[""]))
        add("policy", sizes, Setup(weights=size, compute=size), writes=True)
        notes += [f"policy, not its own: {note}" for note in replaced]
    else:
        notes.append(f"the policy is served ({recipe.policy.name}); its cost is not counted")
    for name, prm in named_places(recipe.prm).items():
        skeleton = load_skeleton(prm, stand=stands.get(prm, stands[""]))
        add(name, skeleton.sizes, Setup(weights=2, compute=2), writes=False)
        notes += [f"{name}, not its own: {note}" for note in skeleton.notes]

    together = cluster.fit("all on one GPU", Memory({}, sum(one.memory.peak for one in fits)))
    remedies = []
    if not together.fits:  # fewer problems at once, if the weights leave room for any
        weights, growing = (sum(one.memory.parts[part] for one in fits) for part in ("weights", "KV cache"))
        fewer = int(at_once * (cluster.room - weights) / growing)
        remedies = ["the policy behind a server on other GPUs (--policy openai:…)", "fewer PRMs at once"]
        if fewer >= 1:
            remedies = [f"--at-once {fewer}"]
    return Plan(
        "search", {"name": recipe.policy.name}, cluster, stages, [together, *fits], remedies,
        {"pools": float(POOL_BYTES * sum(tokens_by_n.values()))}, notes,
    )  # fmt: skip
