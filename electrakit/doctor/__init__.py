"""What is wrong with this corpus, these shards, this run: what was seen, what it means, what to try."""
