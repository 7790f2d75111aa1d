"""Fine-tuning any transformers encoder on GLUE and on the user's own data."""
