"""Reads the documents of a corpus from files, archives and datasets of many formats."""
