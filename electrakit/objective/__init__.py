"""Ids in, a loss out: replaced-token detection and its relatives."""
