"""Measure a PRM: read a benchmark, attach scores to its steps, compute metrics with intervals, write a report.

`evaluate` tells the story of `prism eval`. `benchmarks` has one value per benchmark: how it is read, and what it
measures and shows in addition to the common metrics. `scores` attaches scores from a PRM, a scores table or
predictions; `judged_steps` holds them as columns, which is all that `measure`, `report` and `compare` need.
"""
