"""The command `electra`: its verbs, their arguments, and what they print."""
