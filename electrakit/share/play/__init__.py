"""A page to play with a pair: which tokens look replaced, what the generator would say instead."""
