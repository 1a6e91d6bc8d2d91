"""Search, label and re-rank: solutions that a policy writes and a PRM scores."""
