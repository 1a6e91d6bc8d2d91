"""`prism demo`: the whole pipeline in the embedded world, with the same code as for large models.

A policy is trained, its steps are sampled and judged, a base PRM is trained on lenient labels, and several ways to
train it further are compared on exact test sets and in Best-of-N. Every stage is cached. See `docs/lab/demo.md`.
"""
