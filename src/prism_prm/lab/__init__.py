"""Where the truth is known: the demo, the world that it lives in, and the paper's closed forms."""
