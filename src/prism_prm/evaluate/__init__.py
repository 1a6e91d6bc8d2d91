"""Measure a PRM: read a benchmark, attach scores to its steps, compute metrics with intervals, write a report.

`evaluate_prm` tells the story of `prism eval`. `benchmarks` has one value per benchmark: how it is read, and what it
measures and shows in addition to the common metrics. `score_files` attaches scores from a PRM, a scores table or
predictions; `measure` holds them as columns and computes the metrics that `report` and `compare` show.
"""
