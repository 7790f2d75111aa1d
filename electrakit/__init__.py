"""ElectraKit: pretrain ELECTRA text encoders, from raw text to a transformers model."""

__version__ = "0.1.0"
