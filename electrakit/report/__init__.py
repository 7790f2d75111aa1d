"""One HTML file about runs: curves, validations, scores, settings, findings."""
