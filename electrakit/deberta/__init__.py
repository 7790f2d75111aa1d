"""Released DeBERTaV3 pairs of Microsoft, whose weights are pickles."""
