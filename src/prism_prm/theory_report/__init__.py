"""The report of `prism theory`: closed forms, ROC dominance on real scores, Best-of-N on a scored pool."""
