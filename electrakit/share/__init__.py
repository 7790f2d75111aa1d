"""A run in; a model that others can load, a report and a playground out."""
