"""Experiments with known truth: the demo, its embedded world, and the paper's closed forms."""
