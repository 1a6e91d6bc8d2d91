"""Training: from pairs and a base PRM to a trained one. Start with `train_prm.py`."""
