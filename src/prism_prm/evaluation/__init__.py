"""Measure a PRM: read a benchmark, attach scores to its steps, compute metrics with intervals, write a report.

`benchmarks` says which benchmarks there are; `scores` attaches scores from a PRM, a scores table or predictions;
`steps` holds the judged steps as columns, which is all that metrics, figures and comparisons need.
"""
