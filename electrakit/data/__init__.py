"""Turns text into batches of token ids: files -> documents -> rows -> shards -> batches."""
