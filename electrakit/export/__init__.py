"""A run as a transformers model: weights, tokenizer, card, ONNX files, the Hub."""
