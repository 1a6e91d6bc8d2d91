"""The embedded world: verifiable multi-step problems, an exact oracle for every step, and tiny policies.

It is small enough to train on a laptop in minutes. Every step's truth is known, so any question about a PRM has an
exact answer. See `docs/lab/world.md`.
"""
