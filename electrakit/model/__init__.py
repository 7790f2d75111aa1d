"""The encoders, adapters for other models, and the tying of their weights."""
