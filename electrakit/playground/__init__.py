"""A web page to try a pair: which tokens look replaced, and what the generator predicts in their place."""
