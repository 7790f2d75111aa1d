"""Shards and settings in, a trained pair out: the loop, and what it needs."""
