"""Measure a PRM: read a benchmark, attach scores to its steps, compute metrics with intervals, write a report.

Start with `evaluate_prm`, which is `prism eval`. `benchmarks` defines how each benchmark is read, and which metrics and
tables it adds to the common ones. `score_files` attaches scores from a PRM, a scores table or predictions. `measure`
holds them as columns and computes the metrics that `report` and `compare` show.
"""
