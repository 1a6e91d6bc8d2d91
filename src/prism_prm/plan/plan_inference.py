"""Plan scoring, with exact token counts, and search, with an assumed length of solutions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.console import progress
from prism_prm.data.tasks import load_task
from prism_prm.evaluate.score_files import TreesToScore, with_segmenter
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
from prism_prm.plan.plan_run import SCORE_BYTES, Plan, PlanStage, ScoringJob, StandIn
from prism_prm.plan.skeleton import CountingScorer, backbone_sizes, kernel_of, load_skeleton
from prism_prm.search.recipes import SearchRecipe
from prism_prm.store import Request, ScoreStore

PROMPT = 200
"""Assumed tokens of a problem with its chat template."""
POOL_BYTES = 6
"""Bytes of text per token in a pool of solutions."""


def plan_scoring(job: ScoringJob, cluster: Cluster, stand_in: StandIn) -> Plan:
    """Plan a run of `prism score`."""
    loading = job.loading
    skeleton = load_skeleton(
        job.prm, stand_in=stand_in, family=loading.family, compat=loading.compat, attn=loading.attn,
        on_cpu=cluster.on_cpu, token_budget=loading.token_budget, context=loading.context,
    )  # fmt: skip
    skeleton.on_too_long = loading.on_too_long or "error"
    skeleton.card = replace(skeleton.card, thinking=loading.thinking or skeleton.card.thinking)
    options = with_segmenter(None, [job.prm], PrmOptions(segmenter=loading.segmenter))
    requests = [Request.all_of(tree) for tree in TreesToScore(job.inputs, options=options)]
    counter = CountingScorer(skeleton)
    with tempfile.TemporaryDirectory() as folder, progress("trees", len(requests)) as advance:
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
                remedies.append(f"--set token_budget={tokens}: {peak / GIB:.1f} GiB")
                break
        peak = scoring_memory(sizes, batch, replace(setup, weights=2, compute=2)).peak
        if setup.weights > 2 and peak <= cluster.room:
            remedies.append(f"--dtype bfloat16: {peak / GIB:.1f} GiB")
        needed = -(-int(sizes.parameters * setup.weights) // int(0.8 * cluster.room))
        remedies = remedies or [f"--set device_map=auto over {max(2, needed)} GPUs"]
    return Plan(
        "scoring", {"name": job.prm, "family": skeleton.family.name, "parameters": sizes.parameters}, cluster,
        [counter.stage("scoring", cluster, setup.compute)], [fit], remedies,
        {"scores": float(SCORE_BYTES * sum(len(request.nodes) for request in requests))},
        ["16-bit weights, unless --dtype is set", *(f"not the model's own: {note}" for note in skeleton.notes)],
    )  # fmt: skip


def plan_search(recipe: SearchRecipe, cluster: Cluster, stand_ins: Mapping[str, StandIn], solution_tokens: int) -> Plan:
    """Plan a run of `prism search` whose solutions have `solution_tokens` tokens."""
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
    problems, search = len(task.problems[: recipe.limit]), recipe.search
    length = min(solution_tokens, search.sampling.max_tokens)
    tokens_by_n = {n: problems * n * length * (1 + search.lookahead) for n in recipe.ns}
    if search.max_policy_tokens:
        tokens_by_n = {n: min(tokens, problems * search.max_policy_tokens) for n, tokens in tokens_by_n.items()}
    at_once = min(recipe.at_once, problems)
    rows = at_once * max(recipe.ns)  # solutions in progress at the same time, at the largest n
    stages: list[PlanStage] = []
    fits: list[Fit] = []

    def add(name: str, sizes: ModelSizes, setup: Setup, *, writes: bool) -> None:
        """Add a model's stages, and its memory: weights, the KV cache of all solutions in progress, 32-bit logits."""
        for n, tokens in tokens_by_n.items():
            # Every token runs once, as in sessions and packed trees, and attends to the prompt and all earlier tokens.
            batch = Batch(tokens, tokens * (PROMPT + length // 2), tokens if writes else 0)
            flops = forward_flops(sizes, batch)
            seconds = flops / cluster.speed(setup.compute)
            if writes and cluster.bandwidth:  # every token reads all weights and the KV cache
                in_step = min(rows, max(1, tokens // length))
                cached = cache_bytes(sizes, in_step * (PROMPT + length // 2), setup)
                read = sizes.parameters * setup.weights + cached
                seconds = max(seconds, tokens / in_step * read / (cluster.bandwidth * cluster.utilization))
            stages.append(PlanStage(f"{'writing' if writes else name}, n = {n}", tokens, 0, flops, seconds / 3600))
        parts = {
            "weights": float(sizes.parameters * setup.weights),
            "KV cache": float(cache_bytes(sizes, rows * (length + PROMPT), setup)),
            "temporary": float(4 * rows * sizes.head_flops // (2 * sizes.hidden)),
        }
        fits.append(cluster.fit(name, Memory(parts, sum(parts.values()))))

    notes = [
        f"a solution has {length:,} tokens (--set plan.solution_tokens=…) after a prompt of {PROMPT}",
        "16-bit weights, unless the recipe sets a dtype",
        "one process searches: more GPUs make it faster only behind a server",
    ]
    kind, _, place = recipe.policy.name.partition(":")
    if kind == "hf":
        size = BYTES.get(recipe.policy.dtype or "", 2)
        sizes, replaced = backbone_sizes(place, stand_ins[place])
        add("policy", sizes, Setup(weights=size, compute=size), writes=True)
        notes += [f"policy, not its own: {note}" for note in replaced]
    else:
        notes.append(f"the policy is served ({recipe.policy.name}); its cost is not counted")
    for name, prm in named_places(recipe.prm).items():
        skeleton = load_skeleton(prm, stand_in=stand_ins[prm])
        add(name, skeleton.sizes, Setup(weights=2, compute=2), writes=False)
        notes += [f"{name}, not its own: {note}" for note in skeleton.notes]

    together = cluster.fit("all on one GPU", Memory({}, sum(fit.memory.peak for fit in fits)))
    remedies = []
    if not together.fits:  # fewer problems at once, if the weights leave room for any
        weights, cached = (sum(fit.memory.parts[part] for fit in fits) for part in ("weights", "KV cache"))
        fewer = int(at_once * (cluster.room - weights) / cached)
        remedies = ["the policy behind a server on other GPUs (--policy openai:…)", "fewer PRMs at once"]
        if fewer >= 1:
            remedies = [f"--set at_once={fewer}"]
    return Plan(
        "search", {"name": recipe.policy.name}, cluster, stages, [together, *fits], remedies,
        {"pools": float(POOL_BYTES * sum(tokens_by_n.values()))}, notes,
    )  # fmt: skip
