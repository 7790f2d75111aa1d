"""Any transformers encoder in, scores out: fine-tuning on GLUE and on data of one's own."""
