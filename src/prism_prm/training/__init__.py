"""Training: from pairs and a base PRM to a trained one. `recipe.py` tells the story from top to bottom."""
