"""Connectors: a PRM as the reward, scorer or judge of other frameworks. docs/guides/integrations.md has the commands.

Each module is for one framework, and imports it: `verl_reward`, `openrlhf_agent`, `verifiers_reward`, `swift_plugin`
and `inspect_scorer`. They share `batcher`, which makes batches of single calls. None imports TRL. With
`PRISM_RL_PRM=prism:http://host:8000`, none needs torch or transformers either.
"""
