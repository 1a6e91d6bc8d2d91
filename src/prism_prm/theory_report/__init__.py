"""The report of `prism theory`: closed forms played out, ROC dominance on real scores, Best-of-N on a scored pool."""
