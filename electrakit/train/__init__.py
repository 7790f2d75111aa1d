"""Trains a pair of networks on shards: the loop, and what it needs."""
