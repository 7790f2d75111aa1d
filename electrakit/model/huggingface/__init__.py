"""Everything that knows transformers: model families, adapters, inputs, weight conversion, writing."""
