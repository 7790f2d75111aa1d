"""What a run folder is: its layout, its files, its settings."""
