"""Text in, batches of token ids out: sources -> documents -> rows -> shards -> batches."""
