"""Whether a final answer or a program is right."""
