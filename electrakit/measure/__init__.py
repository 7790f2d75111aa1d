"""Yardsticks for any encoder: fixed corruptions, minimal pairs, and probes on frozen states."""
