"""The settings of every verb: frozen dataclasses on one base class. Nothing here needs torch."""
