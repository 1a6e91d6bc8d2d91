"""Planning: what a run will take, from data, tokenizer and config, before any weights are loaded."""
