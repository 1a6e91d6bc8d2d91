"""Training: from pairs and a base PRM to a trained one. `run.py` reads from top to bottom."""
