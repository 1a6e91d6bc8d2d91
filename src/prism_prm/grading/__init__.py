"""Judge final answers and programs."""
