"""Training: from pairs and a base PRM to a trained one. `train_prm.py` reads from top to bottom."""
