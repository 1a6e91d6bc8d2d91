"""The embedded world: verifiable multi-step problems, an exact oracle for every step, and tiny policies.

Small enough to train on a laptop in minutes, and because every step's truth is known, any question about a PRM has an
exact answer. See `docs/world.md`.
"""
