"""Spellings of 0.2.0 whose new form cannot be guessed from the name of a setting; errors give the new one."""

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
    "theory --grpo-rate": "--set grpo_rates=0.1,0.3",
    "theory --rate": "--set rates=0,0.1,0.2",
}
"""Option, or "COMMAND OPTION" → what replaces it."""
