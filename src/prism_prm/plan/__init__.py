"""Plans: tokens, memory, disk and hours of a run, from data, tokenizer and config, without loading weights."""
