"""Models that score steps: language models, packed trees, PRM families and sessions."""
