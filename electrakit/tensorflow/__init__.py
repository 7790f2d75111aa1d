"""Checkpoints of google-research/electra, read without TensorFlow."""
