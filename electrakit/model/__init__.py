"""Ids in, logits out: our encoders, any model of others, and what a pair of them shares."""
