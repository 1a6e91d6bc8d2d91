"""Spellings of 0.2.0 and of other tools whose form here cannot be guessed from the name of a setting."""

from __future__ import annotations

OLD_COMMANDS = {
    "margins": "`prism score PAIRS --pairs`",
    "look": "`prism score INPUT --show`",
    "plan": "`prism train RECIPE --plan`, `prism search … --plan` or `prism score … --plan`",
}
"""Command → what replaces it."""

OLD_OPTIONS = {
    "--critic": "-C format=FORMAT",
    "--critic-prompt": "-C prompt=FILE",
    "--critic-temperature": "-C temperature=X",
    "--critic-max-tokens": "-C max_tokens=N",
    "--critic-logprobs": "-C log_probabilities=off",
    "--critic-priming": "-C priming=off",
    "--critic-code": "-C code=true",
    "--critic-model": "-C model=NAME",
    "--critic-concurrency": "-C concurrency=N",
    "--critic-timeout": "-C timeout=SECONDS",
    "--budget": "--set max_policy_tokens=N",
    "--draws": "--set num_draws=N",
    "--label-rule": "--rule RULE",
    "--lookahead-audit": "--set pairs.audit=drop",
    "--max-pairs-per-position": "--set pairs.max_per_position=N",
    "--no-color": "NO_COLOR=1 in front of the command",
    "--perturbed-negatives": "--set pairs.perturbed=N",
    "--random-negatives": "--set pairs.random=N",
    "--drop-finish": "--set read.drop_finish=bad_problem,give_up",
    "eval --model": "--prm PRM",
    "score --model": "--prm PRM",
    "rerank --model": "--prm PRM",
    "serve --model": "--prm PRM",
    "train --config": "the recipe without an option: prism train RECIPE",
    "grpo --config": "the recipe without an option: prism grpo RECIPE",
    "train --learning-rate": "--set train.lr=X",
    "train --learning_rate": "--set train.lr=X",
    "train --batch-size": "--set train.pairs_per_update=N",
    "train --batch_size": "--set train.pairs_per_update=N",
    "--batch-size": "--set load.token_budget=N (tokens per forward pass)",
    "--batch_size": "--set load.token_budget=N (tokens per forward pass)",
    "theory --grpo-rate": "--set grpo_rates=0.1,0.3",
    "theory --rate": "--set rates=0,0.1,0.2",
}
"""Option, or "COMMAND OPTION" → what replaces it."""
